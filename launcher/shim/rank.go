package shim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
)

// markName is the one variable that the shim adds to a rank's environment.
const markName = "SPARKRUN_GANG"

// rank is one Rank from fork to exit. Only the attempt's loop touches it.
type rank struct {
	Rank
	pid    int
	exit   *launcher.Exit // set at waitpid
	died   time.Time      // when that was
	told   bool           // Exited is in the journal
	mpi    mpiRank
	killed bool // its leftovers were killed, so that its output may end
	plumbing
	open      int        // streams that have not ended
	contained *contained // nil: on the host
	// removed: the engine was asked to remove its container, by name.
	removed bool
}

func (r *rank) running() bool { return r.pid > 0 && r.exit == nil }

// spawned is the result of one fork and exec.
type spawned struct {
	pid       int
	ticks     uint64
	at        time.Time
	err       error
	contained *contained
	plumbing
}

// spawnRank makes the pipes and execs one rank in a session of its own, so that neither a
// terminal's nor the shim's signals reach it, and so that its session's number finds its
// children.
func spawnRank(r Rank, cfg Config, cg *cgroup, mark string, to [2]sink) spawned {
	p, err := plumb(r, cfg.UID, to)
	if err != nil {
		return spawned{at: time.Now(), err: err}
	}
	pid, c, err := execRank(r, cfg, cg, mark, p)
	at := time.Now()
	p.closeChild()
	if err != nil {
		p.close()
		if !errors.Is(err, ErrRefused) { // the container refused the command
			err = &execError{err}
		}
		return spawned{at: at, err: err}
	}
	b := spawned{pid: pid, at: at, contained: c, plumbing: p}
	if p, ok := proc.Here.Stat(pid); ok {
		b.ticks = p.Ticks
	}
	return b
}

// execError is the error of a command that could not be exec'd: not the shim's fault.
type execError struct{ error }

func (e *execError) Unwrap() error { return e.error }

func execRank(r Rank, cfg Config, cg *cgroup, mark string, p plumbing) (int, *contained, error) {
	sys := &syscall.SysProcAttr{Setsid: true, Setctty: r.TTY != nil} // Ctty 0: its stdin
	if cfg.UID != nil {
		sys.Credential = &syscall.Credential{Uid: *cfg.UID, Gid: *cfg.GID, Groups: cfg.Groups}
	}
	attr := &syscall.ProcAttr{Dir: r.Dir, Env: append(r.Env[:len(r.Env):len(r.Env)], markName+"="+mark), Sys: sys}
	for _, fd := range p.child {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	if r.Container != nil {
		return forkContained(r, cg, mark, attr, p.theirs)
	}
	paths, err := lookPath(r)
	if err != nil {
		return 0, nil, err
	}
	if !r.RankOptions.IsZero() || len(r.CPUs) > 0 {
		pid, err := forkConfined(r, paths, cfg, cg, attr, p.theirs)
		return pid, nil, err
	}
	withPMI(attr, p.theirs)
	var pid int
	err = firstOf(paths, func(path string) (err error) {
		pid, err = cg.fork(sys, func() (int, error) { return syscall.ForkExec(path, r.Argv, attr) })
		return err
	})
	if err != nil {
		return 0, nil, explainExec(r, paths[0], cfg.UID, err)
	}
	return pid, nil, nil
}

// firstOf executes the first program that the rank's user may, as execvp does: which one that is only the kernel
// knows, by all of the user's credentials. Where none can be, the error is that of the first.
func firstOf(paths []string, execute func(path string) error) (first error) {
	for _, path := range paths {
		err := execute(path)
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
		if err != syscall.EACCES && err != syscall.ENOENT && err != syscall.ENOTDIR {
			return err
		}
	}
	return first
}

// lookPath finds argv[0] in the rank's own PATH, as the rank's shell would: all that it may be, in their order. A
// folder that is closed to this process (FUSE; NFS, where root is nobody) may be open to the user.
func lookPath(r Rank) (paths []string, err error) {
	name := r.Argv[0]
	if strings.Contains(name, "/") {
		return []string{name}, nil
	}
	path := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	for _, v := range r.Env {
		if p, ok := strings.CutPrefix(v, "PATH="); ok {
			path = p
			break // getenv takes the first too
		}
	}
	found := fs.ErrNotExist
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(r.Dir, dir)
		}
		file := filepath.Join(dir, name)
		st, err := os.Stat(file)
		switch {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR), err == nil && st.IsDir():
		case err == nil && st.Mode()&0o111 == 0:
			found = fs.ErrPermission
		default:
			paths = append(paths, file)
		}
	}
	switch {
	case len(paths) > 0:
		return paths, nil
	case found == fs.ErrPermission:
		return nil, fmt.Errorf("exec %q: permission denied: make it executable", name)
	}
	return nil, fmt.Errorf("exec %q: %w", name, errNoProgram)
}

var errNoProgram = errors.New("not found")

// explainExec says which part of "no such file" or "permission denied" it was.
func explainExec(r Rank, path string, uid *uint32, err error) error {
	if st, serr := os.Stat(r.Dir); serr != nil && errors.Is(serr, fs.ErrNotExist) || serr == nil && !st.IsDir() {
		return fmt.Errorf("exec %q: working folder %q: not found", r.Argv[0], r.Dir)
	}
	who := ""
	if uid != nil {
		who = fmt.Sprintf(" for uid %d", *uid)
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(r.Dir, path)
	}
	switch err {
	case syscall.ENOENT:
		if _, serr := os.Stat(path); serr == nil {
			return fmt.Errorf("exec %q: its interpreter (the #! line, or the loader) is not found", r.Argv[0])
		}
		return fmt.Errorf("exec %q: %w", r.Argv[0], errNoProgram)
	case syscall.EACCES:
		return fmt.Errorf("exec %q in %q: permission denied%s", r.Argv[0], r.Dir, who)
	case syscall.ENOEXEC:
		return fmt.Errorf("exec %q: not a program for this machine (no #! line, or another architecture)", r.Argv[0])
	case syscall.EAGAIN:
		return fmt.Errorf("exec %q: the limit of processes%s is reached (ulimit -u)", r.Argv[0], who)
	}
	return fmt.Errorf("exec %q: %w", r.Argv[0], err)
}

// exitOf converts waitpid's status.
func exitOf(ws unix.WaitStatus, byUs bool) *launcher.Exit {
	if ws.Signaled() {
		return &launcher.Exit{Signal: int(ws.Signal()), ByUs: byUs}
	}
	return &launcher.Exit{Code: ws.ExitStatus(), ByUs: byUs}
}

// cut stops reading its output.
func (r *rank) cut() {
	for _, s := range r.streams {
		s.cut()
	}
}
