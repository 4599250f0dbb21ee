package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
)

// visit is one exec session under test.
type visit struct {
	t     *testing.T
	leave context.CancelFunc
	began chan struct{}
	done  chan struct{}
	out   strings.Builder // and exit, err: to be read after wait
	errs  strings.Builder
	exit  launcher.Exit
	err   error
}

// exec runs a shell script in a rank's place. `say WORDS` in it is heard by hear.
func (b *bench) exec(t *testing.T, session string, rank int, script string, change ...func(*Exec)) *visit {
	t.Helper()
	e := Exec{Session: session, Rank: rank,
		Argv: []string{"/bin/sh", "-c", "say() { echo \"$@\" > \"$GATE\"; }\n" + script}}
	for _, f := range change {
		f(&e)
	}
	ctx, leave := context.WithCancel(b.ctx)
	v := &visit{t: t, leave: leave, began: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(v.done)
		v.exit, v.err = b.c.Exec(ctx, e, func() error { close(v.began); return nil },
			func(s launcher.Stream, data []byte) error {
				if s == launcher.Stderr {
					v.errs.Write(data)
				} else {
					v.out.Write(data)
				}
				return nil
			})
	}()
	t.Cleanup(func() { leave(); <-v.done })
	return v
}

func (v *visit) wait() *visit {
	v.t.Helper()
	select {
	case <-v.done:
	case <-time.After(30 * time.Second):
		v.t.Fatal("the exec session does not end")
	}
	return v
}

// An exec session finds itself where the rank is, and is none: its output and its
// failure are its caller's alone.
func TestExec(t *testing.T) {
	dir := t.TempDir()
	b := spawn(t, func(c *Config) { c.EndOnFailure, c.Cgroup = true, fmt.Sprintf("exec-%d", os.Getpid()) })
	host := b.sh(0, "cut -d: -f3 /proc/self/cgroup > cgroup; say up; exec sleep 1000")
	host.Dir, host.Ulimits = dir, []launcher.Ulimit{{Name: "nofile", Soft: 123, Hard: 456}}
	b.start(host)
	b.hear()
	v := b.exec(t, "one", 0, `pwd; echo $RANK $WHO; ulimit -Sn; cut -d: -f3 /proc/self/cgroup | cmp - cgroup && echo same; cat; echo bad >&2; exit 7`,
		func(e *Exec) { e.Env = []string{"WHO=guest", "RANK=none"} }).wait()
	if want := dir + "\nnone guest\n123\nsame\n"; v.err != nil || v.exit.Code != 7 || v.out.String() != want ||
		v.errs.String() != "bad\n" {
		t.Errorf("exit %v, %v, out %q, want %q, err %q", v.exit, v.err, v.out.String(), want, v.errs.String())
	}
	must(t, b.c.End(b.ctx, 0))
	es := b.events()
	if len(kinds(es, Started)) != 1 || len(kinds(es, Exited)) != 1 {
		t.Errorf("the exec session is told of: %v", es)
	}
	if got := b.log(0, "out") + b.log(0, "err"); got != "" {
		t.Errorf("the rank's files have %q", got)
	}
	if v := b.exec(t, "two", 0, "true").wait(); !errors.Is(v.err, ErrNoRank) {
		t.Errorf("exec after the end: %v", v.err)
	}
	b.noneAlive()
}

func TestExecInputAndSignal(t *testing.T) {
	b := spawn(t)
	b.start(b.sh(0, "exec sleep 1000"))
	v := b.exec(t, "one", 0, `trap 'echo usr1; exit 4' USR1; cat; say read; while :; do sleep 0.05; done`,
		func(e *Exec) { e.Stdin = true })
	<-v.began
	must(t, b.c.ExecInput(b.ctx, "one", 0, []byte("hel"), false))
	must(t, b.c.ExecInput(b.ctx, "one", 0, []byte("hello\n"), true)) // what it has had is passed over
	b.hear()
	if w := b.exec(t, "one", 0, "true").wait(); !errors.Is(w.err, ErrRefused) {
		t.Errorf("a second exec session of that name: %v", w.err)
	}
	must(t, b.c.ExecSignal(b.ctx, "one", unix.SIGUSR1))
	if v.wait(); v.exit.Code != 4 || v.out.String() != "hello\nusr1\n" {
		t.Errorf("exit %v, %v, out %q", v.exit, v.err, v.out.String())
	}
	if err := b.c.ExecSignal(b.ctx, "one", unix.SIGUSR1); !errors.Is(err, ErrNoRank) {
		t.Errorf("signal after the exit: %v", err)
	}
	must(t, b.c.End(b.ctx, 0))
	b.events()
}

func TestExecTerminal(t *testing.T) {
	b := spawn(t)
	b.start(b.sh(0, "exec sleep 1000"))
	v := b.exec(t, "one", 0, `stty size; say up; read line; stty size; echo "got $line" >&2; exit 3`,
		func(e *Exec) { e.TTY = &launcher.Window{Rows: 33, Cols: 101} })
	b.hear()
	must(t, b.c.ExecResize(b.ctx, "one", launcher.Window{Rows: 20, Cols: 70}))
	must(t, b.c.ExecInput(b.ctx, "one", 0, []byte("one\n"), false))
	v.wait()
	got := strings.ReplaceAll(v.out.String(), "\r\n", "\n")
	if v.exit.Code != 3 || !strings.Contains(got, "33 101\n") || !strings.Contains(got, "20 70\n") ||
		!strings.Contains(got, "got one\n") {
		t.Errorf("exit %v, %v, out %q", v.exit, v.err, got)
	}
	must(t, b.c.End(b.ctx, 0))
	b.events()
}

// An exec session ends with its connection: TERM first, then KILL, to all that it has
// started; the rank does not notice.
func TestExecLeft(t *testing.T) {
	b := spawn(t, func(c *Config) { c.Grace = 300 * time.Millisecond })
	b.start(b.sh(0, "exec sleep 1000"))
	kind := b.exec(t, "kind", 0, `trap 'say kind; exit' TERM; say up; while :; do sleep 0.05; done`)
	b.hear()
	kind.leave()
	if got := b.hear(); got != "kind" {
		t.Errorf("heard %q", got)
	}
	stubborn := b.exec(t, "stubborn", 0,
		`trap "" TERM; (trap "" TERM; sleep 1001) & setsid sh -c 'trap "" TERM; echo up > $GATE; sleep 1002' & wait; sleep 1003`)
	b.hear()
	stubborn.leave()
	b.awaits(t, "the rank alone", func() bool { return len(b.alive()) == 1 })
	forks := b.exec(t, "forks", 0, `trap "" TERM; say up; i=0; while [ $i -lt 1000 ]; do sleep 1004 & i=$((i+1)); done; wait`)
	b.hear()
	forks.leave()
	b.awaits(t, "the rank alone, with none that was forked meanwhile", func() bool { return len(b.alive()) == 1 })
	must(t, b.c.End(b.ctx, 0))
	if e := exits(b.events())[0]; !e.ByUs {
		t.Errorf("the rank: %v", e)
	}
}

// awaits waits for what no event tells.
func (b *bench) awaits(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s: %v", what, b.alive())
		}
	}
}

// Ranks that exit take their exec sessions along, those too that would not go, and an
// interactive shell, which takes no TERM.
func TestExecEndsWithTheRanks(t *testing.T) {
	b := spawn(t)
	r := b.sh(0, "say up; read x; exit 5")
	r.Stdin = true
	b.start(r)
	b.hear()
	stubborn := b.exec(t, "stubborn", 0, `trap "" TERM; say up; while :; do sleep 0.05; done`)
	b.hear()
	shell := b.exec(t, "shell", 0, "", func(e *Exec) {
		e.Argv, e.TTY = []string{"/bin/sh", "-i"}, &launcher.Window{Rows: 24, Cols: 80}
	})
	<-shell.began
	must(t, b.c.ExecInput(b.ctx, "shell", 0, []byte("echo up > $GATE\n"), false))
	b.hear()
	must(t, b.c.Input(b.ctx, 0, 0, nil, true))
	es := b.events()
	if e := exits(es)[0]; e.Code != 5 || e.ByUs {
		t.Errorf("the rank: %v", e)
	}
	if e := stubborn.wait().exit; e.Signal != int(unix.SIGKILL) {
		t.Errorf("the stubborn exec session: %v, %v", e, stubborn.err)
	}
	if shell.wait(); shell.err != nil {
		t.Errorf("the shell: %v", shell.err)
	}
	b.noneAlive()
}

// An exec session that writes more than its reader takes waits for it.
func TestExecSlowReader(t *testing.T) {
	b := spawn(t)
	b.start(b.sh(0, "exec sleep 1000"))
	n, begun, go1 := 0, make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		exit, err := b.c.Exec(b.ctx,
			Exec{Session: "one", Argv: []string{"/bin/sh", "-c", "head -c 5000000 /dev/zero; echo done > $GATE"}},
			func() error { close(begun); return nil },
			func(_ launcher.Stream, data []byte) error { <-go1; n += len(data); return nil })
		done <- errors.Join(err, func() error {
			if exit.Code != 0 {
				return errors.New(exit.String())
			}
			return nil
		}())
	}()
	<-begun
	must(t, b.gate.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
	if line, err := b.in.ReadString('\n'); err == nil {
		t.Errorf("it did not wait for its reader: %q", line)
	}
	close(go1)
	b.hear()
	must(t, <-done)
	if n != 5000000 {
		t.Errorf("%d bytes came", n)
	}
	must(t, b.c.End(b.ctx, 0))
	b.events()
}

// The shim's death leaves no exec session behind, whatever it has left.
func TestExecReaped(t *testing.T) {
	b := spawn(t)
	b.start(b.sh(0, "exec sleep 1000"))
	v := b.exec(t, "one", 0, "say up; setsid sleep 1001 & exec sleep 1000")
	b.hear()
	b.killShim()
	if v.wait(); !errors.Is(v.err, ErrGone) {
		t.Errorf("Exec: %v", v.err)
	}
	must(t, Reap(b.ctx, b.dir))
	b.noneAlive()
}

// What was left in the background stays, as with docker exec, for as long as a
// rank runs; what holds the output does not keep the caller.
func TestExecLeavesInTheBackground(t *testing.T) {
	b := spawn(t)
	b.start(b.sh(0, "exec sleep 1000"))
	v := b.exec(t, "one", 0, "sleep 1001 & echo up").wait()
	if v.err != nil || v.exit.Code != 0 || v.out.String() != "up\n" {
		t.Errorf("exit %v, %v, out %q", v.exit, v.err, v.out.String())
	}
	if n := len(b.alive()); n != 2 {
		t.Errorf("%d processes, want the rank and what was left", n)
	}
	must(t, b.c.End(b.ctx, time.Minute))
	b.events()
	b.noneAlive()
}

// An exec session may exit between the STOP and the KILL of its children: they are killed then.
func TestExecExitsBeforeItsKill(t *testing.T) {
	child := exec.Command("sleep", "1000")
	must(t, child.Start())
	was, _ := proc.Here.Stat(child.Process.Pid)
	must(t, child.Process.Signal(syscall.SIGSTOP))
	es := &session{done: make(chan struct{}), stopped: map[int]proc.Stat{was.PID: was}}
	(&attempt{}).sessionExited(es, &launcher.Exit{})
	var exit *exec.ExitError
	if err := child.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("its child: %v", err)
	}
}
