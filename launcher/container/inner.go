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
	// handWait bounds the way to the outer half, which listened before there was a
	// container.
	handWait = 30 * time.Second
	// leftWait is given to what the program leaves behind: as in the shim.
	leftWait = 2 * time.Second
	// sharedWait is given to another container's processes in this one's PID namespace, which are looked
	// for again each sharedLook: they have their own grace, at the end of which the shim kills them.
	sharedWait = time.Minute
	sharedLook = 200 * time.Millisecond
)

// inner is the container's entrypoint. Its exit code is for `docker ps` alone.
type inner struct {
	line  *line
	child int // the program, leader of its session
	sigs  chan os.Signal
	chld  chan os.Signal
	lost  chan struct{} // closed when the outer half is gone
	sent  chan syscall.Signal
	// stopped: the engine has told the container to end. Of watch alone.
	stopped bool

	mu       sync.Mutex // from a fork until it is entered here
	sessions map[int]*line
}

// runInner waits for a command, runs it and tells how it ended. Nobody at the
// socket: nothing runs.
func runInner() int {
	in := &inner{
		sigs: make(chan os.Signal, 16), chld: make(chan os.Signal, 1),
		lost: make(chan struct{}), sent: make(chan syscall.Signal, 16), sessions: map[int]*line{},
	}
	signal.Notify(in.sigs, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	signal.Notify(in.chld, syscall.SIGCHLD)
	l, err := call(handName)
	if err != nil {
		fmt.Fprintf(os.Stderr, "sparkrun: nobody hands over a command: %v\n", err)
		return launcher.ExitOwnFailure
	}
	in.line = l
	defer in.line.Close()
	cmd, fds, err := in.line.take()
	if err != nil {
		fmt.Fprintf(os.Stderr, "sparkrun: take over a command: %v\n", err)
		return launcher.ExitOwnFailure
	}
	// What the program leaves comes to us, so that we know when nobody is left.
	if err = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err == nil {
		in.child, err = begin(cmd, fds)
	}
	for _, fd := range fds {
		unix.Close(fd) // else its output would not end with it
	}
	if err != nil {
		in.line.refuse(err)
		return launcher.ExitOwnFailure
	}
	if in.line.enc.Encode(toOuter{Spawned: true}) != nil {
		in.everybody(unix.SIGKILL)
		return launcher.ExitOwnFailure
	}
	go in.listen() // ends with the connection, at the latest with the process
	return in.watch()
}

// listen passes on what the outer half says.
func (in *inner) listen() {
	defer close(in.lost)
	for {
		var m toInner
		if in.line.dec.Decode(&m) != nil {
			return
		}
		if m.Session != "" {
			go in.welcome(m.Session) // ends with the exec session
			continue
		}
		in.sent <- syscall.Signal(m.Signal)
	}
}

// call connects to one who listens on the host.
func call(name string) (*line, error) {
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

// welcome runs an exec session's command beside the program, until it ends, or who stands for it on the host does.
func (in *inner) welcome(name string) {
	l, err := call(name)
	if err != nil {
		return // it has gone
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
		if l.dec.Decode(&m) != nil { // it has ended, and was told of it, or who stands for it has
			in.dismiss(pid)
			return
		}
		in.toSession(pid, func() { _ = unix.Kill(-pid, syscall.Signal(m.Signal)) })
	}
}

// toSession does something to an exec session that has not ended: its number is its own until it is reaped.
func (in *inner) toSession(pid int, do func()) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.sessions[pid] != nil {
		do()
	}
}

// dismiss ends an exec session whose end nobody waits for any more, with the jobs of its shell.
func (in *inner) dismiss(pid int) {
	in.toSession(pid, func() {
		for _, p := range inSession(pid) {
			_ = unix.Kill(p, unix.SIGKILL)
		}
		_ = unix.Kill(pid, unix.SIGKILL)
	})
}

// inSession lists who is in a session, as far as this container's /proc tells.
func inSession(session int) (pids []int) {
	all, _ := proc.Here.All()
	for _, p := range all {
		if p.Session == session {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// watch goes on until nobody is left in the container but docker-init.
func (in *inner) watch() int {
	status := -1 // of the program, once it has one
	lost := in.lost
	var late <-chan time.Time
	var ended time.Time
	for {
		exited, childless := in.reap()
		if exited != nil {
			// Told at once: whoever stays behind must not make this rank's end look later
			// than it was.
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
		case s := <-in.sigs: // of docker-init: the engine stops the container
			in.stopped = in.stopped || s == unix.SIGTERM
			in.pass(s.(syscall.Signal))
		case <-late:
			if !shared() || time.Since(ended) > sharedWait {
				return status // and with us all that is left
			}
			late = time.After(sharedLook)
		case <-lost:
			in.everybody(unix.SIGKILL)
			return launcher.ExitOwnFailure
		}
	}
}

// shared tells whether another container's inner half is in our PID namespace (Spec.PIDsOf): the kernel ends
// it with the first process, before it has had its grace, or anybody knows why. The other container has no
// docker-init, and waits for nobody; a `docker exec` is no other container.
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

// pass gives TERM to everybody, for it means the end; any other signal is the
// program's.
func (in *inner) pass(s syscall.Signal) {
	if s == unix.SIGTERM {
		in.everybody(s)
		return
	}
	_ = unix.Kill(-in.child, s)
}

// everybody is the program, the exec sessions, and all that came of them: this process is who inherits orphans.
// The PID namespace may have another container's processes too (Spec.PIDsOf).
func (in *inner) everybody(s syscall.Signal) {
	for range 10 { // who was forked meanwhile is KILLed, too; a TERM is said once
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
			go in.seeOff(pid, exitOf(ws)) // it waits for an exec session that is on its way in, and that may hang
		}
	}
}

func exitOf(ws unix.WaitStatus) *launcher.Exit {
	if ws.Signaled() {
		return &launcher.Exit{Signal: int(ws.Signal())}
	}
	return &launcher.Exit{Code: ws.ExitStatus()}
}

// seeOff tells an exec session's half how the exec session ended, if it was one.
func (in *inner) seeOff(pid int, exit *launcher.Exit) {
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
		_ = os.Chdir(dir) // where a relative name is looked for; that it is not there is told below
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
		return 0, fmt.Errorf("exec %q: no program for this machine (no #! line, or another architecture)", argv[0])
	}
	return 0, fmt.Errorf("exec %q in the container: %w", argv[0], err)
}

var errNoProgram = errors.New("not found in the container")

// find looks for the program by the PATH that it will have itself.
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

// overlaid puts over upon under, a variable once.
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
