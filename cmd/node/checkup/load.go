package checkup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sparkrun/sparkrun/envgen/doctor"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/load"
	"github.com/sparkrun/sparkrun/launcher/login"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// free is up to which use a GPU counts as idle before a load, 0 to 1: a desktop draws a little.
const free = 0.5

// Load has the machines of the cluster loaded side by side; like Doctor it needs no leader.
func (u *Checkup) Load(ctx context.Context, c wire.Caller, r wire.LoadRequest) (wire.LoadResponse, error) {
	res := wire.LoadResponse{Self: u.cfg.Host}
	if c.Node != "" || c.User == nil {
		return res, fmt.Errorf("doctor --load: %w: ask the agent of your own machine", wire.ErrDenied)
	}
	if r.For < load.Least || r.For > load.Most {
		return res, fmt.Errorf("doctor --load %s: %w: want %s to %s", r.For, launcher.ErrInvalid, load.Least, load.Most)
	}
	st, err := u.cfg.Status(ctx, c, wire.StatusRequest{})
	if err != nil {
		return res, err
	}
	if err := mustHave(Seen(st), r.Node); err != nil {
		return res, err
	}
	var nodes []wire.NodeStatus
	for _, n := range st.Nodes {
		if n.Host == r.Node || r.Node == "" && !n.Witness {
			nodes = append(nodes, n)
		}
	}
	res.Nodes = make([]doctor.Load, len(nodes))
	each(len(nodes), func(i int) {
		n := nodes[i]
		ctx, cancel := context.WithTimeout(ctx, r.For+load.Setup+factsWithin)
		defer cancel()
		var err error
		switch {
		case n.ID == u.cfg.Self:
			res.Nodes[i], err = u.NodeLoad(ctx, c, r)
		case n.State == "away":
			err = errors.New("it is away")
		default:
			res.Nodes[i], err = wire.NodeLoad.Call(ctx, u.cfg.Dial.Client(n.ID).OnBehalfOf(c), r)
		}
		res.Nodes[i].Node, res.Nodes[i].Host = string(n.ID), n.Host
		if err != nil {
			res.Nodes[i].Error = err.Error()
		}
	})
	res.Findings = doctor.Judge(res.Nodes)
	return res, ctx.Err()
}

// NodeLoad loads this machine, where nothing runs, and only for as long.
func (u *Checkup) NodeLoad(ctx context.Context, c wire.Caller, r wire.LoadRequest) (doctor.Load, error) {
	if c.User == nil || r.For < load.Least || r.For > load.Most {
		return doctor.Load{}, fmt.Errorf("load: %w", launcher.ErrInvalid)
	}
	if err := u.cfg.Allow(ctx, c.User.Name); err != nil {
		return doctor.Load{}, err
	}
	who, err := login.Lookup(ctx, c.User.Name)
	if err != nil {
		return doctor.Load{}, err
	}
	if !u.loading.CompareAndSwap(false, true) {
		return doctor.Load{}, errors.New("another load runs there: wait for its end")
	}
	defer u.loading.Store(false)
	if err := u.mustBeFree(ctx); err != nil {
		return doctor.Load{}, err
	}
	u.cfg.Logger.Info("load", "user", c.User.Name, "for", r.For)
	ctx, cancel := context.WithTimeoutCause(ctx, r.For+load.Setup, errors.New("it did not end in time"))
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	read := make(chan []doctor.GPU, 1)
	stop := make(chan struct{})
	go func() { read <- u.watchLoad(ctx, stop, end) }()
	got, err := runLoad(ctx, who, r)
	close(stop)
	readings := <-read
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		return doctor.Load{}, err
	}
	l := doctor.Load{For: r.For, Via: got.Via, Trouble: got.Trouble, Flops: got.Flops, Kind: got.Kind, Read: got.Read}
	if got.GPU != "" {
		l.GPU = &doctor.GPU{Name: got.GPU}
		l.Summed(readings)
	}
	return l, nil
}

// mustBeFree refuses a machine on which something works, or that is short of memory.
func (u *Checkup) mustBeFree(ctx context.Context) error {
	if id := u.job(); id != "" {
		return fmt.Errorf("job %s has ranks there: stop it first, or wait for its end", id)
	}
	now, err := u.cfg.Usage(ctx)
	if err != nil {
		return fmt.Errorf("see whether it is idle: %w", err)
	}
	for _, g := range now.GPUs {
		if g.Busy != nil && *g.Busy > free {
			return fmt.Errorf("its GPU is %.0f %% busy, and not by a job of the cluster: see nvidia-smi there", *g.Busy*100)
		}
	}
	if m := now.Memory; m != nil && m.Available < load.Memory {
		return fmt.Errorf("it has %d MiB of memory left, and a load wants %d", m.Available>>20, load.Memory>>20)
	}
	return nil
}

// job is one that has ranks here, or is about to; empty: none.
func (u *Checkup) job() launcher.JobID {
	for _, e := range u.cfg.Ledger() {
		if e.Phase == launcher.PhasePrepared || e.Phase == launcher.PhaseStarted {
			return e.Job
		}
	}
	return ""
}

// watchLoad reads the first GPU once a second, and ends the load for a job.
func (u *Checkup) watchLoad(ctx context.Context, stop <-chan struct{}, end context.CancelCauseFunc) (all []doctor.GPU) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return all
		case <-ctx.Done():
			return all
		case <-tick.C:
		}
		if id := u.job(); id != "" {
			end(fmt.Errorf("job %s has come, and the load gave way to it", id))
			return all
		}
		if now, err := u.cfg.Usage(ctx); err == nil && len(now.GPUs) > 0 {
			all = append(all, plainGPU(now.GPUs[0]))
		}
	}
}

// runLoad runs the load as the user, in a process that ends with ctx and with the agent.
func runLoad(ctx context.Context, who login.User, r wire.LoadRequest) (got load.Reached, err error) {
	runtime.LockOSThread() // what ends its parent's thread ends it (PR_SET_PDEATHSIG, prctl(2))
	defer runtime.UnlockOSThread()
	program, err := os.Executable()
	if err != nil {
		return got, err
	}
	cmd := exec.CommandContext(ctx, program, load.Command, strconv.FormatFloat(r.For.Seconds(), 'f', -1, 64))
	for _, s := range who.Settings() {
		if s.Name == "PATH" {
			s.Value = strings.TrimPrefix(absolute(r.Path)+":"+s.Value, ":")
		}
		cmd.Env = append(cmd.Env, s.Name+"="+s.Value)
	}
	cmd.Dir = "/"
	// A group of its own: python3 ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if who.Switches {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: who.UID, Gid: who.GID, Groups: who.Groups}
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var out, trouble short
	cmd.Stdout, cmd.Stderr = &out, &trouble
	begin, err := cmd.StdinPipe()
	if err != nil {
		return got, err
	}
	if err = cmd.Start(); err == nil {
		makeGuest(cmd.Process.Pid)
		begin.Close()
		err = cmd.Wait()
		_ = cmd.Cancel() // what it left behind
	}
	if err != nil {
		if text := strings.TrimSpace(string(trouble)); text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return got, fmt.Errorf("run the load: %w", err)
	}
	if err := json.Unmarshal(out, &got); err != nil {
		return got, fmt.Errorf("read what the load reached: %w", err)
	}
	return got, nil
}

// makeGuest has whatever else the machine does come before a group of processes, and has the group end first if memory
// is short (proc_pid_oom_score_adj(5)). It is not the load's to do: what is no longer root may go back to the agent's.
func makeGuest(pid int) {
	_ = syscall.Setpriority(syscall.PRIO_PGRP, pid, 10) // all threads
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("1000"), 0)
}

// short keeps the first bytes of what a user's program says.
type short []byte

func (s *short) Write(p []byte) (int, error) {
	*s = append(*s, p[:min(len(p), 16<<10-len(*s))]...)
	return len(p), nil
}

// absolute leaves the folders of a PATH that mean the same wherever a program is.
func absolute(path string) string {
	var out []string
	for _, dir := range filepath.SplitList(path) {
		if filepath.IsAbs(dir) {
			out = append(out, dir)
		}
	}
	return strings.Join(out, ":")
}

func plainGPU(g usage.GPU) doctor.GPU {
	return doctor.GPU{Index: g.Index, Name: g.Name, Busy: g.Busy, MHz: g.MHz, MaxMHz: g.MaxMHz, Watts: g.Watts,
		Celsius: g.Celsius, Throttle: g.Throttle}
}
