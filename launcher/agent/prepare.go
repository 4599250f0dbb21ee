package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// Rendezvous ports lie below net.ipv4.ip_local_port_range (32768 and up by
// default), so that no outgoing connection can hold one. torch's own default,
// 29500, is the first.
const (
	firstPort = 29500
	lastPort  = 29999
)

// ready does everything that can fail before a rank is started, and leaves a
// shim that waits for the start. It is the only part of a launch that may take
// long: a path on a hung network disk blocks here and nowhere else.
func (a *Agent) ready(ctx context.Context, as launcher.Assignment, dir string) result {
	plan, port, err := a.check(ctx, as)
	if err != nil {
		return result{err: err}
	}
	r := result{plan: plan, port: port}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		r.err = fmt.Errorf("prepare: %w", err)
		return r
	}
	if err := os.MkdirAll(plan.cfg.LogDir, 0o750); err != nil {
		r.err = fmt.Errorf("prepare: %w", err)
		return r
	}
	// The assignment comes first: a folder without one holds no shim.
	if r.err = errors.Join(writeJSON(filepath.Join(dir, "assignment.json"), as), writePort(dir, port)); r.err != nil {
		return r
	}
	if r.shim, err = shim.Spawn(ctx, shim.SelfExe, dir, plan.cfg); err != nil {
		r.err = fmt.Errorf("prepare: %w", err)
	}
	return r
}

// check finds out whether the ranks could run here, and as what.
func (a *Agent) check(ctx context.Context, as launcher.Assignment) (*prepared, int, error) {
	st := as.Spec.MainStage()
	who, err := a.lookup(ctx, as.Spec.User)
	if err != nil {
		return nil, 0, err
	}
	if err := isDir(st.Workdir); err != nil {
		return nil, 0, fmt.Errorf("working directory %s: %w", st.Workdir, err)
	}
	for _, f := range st.Files {
		if !filepath.IsAbs(f) {
			f = filepath.Join(st.Workdir, f)
		}
		if err := isFile(f); err != nil {
			return nil, 0, fmt.Errorf("script %s: %w", f, err)
		}
	}
	plans, err := a.explain(as, who, 0)
	if err != nil {
		return nil, 0, err
	}
	if err := findProgram(plans[0].Argv[0], st.Workdir, plans[0].Env); err != nil {
		return nil, 0, err
	}
	p := &prepared{who: who, cfg: shim.Config{
		Key: as.Key, LogDir: a.logDir(as.Key), Grace: as.Spec.Grace, StartTimeout: as.Spec.StartTimeout,
		DieWithClient: a.cfg.DieWithUs, Cgroup: string(a.cfg.Node) + "-" + as.Key.String(),
	}}
	if who.switches {
		p.cfg.UID, p.cfg.GID, p.cfg.Groups = &who.uid, &who.gid, who.groups
	}
	port := 0
	if st.UsesPort && as.NodeRank == 0 {
		if p.hold, port, err = holdPort(); err != nil {
			return nil, 0, err
		}
	}
	return p, port, nil
}

// planFor resolves the ranks' commands once the port is known.
func (t *try) planFor(port int) ([]shim.Rank, error) {
	if t.plan == nil { // prepared in this agent's previous life
		who, err := t.a.lookup(t.a.ctx, t.assignment.Spec.User)
		if err != nil {
			return nil, err
		}
		t.plan = &prepared{who: who}
	}
	plans, err := t.a.explain(*t.assignment, t.plan.who, port)
	if err != nil {
		return nil, err
	}
	st := t.assignment.Spec.MainStage()
	ranks := make([]shim.Rank, len(plans))
	for i, p := range plans {
		env := make([]string, len(p.Env))
		for j, s := range p.Env {
			env[j] = s.Name + "=" + s.Value
		}
		ranks[i] = shim.Rank{Rank: p.Rank, LocalRank: i, Argv: p.Argv, Env: env, Dir: st.Workdir}
	}
	return ranks, nil
}

// Explain is a dry run: what prepare would say, and what each local rank would
// be exec'd with. The port is not known before a start and shows as 0.
func (a *Agent) Explain(ctx context.Context, as launcher.Assignment) ([]launcher.RankPlan, error) {
	plan, _, err := a.check(ctx, as)
	if plan != nil && plan.hold != nil {
		plan.hold.Close()
	}
	who, lookErr := a.lookup(ctx, as.Spec.User)
	if lookErr != nil {
		return nil, lookErr
	}
	plans, explainErr := a.explain(as, who, 0)
	return plans, errors.Join(err, explainErr)
}

// explain gives each local rank's command and environment: the user's
// surroundings, then what the hardware calls for, then what the workload and
// the user set. The later wins.
func (a *Agent) explain(as launcher.Assignment, who login, port int) ([]launcher.RankPlan, error) {
	fabric, err := a.cfg.Fabric(as)
	if err != nil {
		return nil, fmt.Errorf("work out the fabric environment: %w", err)
	}
	st := as.Spec.MainStage()
	plans := make([]launcher.RankPlan, as.Ranks)
	for i := range plans {
		seat := as.Seat(i, port)
		env := newEnviron(append(who.settings(), fabric...))
		for _, v := range st.Env {
			text, err := seat.Resolve(v.Value)
			if err != nil {
				return nil, fmt.Errorf("variable %s: %w", v.Name, err)
			}
			env.set(launcher.Setting{Name: v.Name, Value: text, Source: v.Source})
		}
		argv, err := seat.Argv(*st)
		if err != nil {
			return nil, err
		}
		plans[i] = launcher.RankPlan{Rank: seat.Rank, Argv: argv, Env: env.settings}
	}
	return plans, nil
}

// environ keeps one setting a name, in the order in which the names first
// came: getenv finds the first of two, so there must not be two.
type environ struct {
	settings []launcher.Setting
	at       map[string]int
}

func newEnviron(first []launcher.Setting) *environ {
	e := &environ{at: map[string]int{}}
	for _, s := range first {
		e.set(s)
	}
	return e
}

func (e *environ) set(s launcher.Setting) {
	if i, ok := e.at[s.Name]; ok {
		e.settings[i] = s
		return
	}
	e.at[s.Name] = len(e.settings)
	e.settings = append(e.settings, s)
}

func isDir(path string) error {
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("not found here: create it on every node, or choose another with --workdir")
	case err != nil:
		return errors.Unwrap(err)
	case !fi.IsDir():
		return errors.New("is no directory")
	}
	return nil
}

func isFile(path string) error {
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("not found here: copy it to every node")
	case err != nil:
		return errors.Unwrap(err)
	case fi.IsDir():
		return errors.New("is a directory")
	}
	return nil
}

// findProgram looks for a program as the shim will: by the rank's PATH, or
// relative to its working directory.
func findProgram(program, workdir string, env []launcher.Setting) error {
	if strings.Contains(program, "/") {
		path := program
		if !filepath.IsAbs(path) {
			path = filepath.Join(workdir, path)
		}
		return runnable(program, path)
	}
	search := ""
	for _, s := range env {
		if s.Name == "PATH" {
			search = s.Value
		}
	}
	for _, d := range filepath.SplitList(search) {
		if !filepath.IsAbs(d) {
			d = filepath.Join(workdir, d)
		}
		if runnable(program, filepath.Join(d, program)) == nil {
			return nil
		}
	}
	return fmt.Errorf("program %q: not found in PATH (%s): install it on this node, or name it by its full path", program, search)
}

func runnable(program, path string) error {
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("program %q: not found: install it on this node", program)
	case err != nil:
		return fmt.Errorf("program %q: %w", program, errors.Unwrap(err))
	case fi.IsDir():
		return fmt.Errorf("program %q: is a directory", program)
	case fi.Mode()&0o111 == 0:
		return fmt.Errorf("program %q: not executable: chmod +x it", program)
	}
	return nil
}

// holdPort finds a port that nothing on this node holds, and holds it until
// the start. It starts at a random place: two generations in a row get
// different ports, so that a rank of the older one cannot answer for the newer.
func holdPort() (net.Listener, int, error) {
	const n = lastPort - firstPort + 1
	from := rand.IntN(n)
	for i := range n {
		port := firstPort + (from+i)%n
		// Every address, as torch's store itself listens on all of them.
		if l, err := net.Listen("tcp", ":"+strconv.Itoa(port)); err == nil {
			return l, port, nil
		}
	}
	return nil, 0, fmt.Errorf("no free port from %d to %d: `ss -ltnp` shows who holds them", firstPort, lastPort)
}

func portPath(dir string) string { return filepath.Join(dir, "port.json") }

func writePort(dir string, port int) error { return writeJSON(portPath(dir), port) }

func readPort(dir string) int {
	var port int
	if readJSON(portPath(dir), &port) != nil {
		return 0
	}
	return port
}
