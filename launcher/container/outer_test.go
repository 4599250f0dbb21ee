package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

var specs atomic.Int32

// spec is a rank of uid's in the test's image.
func (r rig) spec(_ *testing.T, uid uint32) Spec {
	n := specs.Add(1)
	return Spec{
		Name: fmt.Sprintf("sparkrun-test.%d-0", n), Image: r.ImageID, UID: uid, GID: uid, Grace: 10 * time.Second,
		Mark: "SPARKRUN_GANG=test", Home: "/home/rank", CgroupParent: r.Group(), Program: r.Half, HandDir: fmt.Sprintf("%s/hand-%d", r.Dir, n),
	}
}

// sh is a command of the image's shell.
func sh(script string, env ...string) Command {
	c := Command{Argv: [][]byte{[]byte("sh"), []byte("-c"), []byte(script)}, Dir: []byte("/tmp")}
	for _, v := range env {
		c.Env = append(c.Env, []byte(v))
	}
	return c
}

// stand is an outer half, forked as a shim would.
type stand struct {
	t        *testing.T
	e        *Engine
	s        Spec
	cmd      *exec.Cmd
	in       io.WriteCloser
	out      *os.File // both streams
	answerIn *os.File
	Answer
}

// order starts one and tells it what to run.
func (r rig) order(t *testing.T, e *Engine, s Spec, c Command) *stand {
	t.Helper()
	st := &stand{t: t, e: e, s: s, cmd: exec.Command(r.Half, "shim", OuterArg)}
	orderR, orderW := pipe(t)
	answerR, answerW := pipe(t)
	outR, outW := pipe(t)
	inR, inW := pipe(t)
	st.in, st.out, st.answerIn = inW, outR, answerR
	st.cmd.Stdin, st.cmd.Stdout, st.cmd.Stderr = inR, outW, outW
	st.cmd.ExtraFiles = []*os.File{orderR, answerW}
	st.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := st.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*os.File{inR, orderR, answerW, outW} {
		f.Close()
	}
	t.Cleanup(func() {
		_ = st.cmd.Process.Kill()
		_ = st.cmd.Wait()
		if err := e.Remove(context.Background(), s.Name); err != nil {
			t.Error(err)
		}
	})
	if err := json.NewEncoder(orderW).Encode(Order{Socket: r.Socket, Spec: s, Command: c}); err != nil {
		t.Fatal(err)
	}
	orderW.Close()
	return st
}

// spawn is order, and its answer, which has to be that the program runs.
func (r rig) spawn(t *testing.T, e *Engine, s Spec, c Command) *stand {
	t.Helper()
	st := r.order(t, e, s, c)
	if st.awaitAnswer(); st.Error != "" || st.Init == 0 || st.Container == "" {
		t.Fatalf("answered %+v", st.Answer)
	}
	return st
}

func (st *stand) awaitAnswer() {
	st.t.Helper()
	_ = st.answerIn.SetReadDeadline(time.Now().Add(patience))
	if err := json.NewDecoder(st.answerIn).Decode(&st.Answer); err != nil {
		st.t.Fatalf("no answer came: %v", err)
	}
}

// read waits for the end of its output.
func (st *stand) read() string {
	st.t.Helper()
	_ = st.out.SetReadDeadline(time.Now().Add(patience))
	b, err := io.ReadAll(st.out)
	if err != nil {
		st.t.Fatalf("read output: %v, after %q", err, b)
	}
	return string(b)
}

// awaitLine waits for one line of its output.
func (st *stand) awaitLine(want string) {
	st.t.Helper()
	_ = st.out.SetReadDeadline(time.Now().Add(patience))
	var got []byte
	for one := make([]byte, 1); !strings.Contains(string(got), want+"\n"); got = append(got, one[0]) {
		if _, err := st.out.Read(one); err != nil {
			st.t.Fatalf("read output: %v, want a line %q, got %q", err, want, got)
		}
	}
}

// wait gives how it ended.
func (st *stand) wait() syscall.WaitStatus {
	st.t.Helper()
	stop := time.AfterFunc(patience, func() { _ = st.cmd.Process.Kill() })
	defer stop.Stop()
	var exit *exec.ExitError
	if err := st.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		st.t.Fatal(err)
	}
	return st.cmd.ProcessState.Sys().(syscall.WaitStatus)
}

// gone waits until the container's first process is, and with it all others.
func (st *stand) gone() {
	st.t.Helper()
	ctx, cancel := context.WithTimeout(st.t.Context(), patience)
	defer cancel()
	gone, err := whenGone(ctx, st.Init)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	if err != nil {
		st.t.Fatal(err)
	}
	if <-gone; ctx.Err() != nil {
		st.t.Errorf("the container lives on as PID %d", st.Init)
	}
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		w.Close()
	})
	return r, w
}

// A rank in a container is told apart from one of the host by nothing that the
// shim sees: its exit is the program's own, a code or a signal.
func TestExitIsTheProgramsOwn(t *testing.T) {
	r, e := open(t)
	for script, want := range map[string]struct {
		code   int
		signal syscall.Signal
	}{
		"exit 0":        {code: 0},
		"exit 3":        {code: 3},
		"exit 137":      {code: 137},
		"kill -KILL $$": {signal: syscall.SIGKILL},
		"kill -ABRT $$": {signal: syscall.SIGABRT},
		"kill -SEGV $$": {signal: syscall.SIGSEGV},
		"kill -TERM $$": {signal: syscall.SIGTERM},
		"sleep 1000":    {signal: syscall.SIGTERM}, // sent below
	} {
		t.Run(script, func(t *testing.T) {
			st := r.spawn(t, e, r.spec(t, 1234), sh(script))
			if script == "sleep 1000" {
				_ = st.cmd.Process.Signal(syscall.SIGTERM)
			}
			ws := st.wait()
			if ws.Signaled() != (want.signal != 0) || ws.Signaled() && ws.Signal() != want.signal || ws.Exited() && ws.ExitStatus() != want.code {
				t.Errorf("ended with %#x, want %+v; it wrote %q", ws, want, st.read())
			}
			st.gone()
		})
	}
}

func TestProgramGetsWhatARankGets(t *testing.T) {
	r, e := open(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "model"), []byte("weights\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := r.spec(t, 1234)
	s.Groups = []uint32{77}
	s.Mounts = []Mount{{Source: dir, Target: "/models", ReadOnly: true}}
	c := sh(`read word; echo word $word; echo to stderr >&2; id -u; id -g; id -G; pwd
echo $COLOUR $SHAPE $SECRET; ulimit -s; cat /models/model; touch /models/x || echo read only
touch $HOME/file && echo home; touch /run/sparkrun/hand/x || echo hand closed; grep NoNewPrivs /proc/self/status || cat /proc/self/status; cat /proc/1/cmdline | head -c 17`, "COLOUR=ours", "SECRET=s3cret", "HOME=/home/rank")
	st := r.spawn(t, e, s, c)
	if _, err := io.WriteString(st.in, "hello\n"); err != nil {
		t.Fatal(err)
	}
	out := st.read()
	for _, want := range []string{"word hello\n", "to stderr\n", "1234\n1234\n", "77", "\n/tmp\n", "ours image s3cret\n", "65536\nweights\n", "read only\n", "home\n", "hand closed\n", "NoNewPrivs:\t1\n", "/sbin/docker-init"} {
		if !strings.Contains(out, want) {
			t.Errorf("wants %q in\n%s", want, out)
		}
	}
	if ws := st.wait(); ws != 0 {
		t.Errorf("ended with %#x, want 0", ws)
	}
	var raw json.RawMessage
	if err := e.call(t.Context(), request{method: "GET", path: "/containers/" + st.Container + "/json"}, &raw); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(raw), "s3cret") || strings.Contains(string(raw), "COLOUR=ours") {
		t.Error("docker inspect shows the rank's environment")
	}
}

// slowHalf is a container whose inner half is the test itself: its own program only waits.
func (r rig) slowHalf(t *testing.T, e *Engine) (st *stand, inner *line) {
	t.Helper()
	s := r.spec(t, 0)
	s.Program = filepath.Join(t.TempDir(), "waits")
	if err := os.WriteFile(s.Program, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	st = r.order(t, e, s, sh("true"))
	for until := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("unix", filepath.Join(s.HandDir, handName))
		if err == nil {
			t.Cleanup(func() { c.Close() })
			return st, newLine(c.(*net.UnixConn))
		}
		if time.Now().After(until) {
			t.Fatal(err)
		}
	}
}

// A TERM that comes when the command has been handed over, and nobody has said yet that it runs, is the
// program's: what was begun is not told as something that never was.
func TestSignalBehindTheHandOver(t *testing.T) {
	r, e := open(t)
	st, inner := r.slowHalf(t, e)
	if _, fds, err := inner.take(); err != nil {
		t.Fatal(err)
	} else {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
	if err := st.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond) // that the signal comes before the answer is the test's input
	if err := inner.enc.Encode(toOuter{Spawned: true}); err != nil {
		t.Fatal(err)
	}
	if st.awaitAnswer(); st.Error != "" || st.Init == 0 {
		t.Fatalf("answered %+v", st.Answer)
	}
	var m toInner
	_ = inner.SetDeadline(time.Now().Add(patience))
	if err := inner.dec.Decode(&m); err != nil || m.Signal != int(syscall.SIGTERM) {
		t.Fatalf("%+v, %v, want the TERM passed on", m, err)
	}
	if err := inner.enc.Encode(toOuter{Exit: &launcher.Exit{Code: 9}}); err != nil {
		t.Fatal(err)
	}
	if ws := st.wait(); ws.ExitStatus() != 9 {
		t.Errorf("ended with %#x, want 9", ws)
	}
}

// Who dies with the command in hand may have run it.
func TestContainerEndsAtItsStart(t *testing.T) {
	r, e := open(t)
	st, inner := r.slowHalf(t, e)
	_, fds, err := inner.take()
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
	inner.Close()
	if st.awaitAnswer(); st.Ended || !strings.Contains(st.Error, "ended as its program began") {
		t.Errorf("answered %+v", st.Answer)
	}
	st.wait()
}

// A container that ends before it has asked for its command ran nothing.
func TestContainerEndsBeforeItsProgram(t *testing.T) {
	r, e := open(t)
	s := r.spec(t, 0)
	s.Program = filepath.Join(t.TempDir(), "ends")
	if err := os.WriteFile(s.Program, []byte("#!/bin/sh\nexit 4\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	st := r.order(t, e, s, sh("true"))
	if st.awaitAnswer(); st.Ended || !strings.Contains(st.Error, s.Name+" ended before its program began") {
		t.Errorf("answered %+v", st.Answer)
	}
	st.wait()
	if _, err := e.State(t.Context(), s.Name); !errors.Is(err, ErrNoContainer) {
		t.Errorf("its container: %v, want %v", err, ErrNoContainer)
	}
}

func TestSignals(t *testing.T) {
	r, e := open(t)
	st := r.spawn(t, e, r.spec(t, 1234), sh(`trap 'echo usr1' USR1; trap 'echo term; exit 7' TERM; (trap '' USR1; trap 'echo child' TERM; echo ready; while :; do sleep 0.1; done) & while :; do sleep 0.1; done`))
	st.awaitLine("ready")
	_ = st.cmd.Process.Signal(syscall.SIGUSR1)
	st.awaitLine("usr1")
	_ = st.cmd.Process.Signal(syscall.SIGTERM)
	if ws := st.wait(); ws.ExitStatus() != 7 {
		t.Errorf("ended with %#x, want 7: what its handler said", ws)
	}
	if out := st.read(); !strings.Contains(out, "child") {
		t.Errorf("TERM did not reach the child; it wrote %q", out)
	}
	st.gone() // though the child goes on
}

// What the outer half is for: with it goes all that it stands for.
func TestNobodyOutlivesTheOuterHalf(t *testing.T) {
	r, e := open(t)
	st := r.spawn(t, e, r.spec(t, 1234), sh(`trap '' TERM HUP; setsid sh -c 'trap "" TERM; echo deaf; sleep 1000' & sleep 1000`))
	st.awaitLine("deaf")
	if err := st.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	st.gone()
}

func TestContainerThatIsKilledFromOutside(t *testing.T) {
	r, e := open(t)
	st := r.spawn(t, e, r.spec(t, 1234), sh(`echo ready; sleep 1000`))
	st.awaitLine("ready")
	if err := syscall.Kill(st.Init, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	out := st.read()
	if ws := st.wait(); !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
		t.Errorf("ended with %#x, want by KILL", ws)
	}
	if !strings.Contains(out, st.s.Name+" was ended from outside") {
		t.Errorf("it wrote %q, want that it was ended from outside", out)
	}
}

// docker stop gives the program its time: what it makes of that is its exit, and who ended it is told.
func TestContainerThatIsStoppedFromOutside(t *testing.T) {
	r, e := open(t)
	st := r.spawn(t, e, r.spec(t, 1234), sh(`echo ready; sleep 1000`))
	st.awaitLine("ready")
	if err := e.call(t.Context(), request{method: "POST", path: "/containers/" + st.Container + "/stop"}, nil); err != nil {
		t.Fatal(err)
	}
	out := st.read()
	if ws := st.wait(); !ws.Signaled() || ws.Signal() != syscall.SIGTERM {
		t.Errorf("ended with %#x, want by TERM", ws)
	}
	if !strings.Contains(out, st.s.Name+launcher.EndedFromOutside) {
		t.Errorf("it wrote %q, want that it was ended from outside", out)
	}
}

// The engine has no part in a rank that runs.
func TestEngineIsRestartedUnderARank(t *testing.T) {
	r, e := open(t)
	st := r.spawn(t, e, r.spec(t, 1234), sh(`echo ready; read word; echo got $word; exit 5`))
	st.awaitLine("ready")
	if err := r.Halt(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(st.in, "hello\n"); err != nil {
		t.Fatal(err)
	}
	if out := st.read(); !strings.Contains(out, "got hello\n") {
		t.Errorf("it wrote %q", out)
	}
	if ws := st.wait(); ws.ExitStatus() != 5 {
		t.Errorf("ended with %#x, want 5", ws)
	}
	st.gone()
	if err := r.Run(); err != nil {
		t.Fatal(err)
	}
}

// A second outer half for the same rank starts nothing, and leaves the first alone.
func TestSecondOfAKindIsRefused(t *testing.T) {
	r, e := open(t)
	s := r.spec(t, 1234)
	first := r.spawn(t, e, s, sh(`echo ready; read word; exit 4`))
	first.awaitLine("ready")
	s.HandDir += "b"
	second := r.order(t, e, s, sh("echo twice"))
	if second.awaitAnswer(); !strings.Contains(second.Error, ErrNameTaken.Error()) {
		t.Errorf("the second: %+v, want %q", second.Answer, ErrNameTaken)
	}
	if out := second.read(); out != "" {
		t.Errorf("the second wrote %q", out)
	}
	second.wait()
	first.in.Close()
	if ws := first.wait(); ws.ExitStatus() != 4 {
		t.Errorf("the first ended with %#x, want 4", ws)
	}
}

func TestWhatCannotBeStarted(t *testing.T) {
	r, e := open(t)
	for want, change := range map[string]func(*Spec, *Command){
		`exec "pyhton3": not found in the container: PATH is /bin`: func(_ *Spec, c *Command) { c.Argv = [][]byte{[]byte("pyhton3")} },
		`working folder "/nowhere": not in the container`:          func(_ *Spec, c *Command) { c.Dir = []byte("/nowhere") },
		`no such image`:            func(s *Spec, _ *Command) { s.Image = "sha256:" + strings.Repeat("0", 64) },
		`/nobody/has/this`:         func(s *Spec, _ *Command) { s.Mounts = []Mount{{Source: "/nobody/has/this", Target: "/x"}} },
		`/dev/infiniband/uverbs99`: func(s *Spec, _ *Command) { s.Devices = []string{"/dev/infiniband/uverbs99"} },
		`could not select device driver "" with capabilities: [[gpu]]`:            func(s *Spec, _ *Command) { s.GPU = OldGPU },
		`exec "/etc/hosts": permission denied: it is not executable for uid 1234`: func(_ *Spec, c *Command) { c.Argv = [][]byte{[]byte("/etc/hosts")} },
		`exec "/tmp" in the container: is a directory`:                            func(_ *Spec, c *Command) { c.Argv = [][]byte{[]byte("/tmp")} },
	} {
		t.Run(want, func(t *testing.T) {
			s, c := r.spec(t, 1234), sh("true")
			change(&s, &c)
			st := r.order(t, e, s, c)
			if st.awaitAnswer(); !strings.Contains(st.Error, want) {
				t.Errorf("%q, want it to say %q", st.Error, want)
			}
			if ws := st.wait(); ws.ExitStatus() != 125 {
				t.Errorf("ended with %#x, want 125", ws)
			}
			if _, err := e.State(t.Context(), s.Name); !errors.Is(err, ErrNoContainer) {
				t.Errorf("its container: %v, want %v", err, ErrNoContainer)
			}
		})
	}
}

// Killed at any moment of a start, it leaves no program that runs.
func TestKilledWhileItStarts(t *testing.T) {
	r, e := open(t)
	for i := range 6 {
		s := r.spec(t, 1234)
		s.Mounts = []Mount{{Source: t.TempDir(), Target: "/witness"}}
		if err := os.Chmod(s.Mounts[0].Source, 0o777); err != nil {
			t.Fatal(err)
		}
		st := r.order(t, e, s, sh("echo ran >/witness/ran; sleep 1000"))
		time.Sleep(time.Duration(i) * 150 * time.Millisecond) // the moment is the test's input
		if err := st.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		st.wait()
		until := time.Now().Add(patience)
		for {
			state, err := e.State(t.Context(), s.Name)
			if errors.Is(err, ErrNoContainer) || err == nil && !state.Running {
				break
			}
			if time.Now().After(until) {
				t.Fatalf("killed after %d ms, its container is %+v, %v", i*150, state, err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// A socket's path has 108 bytes; folders may have more.
func TestHandOverInADeepFolder(t *testing.T) {
	r, e := open(t)
	s := r.spec(t, 1234)
	s.HandDir += strings.Repeat("d", 120)
	if out := r.spawn(t, e, s, sh("echo deep")).read(); out != "deep\n" {
		t.Errorf("it wrote %q", out)
	}
}
