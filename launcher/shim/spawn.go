package shim

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

// SelfExe is the running program itself, even after its file was replaced: a shim has the
// version of the agent that started it.
const SelfExe = "/proc/self/exe"

// A Go program prepares for every processor of the machine: with 20 that is 1 to 1.5 ms of
// processor time at each start. A shim needs one beside each exec that hangs; what becomes
// a rank needs one.
const (
	shimProcessors    = 4
	confineProcessors = 1
)

// processors limits a program of ours to n of them.
func processors(n int) string { return fmt.Sprintf("GOMAXPROCS=%d", min(n, runtime.NumCPU())) }

// tryArg instead of DIR makes the shim's program end at once with 0: it runs here.
const tryArg = "@try"

// tryWait bounds that.
const tryWait = 10 * time.Second

// commName is what a shim is called in `ps -o comm` and in the kernel's log, whatever file
// it was started from. It must not be the agent's name.
const commName = "sparkrun-shim"

// Seal puts a shim's program into a file in memory that nobody can change any more, and
// tries it: a machine may forbid that (vm.memfd_noexec, a security module). path is for
// Spawn, as long as the file is open; a shim that runs keeps its program without it. It is
// no file on a disk because /run is often mounted noexec, and an upgrade replaces all else.
func Seal(ctx context.Context, program []byte) (f *os.File, path string, err error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(commName, flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3, where all of them can be executed
		fd, err = unix.MemfdCreate(commName, flags)
	}
	if err != nil {
		return nil, "", fmt.Errorf("make a file in memory: %w", err)
	}
	f = os.NewFile(uintptr(fd), commName)
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if _, err := f.Write(program); err != nil {
		return nil, "", fmt.Errorf("write the shim's program: %w", err)
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS,
		unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	if err != nil {
		return nil, "", fmt.Errorf("seal the shim's program: %w", err)
	}
	// By our PID, not by self: a child that starts has moved its descriptors about.
	path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)
	ctx, cancel := context.WithTimeout(ctx, tryWait)
	defer cancel()
	try := exec.CommandContext(ctx, path)
	try.Args = []string{"sparkrun", "shim", tryArg}
	try.Env = []string{processors(shimProcessors)}
	try.Dir = "/"
	if err := try.Run(); err != nil {
		return nil, "", fmt.Errorf("try the shim's program: %w", err)
	}
	return f, path, nil
}

// Program is how shims are started.
type Program struct {
	Exe string // run as `sparkrun shim DIR`: SelfExe, or what Seal gives
	// Scope moves a shim, while it comes up, to where it outlives who started it; nil: it stays. A shim that cannot
	// be moved runs all the same.
	Scope func(ctx context.Context, name string, pid int)
}

// Spawn starts a shim for dir, in a session of its own, and returns when it listens. dir is made, with mode 0700, if it is
// missing, and must be on a local file system.
//
// There is at most one shim per dir, ever: if one runs, Spawn attaches to it and cfg is not
// used; if one has died after it got a start, the error is ErrMayHaveRun. If ctx ends
// first, nothing was exec'd and no shim is left.
func Spawn(ctx context.Context, exe Program, dir string, cfg Config) (*Client, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("spawn shim %s: %w", cfg.Key, err)
	}
	c, err := launchOrAttach(ctx, exe, dir, cfg)
	if errors.Is(err, ErrGone) { // the other shim exited between our two looks
		c, err = launchOrAttach(ctx, exe, dir, cfg)
	}
	if err != nil {
		return nil, fmt.Errorf("spawn shim %s: %w", cfg.Key, err)
	}
	if cfg.DieWithClient {
		if err := c.hold(ctx); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func launchOrAttach(ctx context.Context, exe Program, dir string, cfg Config) (*Client, error) {
	status, reaped, err := launch(ctx, exe, dir, cfg)
	if err != nil {
		return nil, err
	}
	switch code, text, _ := strings.Cut(status, " "); code {
	case readyOK:
		return &Client{dir: dir, key: cfg.Key, reaped: reaped}, nil
	case readyHeld:
		<-reaped // ours is exiting
		c, err := Attach(ctx, dir)
		if err == nil && c.key != cfg.Key {
			return nil, fmt.Errorf("folder %s belongs to %s", dir, c.key)
		}
		return c, err
	default:
		return nil, fault{code, text}.err()
	}
}

// launch runs the process and returns its status once it is up. The channel closes when the
// process has been reaped: it is our child while we live, and init's afterwards.
func launch(ctx context.Context, exe Program, dir string, cfg Config) (status string, reaped <-chan struct{}, err error) {
	config, err := marshal(cfg)
	if err != nil {
		return "", nil, err
	}
	var opened []*os.File
	defer func() {
		for _, f := range opened {
			f.Close()
		}
	}()
	pipe := func() (r, w *os.File) {
		if err == nil {
			r, w, err = os.Pipe()
			opened = append(opened, r, w)
		}
		return r, w
	}
	in, configW := pipe()
	readyR, readyW := pipe()
	if err != nil {
		return "", nil, err
	}
	log, err := os.OpenFile(filepath.Join(dir, logName), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return "", nil, err
	}
	opened = append(opened, log)
	p, err := os.StartProcess(exe.Exe, []string{"sparkrun", "shim", dir}, &os.ProcAttr{
		Dir:   "/",
		Env:   []string{processors(shimProcessors)}, // a rank's environment is sent whole; the shim needs nothing else
		Files: []*os.File{in, log, log, readyW},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return "", nil, err
	}
	done := make(chan struct{})
	go func() { // joined by done: Release waits for it
		_, _ = p.Wait()
		close(done)
	}()
	in.Close()
	readyW.Close() // so that its death is the end of the pipe
	stop := context.AfterFunc(ctx, func() {
		_ = readyR.SetReadDeadline(time.Unix(1, 0))
		_ = configW.SetWriteDeadline(time.Unix(1, 0))
	})
	defer stop()
	if exe.Scope != nil && cfg.Cgroup != "" {
		exe.Scope(ctx, scopeOf(cfg.Cgroup), p.Pid)
	}
	_, werr := configW.Write(config) // where it is now it stays
	configW.Close()
	line, err := bufio.NewReader(readyR).ReadString('\n')
	switch {
	case err == nil:
		return strings.TrimSuffix(line, "\n"), done, nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.Is(err, io.EOF):
		err = errors.Join(fmt.Errorf("it died during its start: see %s", log.Name()), werr)
	}
	_ = p.Kill()
	<-done
	return "", nil, err
}

// Attach finds the shim of dir again, for example after a restart of the agent. ErrGone:
// none runs there; Replay says how far it came.
func Attach(ctx context.Context, dir string) (*Client, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("attach to shim: %w", err)
	}
	c := &Client{dir: dir}
	resp, err := c.call(ctx, request{Op: opHello})
	if errors.Is(err, ErrGone) && ctx.Err() == nil {
		// A shim that is coming up counts as running.
		if err := awaitSpawn(ctx, dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("attach to shim in %s: %w", dir, err)
		}
		resp, err = c.call(ctx, request{Op: opHello})
	}
	if err != nil {
		return nil, fmt.Errorf("attach to shim in %s: %w", dir, err)
	}
	if resp.Hello == nil {
		return nil, fmt.Errorf("attach to shim in %s: %w: an empty hello", dir, ErrRefused)
	}
	c.key = resp.Hello.Key
	return c, nil
}

// Client talks to one shim. Its methods may be called from several goroutines at once; each
// uses a connection of its own.
type Client struct {
	dir    string
	key    launcher.Key
	held   net.Conn        // DieWithClient: as long as this is open
	reaped <-chan struct{} // closed once our child is gone; nil: it is not ours
}
