package container

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
)

const (
	// handWait bounds the connection to the outer half, which listened before there was a
	// container.
	handWait = 30 * time.Second
	// leftWait is given to what the program leaves behind, as in the shim.
	leftWait = 2 * time.Second
	// sharedWait is given to another container's processes in this PID namespace, which are
	// looked for again each sharedLook: they have a grace of their own, at the end of which
	// the shim kills them.
	sharedWait = time.Minute
	sharedLook = 200 * time.Millisecond
)

// inner is the container's entrypoint. Its exit code is for `docker ps` only.
type inner struct {
	line  *line
	child int // the program, leader of its session
	sigs  chan os.Signal
	chld  chan os.Signal
	lost  chan struct{} // closed when the outer half is gone
	sent  chan syscall.Signal
	// stopped: the engine has told the container to end. Only watch touches it.
	stopped bool

	mu       sync.Mutex // held from a fork until the child is entered here
	sessions map[int]*line
}

// runInner waits for a command, runs it and reports its exit. If the socket has no
// listener, nothing runs.
func runInner() int {
	in := &inner{
		sigs: make(chan os.Signal, 16), chld: make(chan os.Signal, 1),
		lost: make(chan struct{}), sent: make(chan syscall.Signal, 16), sessions: map[int]*line{},
	}
	signal.Notify(in.sigs, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	signal.Notify(in.chld, syscall.SIGCHLD)
	l, err := dialHost(handName)
	if err != nil {
		fmt.Fprintf(os.Stderr, "sparkrun: no command to run: %v\n", err)
		return launcher.ExitOwnFailure
	}
	in.line = l
	defer in.line.Close()
	cmd, fds, err := in.line.take()
	if err != nil {
		fmt.Fprintf(os.Stderr, "sparkrun: receive the command: %v\n", err)
		return launcher.ExitOwnFailure
	}
	// Orphans of the program become our children, so that we know when none are left.
	if err = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err == nil {
		in.child, err = begin(cmd, fds)
	}
	for _, fd := range fds {
		unix.Close(fd) // else the output would not end with the program
	}
	if err != nil {
		in.line.refuse(err)
		return launcher.ExitOwnFailure
	}
	if in.line.enc.Encode(toOuter{Spawned: true}) != nil {
		in.signalAll(unix.SIGKILL)
		return launcher.ExitOwnFailure
	}
	go in.listen() // ends with the connection, at the latest with the process
	return in.watch()
}

// listen passes on messages of the outer half.
func (in *inner) listen() {
	defer close(in.lost)
	for {
		var m toInner
		if in.line.dec.Decode(&m) != nil {
			return
		}
		if m.Session != "" {
			go in.runSession(m.Session) // ends with the exec session
			continue
		}
		in.sent <- syscall.Signal(m.Signal)
	}
}

// dialHost connects to a socket of the host.
func dialHost(name string) (*line, error) {
	d := net.Dialer{Timeout: handWait}
	c, err := d.Dial("unix", insideHand+"/"+name)
	if err != nil {
		return nil, err
	}
	return newLine(c.(*net.UnixConn)), nil
}

// refuse says why a command will never run.
func (l *line) refuse(err error) {
	code := 126
	if errors.Is(err, errNoProgram) {
		code = 127
	}
	_ = l.enc.Encode(toOuter{Error: err.Error(), Code: code})
}

// runSession runs the command of an exec session beside the program, until the command ends or
// the session's outer half does.
func (in *inner) runSession(name string) {
	l, err := dialHost(name)
	if err != nil {
		return // the session is gone
	}
	defer l.Close()
	cmd, fds, err := l.take()
	if err != nil {
		return
	}
	in.mu.Lock()
	pid, err := begin(cmd, fds)
	if err == nil {
		in.sessions[pid] = l
		_ = l.enc.Encode(toOuter{Spawned: true}) // before its exit, which may have come
	} else {
		l.refuse(err)
	}
	in.mu.Unlock()
	for _, fd := range fds {
		unix.Close(fd)
	}
	for err == nil {
		var m toInner
		if l.dec.Decode(&m) != nil { // the command has ended and its exit was sent, or the session's outer half is gone
			in.killSession(pid)
			return
		}
		in.toSession(pid, func() { _ = unix.Kill(-pid, syscall.Signal(m.Signal)) })
	}
}

// toSession acts on an exec session that has not been reaped: until then its PID is its
// own.
func (in *inner) toSession(pid int, do func()) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.sessions[pid] != nil {
		do()
	}
}

// killSession kills an exec session whose end nobody waits for any more, with the jobs of its
// shell.
func (in *inner) killSession(pid int) {
	in.toSession(pid, func() {
		for _, p := range inSession(pid) {
			_ = unix.Kill(p, unix.SIGKILL)
		}
		_ = unix.Kill(pid, unix.SIGKILL)
	})
}

// inSession lists the processes of a session, from this container's /proc.
func inSession(session int) (pids []int) {
	all, _ := proc.Here.All()
	for _, p := range all {
		if p.Session == session {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// watch returns when nothing but docker-init is left in the container.
func (in *inner) watch() int {
	status := -1 // of the program, once it has ended
	lost := in.lost
	var late <-chan time.Time
	var ended time.Time
	for {
		exited, childless := in.reap()
		if exited != nil {
			// Sent at once: processes that stay behind must not make this rank's end look
			// later than it was.
			_ = in.line.enc.Encode(toOuter{Exit: exited, Outside: in.stopped})
			status, lost, late, ended = exited.Status(), nil, time.After(leftWait), time.Now()
		}
		if childless && status >= 0 && !shared() {
			return status
		}
		select {
		case <-in.chld:
		case s := <-in.sent:
			in.pass(s)
		case s := <-in.sigs: // from docker-init: the engine stops the container
			in.stopped = in.stopped || s == unix.SIGTERM
			in.pass(s.(syscall.Signal))
		case <-late:
			if !shared() || time.Since(ended) > sharedWait {
				return status // and the kernel ends all processes that are left
			}
			late = time.After(sharedLook)
		case <-lost:
			in.signalAll(unix.SIGKILL)
			return launcher.ExitOwnFailure
		}
	}
}

// shared reports whether another container's inner half is in our PID namespace
// (Spec.PIDsOf): the kernel would end it with the first process, before it has had its
// grace, and nobody would know why. The other container has no docker-init, and waits for
// nobody; a `docker exec` is no other container.
func shared() bool {
	if os.Getppid() != 1 {
		return false
	}
	for _, pid := range proc.Here.PIDs() {
		if pid == 1 || pid == os.Getpid() {
			continue
		}
		if args := proc.Here.Args(pid); len(args) > 2 && slices.Equal(args[:3], []string{InsideProgram, "shim", InnerArg}) {
			return true
		}
	}
	return false
}

// pass sends TERM to all processes, for it means the end; any other signal goes to the
// program.
func (in *inner) pass(s syscall.Signal) {
	if s == unix.SIGTERM {
		in.signalAll(s)
		return
	}
	_ = unix.Kill(-in.child, s)
}

// signalAll signals the program, the exec sessions, and all their descendants: orphans are
// inherited by this process. The PID namespace may have another container's processes too
// (Spec.PIDsOf).
func (in *inner) signalAll(s syscall.Signal) {
	for range 10 { // KILL also hits what is forked meanwhile; TERM is sent once
		all, _ := proc.Here.All()
		all = proc.Below(all, []int{os.Getpid()}, nil)
		for _, p := range all {
			_ = unix.Kill(p.PID, s)
		}
		if s != unix.SIGKILL || len(all) == 0 {
			return
		}
	}
}

func (in *inner) reap() (exited *launcher.Exit, childless bool) {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG|unix.WALL, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return exited, err == unix.ECHILD
		case pid == 0:
			return exited, false
		case pid == in.child:
			exited = exitOf(ws)
		default:
			go in.reportSession(pid, exitOf(ws)) // it waits for an exec session that is being started, which may hang
		}
	}
}

func exitOf(ws unix.WaitStatus) *launcher.Exit {
	if ws.Signaled() {
		return &launcher.Exit{Signal: int(ws.Signal())}
	}
	return &launcher.Exit{Code: ws.ExitStatus()}
}

// reportSession reports the exit of an exec session, if the process was one.
func (in *inner) reportSession(pid int, exit *launcher.Exit) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if l := in.sessions[pid]; l != nil {
		delete(in.sessions, pid)
		_ = l.enc.Encode(toOuter{Exit: exit})
	}
}

// begin execs the command in a session of its own.
func begin(cmd Command, fds []int) (int, error) {
	argv, env := texts(cmd.Argv), overlaid(os.Environ(), texts(cmd.Env))
	if dir := string(cmd.Dir); dir != "" {
		_ = os.Chdir(dir) // a relative name is looked up there; a missing folder is reported below
	}
	path, err := find(argv[0], env)
	if err != nil {
		return 0, err
	}
	attr := &syscall.ProcAttr{Dir: string(cmd.Dir), Env: env, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: cmd.TTY}}
	for _, fd := range fds {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	pid, err := syscall.ForkExec(path, argv, attr)
	if err == nil {
		return pid, nil
	}
	if dir := string(cmd.Dir); dir != "" {
		if fi, serr := os.Stat(dir); serr != nil || !fi.IsDir() {
			return 0, fmt.Errorf("exec %q: working folder %q: not in the container: mount it, or choose another "+
				"with --workdir", argv[0], dir)
		}
	}
	switch {
	case errors.Is(err, syscall.ENOENT):
		return 0, fmt.Errorf("exec %q: its interpreter (the #! line, or the loader) is not in the image", argv[0])
	case errors.Is(err, syscall.ENOEXEC):
		return 0, fmt.Errorf("exec %q: not a program for this machine (no #! line, or another architecture)", argv[0])
	}
	return 0, fmt.Errorf("exec %q in the container: %w", argv[0], err)
}

var errNoProgram = errors.New("not found in the container")

// find looks for the program with the PATH that it will have itself.
func find(name string, env []string) (string, error) {
	own := os.Getenv("PATH")
	defer func() { _ = os.Setenv("PATH", own) }()
	for _, v := range env {
		if p, ok := strings.CutPrefix(v, "PATH="); ok {
			_ = os.Setenv("PATH", p)
		}
	}
	path, err := exec.LookPath(name)
	switch {
	case err == nil || errors.Is(err, exec.ErrDot):
		return path, nil
	case errors.Is(err, fs.ErrPermission):
		return "", fmt.Errorf("exec %q: permission denied: it is not executable for uid %d in the image", name, os.Getuid())
	case strings.Contains(name, "/") && !errors.Is(err, fs.ErrNotExist):
		var e *exec.Error
		errors.As(err, &e)
		return "", fmt.Errorf("exec %q in the container: %w", name, e.Err)
	case strings.Contains(name, "/"):
		return "", fmt.Errorf("exec %q: %w", name, errNoProgram)
	}
	return "", fmt.Errorf("exec %q: %w: PATH is %s", name, errNoProgram, os.Getenv("PATH"))
}

// overlaid merges over into under, each variable once.
func overlaid(under, over []string) []string {
	given := map[string]bool{}
	for _, v := range over {
		name, _, _ := strings.Cut(v, "=")
		given[name] = true
	}
	var out []string
	for _, v := range under {
		if name, _, _ := strings.Cut(v, "="); !given[name] {
			out = append(out, v)
		}
	}
	return append(out, over...)
}

func texts(bs [][]byte) []string {
	out := make([]string, len(bs))
	for i, b := range bs {
		out[i] = string(b)
	}
	return out
}
