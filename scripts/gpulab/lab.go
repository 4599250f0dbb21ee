package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// lab is the hosts and what has been found out about them.
type lab struct {
	o      options
	keep   bool
	cgroup string // where cgroup v2 is mounted; empty where it is not
	hosts  []*host
	sw     *keeper
	agents []*exec.Cmd

	howGPU   string // how hosts are kept to their own
	baseline string // memory used of each GPU before anything ran
}

type host struct {
	*keeper
	number int
	dir    string
	gpu    string // its device node; empty without
	sees   int    // the number of GPUs that its processes see; above 1 each is told which
}

// keeper is a process whose life is that of namespaces.
type keeper struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startKeeper runs this program anew in namespaces of its own, and waits for its word.
func startKeeper(log string, flags uintptr, args ...string) (*keeper, error) {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if flags&syscall.CLONE_NEWNS != 0 {
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS // with it Go makes mounts private
	}
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd.Stderr = f
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", strings.Join(args, " "), err)
	}
	k := &keeper{cmd, in, bufio.NewReader(out)}
	return k, k.ready(log)
}

func (k *keeper) ready(log string) error {
	line, err := k.out.ReadString('\n')
	if err == nil && line == "ready\n" {
		return nil
	}
	text, _ := os.ReadFile(log)
	return fmt.Errorf("%s did not come up: %s", strings.Join(k.cmd.Args[1:3], " "), bytes.TrimSpace(text))
}

func (k *keeper) pid() int { return k.cmd.Process.Pid }

func (k *keeper) stop() {
	k.in.Close()
	_ = k.cmd.Process.Kill() // PID 1 of its namespace: the kernel ends the rest
	_ = k.cmd.Wait()
}

// open makes hosts and network.
func open(o options) (*lab, error) {
	if os.Getuid() != 0 {
		return nil, errors.New("namespaces and mounts need root")
	}
	devices := gpus()
	if o.gloo {
		devices = nil
	}
	if o.hosts == 0 {
		if o.hosts = min(8, len(devices)); o.gloo {
			o.hosts = 2
		}
	}
	switch {
	case !o.gloo && len(devices) == 0:
		return nil, errors.New("this machine has no /dev/nvidia0: --gloo rehearses without GPUs")
	case !o.gloo && o.hosts > len(devices):
		return nil, fmt.Errorf("--hosts %d: there are %d GPUs", o.hosts, len(devices))
	case o.hosts < 2 || o.hosts > 100:
		return nil, fmt.Errorf("%d hosts: want 2 or more; on a machine with one GPU there is nothing to join", o.hosts)
	}
	for _, program := range []string{"nsenter", o.sparkrun} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, err
		}
	}
	var err error
	if o.sparkrun, err = filepath.Abs(lookPath(o.sparkrun)); err != nil {
		return nil, err
	}
	l := &lab{o: o, cgroup: findCgroup(), keep: o.dir != ""}
	if l.o.dir == "" {
		l.o.dir, err = os.MkdirTemp("/var/tmp", "gpulab-")
	} else if l.o.dir, err = filepath.Abs(o.dir); err == nil {
		err = os.MkdirAll(l.o.dir, 0o755)
	}
	if err != nil {
		return nil, err
	}
	if err := l.make(devices); err != nil {
		l.keep = true
		l.close()
		return nil, err
	}
	return l, nil
}

func lookPath(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	return name
}

func (l *lab) make(devices []string) error {
	var pids []string
	cgroup := "none"
	if l.cgroup != "" {
		cgroup = l.cgroup
	}
	for i := range l.o.hosts {
		h := &host{number: i + 1, dir: filepath.Join(l.o.dir, hostName(i+1))}
		gpu := "none"
		if i < len(devices) {
			h.gpu = devices[i]
			gpu = h.gpu
		}
		if err := os.MkdirAll(h.dir, 0o755); err != nil {
			return err
		}
		if err := sysfs(filepath.Join(h.dir, "sys"), h.number); err != nil {
			return fmt.Errorf("write the sysfs root of %s: %w", hostName(h.number), err)
		}
		var err error
		h.keeper, err = startKeeper(filepath.Join(h.dir, "console.log"),
			syscall.CLONE_NEWNET|syscall.CLONE_NEWNS|syscall.CLONE_NEWUTS|syscall.CLONE_NEWPID|syscall.CLONE_NEWIPC,
			"host", strconv.Itoa(h.number), h.dir, gpu, cgroup)
		if h.keeper != nil {
			l.hosts = append(l.hosts, h)
		}
		if err != nil {
			return err
		}
		pids = append(pids, strconv.Itoa(h.pid()))
	}
	var err error
	if l.sw, err = startKeeper(filepath.Join(l.o.dir, "switch.log"), syscall.CLONE_NEWNET,
		append([]string{"switch"}, pids...)...); err != nil {
		return err
	}
	for _, h := range l.hosts {
		if _, err := io.WriteString(h.in, "go\n"); err != nil {
			return err
		}
		if err := h.ready(filepath.Join(h.dir, "console.log")); err != nil {
			return err
		}
	}
	return nil
}

func (l *lab) close() {
	for _, h := range l.hosts {
		h.stop()
	}
	for _, a := range l.agents {
		_ = a.Wait()
	}
	if l.sw != nil {
		l.sw.stop()
	}
	if l.cgroup != "" {
		for range 100 {
			if removeCgroups(filepath.Join(l.cgroup, "gpulab")) == nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	if !l.keep {
		_ = os.RemoveAll(l.o.dir)
	}
}

// removeCgroups removes a group with all below it; none may have processes.
func removeCgroups(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil //nolint:nilerr // gone already
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeCgroups(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(dir)
}

func findCgroup() string {
	text, _ := os.ReadFile("/proc/mounts")
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			return f[1]
		}
	}
	return ""
}

// on prepares a command on a host, or in the switch's network for number 0.
func (l *lab) on(ctx context.Context, number int, argv ...string) *exec.Cmd {
	args := []string{"--net", "--target"}
	if number == 0 {
		args = append(args, strconv.Itoa(l.sw.pid()), "--")
	} else {
		h := l.hosts[number-1]
		args = append(args, strconv.Itoa(h.pid()), "--mount", "--uts", "--ipc", "--pid", "--", "env", "-C", "/",
			"SPARKRUN_SYSFS="+filepath.Join(h.dir, "sys"))
	}
	cmd := exec.CommandContext(ctx, "nsenter", append(args, argv...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// output runs a command on a host; its error holds the end of what it said.
func (l *lab) output(ctx context.Context, number int, argv ...string) (string, error) {
	cmd := l.on(ctx, number, argv...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", argv[0]+" "+strings.Join(argv[1:min(len(argv), 4)], " "), err,
			tail(errs.String()+out.String()))
	}
	return out.String(), err
}

func tail(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-12):], "\n")
}

// agent starts the host's agent, as its unit would, in a cgroup of its own.
func (l *lab) agent(number int) error {
	h := l.hosts[number-1]
	f, err := os.OpenFile(filepath.Join(h.dir, "agent.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	enter := `[ "$1" = none ] || echo 0 >"$1/system.slice/sparkrun.service/cgroup.procs"; exec "$2" agent`
	cgroup := "none"
	if l.cgroup != "" {
		cgroup = l.cgroup
	}
	cmd := l.on(context.Background(), number, "sh", "-c", enter, "-", cgroup, l.o.sparkrun)
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	l.agents = append(l.agents, cmd)
	return nil
}

// cluster founds and joins, by the commands that a person would type.
func (l *lab) cluster(ctx context.Context) (string, error) {
	began := time.Now()
	if _, err := l.output(ctx, 1, l.o.sparkrun, "init"); err != nil {
		return "", err
	}
	if err := l.agent(1); err != nil {
		return "", err
	}
	ready := func(n int) error {
		deadline := time.Now().Add(90 * time.Second)
		for {
			_, err := l.output(ctx, 1, l.o.sparkrun, "status", "--wait-nodes", strconv.Itoa(n), "--timeout", "60s")
			if err == nil || time.Now().After(deadline) || ctx.Err() != nil {
				return err
			}
			time.Sleep(100 * time.Millisecond) // the agent's socket is not there yet
		}
	}
	if err := ready(1); err != nil {
		return "", err
	}
	token, err := l.output(ctx, 1, l.o.sparkrun, "token", "create", "--uses", strconv.Itoa(l.o.hosts-1))
	if err != nil {
		return "", err
	}
	for i := 2; i <= l.o.hosts; i++ {
		join := l.on(ctx, i, l.o.sparkrun, "join", nics[0].addr(1), "--token-file", "-")
		join.Stdin = strings.NewReader(token)
		if out, err := join.CombinedOutput(); err != nil {
			return "", fmt.Errorf("join %s: %w: %s", hostName(i), err, tail(string(out)))
		}
		if err := l.agent(i); err != nil {
			return "", err
		}
	}
	if err := ready(l.o.hosts); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d hosts ready in %.1f s", l.o.hosts, time.Since(began).Seconds()), nil
}
