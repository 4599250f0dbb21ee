package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/container/enginetest"
	"github.com/sparkrun/sparkrun/launcher/proc"
)

// theEngine is started by the first test that wants one, and ended by TestMain.
var (
	theEngine    = sync.OnceValues(enginetest.New)
	engineWanted bool // no test of this package runs beside another
)

// engineWait is the engine's own, which outlives a test.
const engineWait = "github.com/sparkrun/sparkrun/launcher/container/enginetest.(*Engine).Run.func1"

func closeEngine() error {
	if !engineWanted {
		return nil
	}
	e, err := theEngine()
	if err != nil {
		return nil //nolint:nilerr // the tests have told
	}
	return e.Close()
}

// containerBench is a bench whose ranks run in containers of a real engine.
type containerBench struct {
	*bench
	engine *enginetest.Engine
	c      *container.Engine
}

func spawnContainers(t *testing.T, change ...func(*Config)) containerBench {
	t.Helper()
	engineWanted = true
	e, err := theEngine()
	must(t, err)
	b := set(t, change...)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // a container takes seconds under load
	t.Cleanup(cancel)
	b.ctx = ctx
	b.spawn()
	c, err := container.Open(ctx, e.Socket)
	must(t, err)
	x := containerBench{b, e, c}
	t.Cleanup(func() {
		for _, f := range x.list() {
			must(t, c.Remove(context.Background(), f.ID))
		}
	})
	return x
}

func (x containerBench) list() []container.Found {
	all, err := x.c.List(context.Background(), map[string]string{"com.sparkrun.job": x.id})
	must(x.t, err)
	return all
}

// in is a rank that runs a script of the image's shell.
func (x containerBench) in(rank int, script string) Rank {
	return Rank{Rank: rank, LocalRank: rank, Argv: []string{"sh", "-c", script}, Env: []string{x.id, "SECRET=s3cret"},
		Dir: "/tmp", Container: &Container{
			Socket: x.engine.Socket,
			Spec: container.Spec{
				Name: fmt.Sprintf("sparkrun-%s-%d", strings.TrimPrefix(x.id, "TEST_ID="), rank), Image: x.engine.ImageID,
				Labels: map[string]string{"com.sparkrun.job": x.id}, UID: 1234, GID: 1234, CgroupParent: x.engine.Group(),
				Program: x.engine.Half, HandDir: fmt.Sprintf("%s/box-%d", x.dir, rank), Grace: 10 * time.Second,
			}}}
}

// nothingLeft is the promise of Ended: no process, and nothing in the engine.
func (x containerBench) nothingLeft() {
	x.t.Helper()
	x.noneAlive()
	if left := x.list(); len(left) > 0 {
		x.t.Errorf("containers stay: %+v", left)
	}
}

func TestRanksInContainers(t *testing.T) {
	x := spawnContainers(t)
	in := x.in(4, `echo out four; echo err four >&2; read word; echo got $word $SECRET`)
	in.Stdin = true
	x.start(in, x.in(5, "exit 3"), x.in(6, "kill -SEGV $$"), x.in(7, "pyhton3"))
	must(t, x.bench.c.Input(x.ctx, 4, 0, []byte("hello\n"), true))
	es := x.events()
	want := map[int]launcher.Exit{4: {}, 5: {Code: 3}, 6: {Signal: 11},
		7: {Code: 127}} // the shell's own, for what it did not find
	if d := cmp.Diff(want, exits(es)); d != "" {
		t.Errorf("exits (-want +got):\n%s", d)
	}
	if got := x.log(4, "out"); got != "out four\ngot hello s3cret\n" {
		t.Errorf("rank 4 wrote %q", got)
	}
	if got := x.log(4, "err"); got != "err four\n" {
		t.Errorf("rank 4 wrote %q to stderr", got)
	}
	if n := len(kinds(es, Started)); n != 4 {
		t.Errorf("%d ranks were told as started, want 4", n)
	}
	x.nothingLeft()
}

// The kernel's log calls a program in a container by its number on the host, which is not the one of its rank.
func TestProgramInAContainerIsKnownByItsPID(t *testing.T) {
	x := spawnContainers(t)
	x.start(x.in(0, `echo up; : of this test; while :; do sleep 0.1; done`))
	x.awaitLog(0, "up\n")
	procs, _ := proc.Here.All()
	parents := map[int]int{} // of the program, and of a child that is not yet what it will be
	for _, p := range procs {
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
		if strings.Contains(string(args), "of this test") && strings.Contains(string(env), x.id) {
			parents[p.PID] = p.PPID
		}
	}
	pid := 0
	for p, parent := range parents {
		if _, child := parents[parent]; !child {
			pid = p
		}
	}
	if pid == 0 {
		t.Fatal("no process of the program")
	}
	must(t, unix.Kill(pid, unix.SIGKILL))
	for _, e := range kinds(x.events(), Exited) {
		if e.ContainerPID != pid || e.PID == pid {
			t.Errorf("told as %d for %d, want for %d", e.PID, e.ContainerPID, pid)
		}
	}
	x.nothingLeft()
}

func TestRanksInContainersAreEnded(t *testing.T) {
	x := spawnContainers(t)
	x.start(x.in(0, `trap "" TERM HUP INT; setsid sh -c 'trap "" TERM; echo deaf; exec sleep 1000' & exec sleep 1000`),
		x.in(1, `trap 'echo term; exit 7' TERM; echo up; while :; do sleep 0.1; done`))
	x.awaitLog(0, "deaf\n")
	x.awaitLog(1, "up\n")
	must(t, x.bench.c.End(x.ctx, 2*time.Second))
	got := exits(x.events())
	if e := got[0]; e.Signal != 9 || !e.ByUs {
		t.Errorf("the deaf rank: %+v, want KILL by us", e)
	}
	if e := got[1]; e.Code != 7 || !e.ByUs {
		t.Errorf("the rank with a handler: %+v, want its own 7, by us", e)
	}
	x.nothingLeft()
}

// The end may come while the engine is at work.
func TestRanksInContainersAreEndedAtTheirStart(t *testing.T) {
	for _, pause := range []time.Duration{0, 300 * time.Millisecond, time.Second} {
		t.Run(pause.String(), func(t *testing.T) {
			x := spawnContainers(t)
			started := make(chan error, 1)
			go func() { started <- x.bench.c.Start(x.ctx, []Rank{x.in(0, "sleep 1000"), x.in(1, "sleep 1000")}) }()
			x.until(func(e Event) bool { return e.Kind == Starting })
			time.Sleep(pause) // the moment is the test's input
			must(t, x.bench.c.End(x.ctx, 10*time.Second))
			must(t, <-started)
			for r, e := range exits(x.events()) {
				if !e.ByUs {
					t.Errorf("rank %d: %+v, want by us", r, e)
				}
			}
			x.nothingLeft()
		})
	}
}

// Containers come up in steps, too: one that is asked for later joins the others, and the end is of all.
func TestRanksInContainersInSteps(t *testing.T) {
	x := spawnContainers(t)
	must(t, x.bench.c.StartMore(x.ctx, []Rank{x.in(0, "echo one; exec sleep 1000")}))
	x.awaitLog(0, "one\n")
	for range 2 { // asked twice, it is there once
		must(t, x.bench.c.StartMore(x.ctx, []Rank{x.in(1, "echo two; sleep 1000")}))
	}
	x.awaitLog(1, "two\n")
	if n := len(x.list()); n != 2 {
		t.Errorf("%d containers, want 2", n)
	}
	must(t, x.bench.c.End(x.ctx, 0))
	if es := x.events(); len(kinds(es, Started)) != 2 || len(kinds(es, Exited)) != 2 {
		t.Errorf("events %+v", es)
	}
	x.nothingLeft()
}

// A shim that dies leaves nobody behind, once it has been reaped; the empty
// container is for who sweeps.
func TestRanksInContainersOfADeadShim(t *testing.T) {
	x := spawnContainers(t)
	x.start(x.in(0, `trap "" TERM; setsid sleep 1000 & echo up; sleep 1000`))
	x.awaitLog(0, "up\n")
	x.killShim()
	must(t, Reap(x.ctx, x.dir))
	x.noneAlive()
	for _, f := range x.list() {
		if f.Running {
			t.Errorf("a container runs on: %+v", f)
		}
	}
}

func TestEngineThatIsAway(t *testing.T) {
	x := spawnContainers(t)
	r := x.in(0, "true")
	r.Container.Socket = "/nobody/is/here"
	x.start(r)
	e := exits(x.events())[0]
	if !strings.Contains(e.Error, container.ErrNoEngine.Error()) || !strings.Contains(e.Error, "/nobody/is/here") {
		t.Errorf("%+v, want it to name the engine's socket", e)
	}
	x.nothingLeft()
}

// exec runs a command beside rank 0, to its end.
func (x containerBench) exec(script string, more ...func(*Exec)) (launcher.Exit, string, error) {
	x.t.Helper()
	e := Exec{Session: fmt.Sprintf("g%d", time.Now().UnixNano()), Rank: 0, Argv: []string{"sh", "-c", script},
		Env: []string{"OWN=mine"}}
	for _, f := range more {
		f(&e)
	}
	var out strings.Builder
	exit, err := x.bench.c.Exec(x.ctx, e, func() error { return nil }, func(_ launcher.Stream, b []byte) error {
		out.Write(b)
		return nil
	})
	return exit, out.String(), err
}

// An exec session of a rank in a container is in there with it: its user, environment and folder, its processes, its
// end.
func TestExecInAContainer(t *testing.T) {
	x := spawnContainers(t)
	x.start(x.in(0, `echo here > /tmp/file; echo up; trap "" TERM; sleep 1000; exit 3`))
	x.awaitLog(0, "up\n")
	exit, out, err := x.exec(`cat /tmp/file; id -u; echo $SHAPE $SECRET $OWN; pwd; grep NoNewPrivs /proc/self/status; cat /proc/1/cmdline | head -c 17; exit 7`)
	want := "here\n1234\nimage s3cret mine\n/tmp\nNoNewPrivs:\t1\n/sbin/docker-init"
	if err != nil || exit.Code != 7 || out != want {
		t.Errorf("%+v, %v, %q, want 7 and %q", exit, err, out, want)
	}
	if exit, _, err := x.exec("kill -SEGV $$"); err != nil || exit.Signal != 11 {
		t.Errorf("a signal of its own: %+v, %v", exit, err)
	}
	for argv, code := range map[string]int{"nowhere": 127, "/tmp": 126} {
		exit, _, err := x.exec("", func(e *Exec) { e.Argv = []string{argv} })
		if err != nil || exit.Code != code || !strings.Contains(exit.Error, argv) {
			t.Errorf("exec of %s: %+v, %v, want %d", argv, exit, err, code)
		}
	}
	if exit, out, err := x.exec("stty size; [ -t 0 ] && echo terminal; kill -HUP $$",
		func(e *Exec) { e.TTY = &launcher.Window{Rows: 33, Cols: 44} }); err != nil || exit.Signal != 1 ||
		!strings.Contains(out, "33 44") || !strings.Contains(out, "terminal") {
		t.Errorf("with a terminal: %+v, %v, %q", exit, err, out)
	}

	// Whose caller goes, goes, and the job of its shell; the rank stays.
	ctx, leave := context.WithCancel(x.ctx)
	gone := make(chan error, 1)
	go func() {
		_, err := x.bench.c.Exec(ctx,
			Exec{Session: "left", Rank: 0,
				Argv: []string{"sh", "-c", `trap "" TERM HUP; echo in > /tmp/in; sleep 777`}},
			func() error { return nil }, func(launcher.Stream, []byte) error { return nil })
		gone <- err
	}()
	x.await(`[ -e /tmp/in ]`)
	leave()
	<-gone
	x.await(`! grep -q '[7]77' /proc/[0-9]*/cmdline`)

	// One that is there when the rank ends, ends with it.
	go func() {
		_, _, err := x.exec(`trap "" TERM HUP; echo stay > /tmp/stay; sleep 1000`)
		gone <- err
	}()
	x.await(`[ -e /tmp/stay ]`)
	must(t, x.bench.c.End(x.ctx, time.Second))
	if e := exits(x.events())[0]; !e.ByUs {
		t.Errorf("the rank: %+v, want it ended by us", e)
	}
	<-gone
	x.nothingLeft()
}

// await waits until a script in rank 0's container says so.
func (x containerBench) await(script string) {
	x.t.Helper()
	for until := time.Now().Add(2 * time.Minute); ; {
		exit, out, err := x.exec(script)
		if err == nil && exit.Code == 0 {
			return
		}
		if time.Now().After(until) {
			x.t.Fatalf("in vain: %s: %+v, %v, %q", script, exit, err, out)
		}
	}
}

// A shim from before containers would run such a rank on the host, so that the op that
// it knows must not have any.
func TestStartTakesNoContainer(t *testing.T) {
	for line, want := range map[string]error{
		`{"v":1,"id":1,"op":"start","ranks":[{"rank":0,"argv":["true"],"dir":"/","box":{"socket":"/s","spec":{"name":"n","image":"sha256:0","program":"/p","hand_dir":"/h"}}}]}`:      ErrRequest,
		`{"v":1,"id":1,"op":"start-more","ranks":[{"rank":0,"argv":["true"],"dir":"/","box":{"socket":"/s","spec":{"name":"n","image":"sha256:0","program":"/p","hand_dir":"/h"}}}]}`: ErrRequest,
		`{"v":1,"id":1,"op":"contain-more","ranks":[{"rank":0,"argv":["true"],"dir":"/"}]}`:                                                                                           ErrRequest,
		`{"v":1,"id":1,"op":"contain","ranks":[{"rank":0,"argv":["true"],"dir":"/"}]}`:                                                                                                ErrRequest,
		`{"v":1,"id":1,"op":"contain","ranks":[{"rank":0,"argv":["true"],"dir":"/","box":{"socket":"/s","spec":{"name":"n","image":"sha256:0","program":"/p","hand_dir":"/h"}}}]}`:    nil,
	} {
		if _, err := decodeRequest([]byte(line)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", line, err, want)
		}
	}
}

// awaitLog waits until a rank has written something.
func (x containerBench) awaitLog(rank int, want string) {
	x.t.Helper()
	for until := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		b, err := os.ReadFile(fmt.Sprintf("%s/rank-%d.out", x.cfg.LogDir, rank))
		if err == nil && strings.Contains(string(b), want) {
			return
		}
		if time.Now().After(until) {
			x.t.Fatalf("rank %d wrote %q, %v, want %q", rank, b, err, want)
		}
	}
}

// A container that cannot be watched, for want of descriptors, is no container that has gone.
func TestContainerWithoutADescriptor(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	must(t, cmd.Start())
	var was unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}))
	b := watched("container", cmd.Process.Pid)
	blind := b.there()
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	if b.gone || b.fd != nil || !blind {
		t.Errorf("gone %v, descriptor %v, there %v: want it there, and not watched", b.gone, b.fd, blind)
	}
	if err := b.awaitEnd(); err == nil {
		t.Error("want it said that nobody tells")
	}
	b.kill() // as old as what, it cannot know
	if !b.there() {
		t.Error("a process was killed that may be another")
	}
	b.init, _ = proc.Here.Stat(cmd.Process.Pid)
	b.kill()
	if err := cmd.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("ended with %v, want by KILL", err)
	}
	if b.there() || !watched("container", cmd.Process.Pid).gone {
		t.Error("want it gone")
	}
}
