package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/container/enginetest"
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

// boxes is a bench whose ranks run in containers of a real engine.
type boxes struct {
	*bench
	engine *enginetest.Engine
	c      *container.Engine
}

func spawnBoxes(t *testing.T, change ...func(*Config)) boxes {
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
	x := boxes{b, e, c}
	t.Cleanup(func() {
		for _, f := range x.list() {
			must(t, c.Remove(context.Background(), f.ID))
		}
		c.Close()
	})
	return x
}

func (x boxes) list() []container.Found {
	all, err := x.c.List(context.Background(), map[string]string{"com.sparkrun.job": x.id})
	must(x.t, err)
	return all
}

// box is a rank that runs a script of the image's shell.
func (x boxes) box(rank int, script string) Rank {
	return Rank{Rank: rank, LocalRank: rank, Argv: []string{"sh", "-c", script}, Env: []string{x.id, "SECRET=s3cret"}, Dir: "/tmp", Box: &Box{
		Socket: x.engine.Socket,
		Spec: container.Spec{
			Name: fmt.Sprintf("sparkrun-%s-%d", strings.TrimPrefix(x.id, "TEST_ID="), rank), Image: x.engine.ImageID,
			Labels: map[string]string{"com.sparkrun.job": x.id}, UID: 1234, GID: 1234, CgroupParent: x.engine.Group(),
			Program: x.engine.Half, HandDir: fmt.Sprintf("%s/box-%d", x.dir, rank), Grace: 10 * time.Second,
		}}}
}

// nothingLeft is the promise of Ended: no process, and nothing in the engine.
func (x boxes) nothingLeft() {
	x.t.Helper()
	x.noneAlive()
	if left := x.list(); len(left) > 0 {
		x.t.Errorf("containers stay: %+v", left)
	}
}

func TestBoxedRanks(t *testing.T) {
	x := spawnBoxes(t)
	in := x.box(4, `echo out four; echo err four >&2; read word; echo got $word $SECRET`)
	in.Stdin = true
	x.start(in, x.box(5, "exit 3"), x.box(6, "kill -SEGV $$"), x.box(7, "pyhton3"))
	must(t, x.bench.c.Input(x.ctx, 4, 0, []byte("hello\n"), true))
	es := x.events()
	want := map[int]launcher.Exit{4: {}, 5: {Code: 3}, 6: {Signal: 11}, 7: {Code: 127}} // the shell's own, for what it did not find
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

func TestBoxedRanksAreEnded(t *testing.T) {
	x := spawnBoxes(t)
	x.start(x.box(0, `trap "" TERM HUP INT; setsid sh -c 'trap "" TERM; echo deaf; exec sleep 1000' & exec sleep 1000`), x.box(1, `trap 'echo term; exit 7' TERM; echo up; while :; do sleep 0.1; done`))
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
func TestBoxedRanksAreEndedAtTheirStart(t *testing.T) {
	for _, pause := range []time.Duration{0, 300 * time.Millisecond, time.Second} {
		t.Run(pause.String(), func(t *testing.T) {
			x := spawnBoxes(t)
			started := make(chan error, 1)
			go func() { started <- x.bench.c.Start(x.ctx, []Rank{x.box(0, "sleep 1000"), x.box(1, "sleep 1000")}) }()
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
func TestBoxedRanksInSteps(t *testing.T) {
	x := spawnBoxes(t)
	must(t, x.bench.c.StartMore(x.ctx, []Rank{x.box(0, "echo one; exec sleep 1000")}))
	x.awaitLog(0, "one\n")
	for range 2 { // asked twice, it is there once
		must(t, x.bench.c.StartMore(x.ctx, []Rank{x.box(1, "echo two; sleep 1000")}))
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
func TestBoxedRanksOfADeadShim(t *testing.T) {
	x := spawnBoxes(t)
	x.start(x.box(0, `trap "" TERM; setsid sleep 1000 & echo up; sleep 1000`))
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
	x := spawnBoxes(t)
	r := x.box(0, "true")
	r.Box.Socket = "/nobody/is/here"
	x.start(r)
	e := exits(x.events())[0]
	if !strings.Contains(e.Error, container.ErrNoEngine.Error()) || !strings.Contains(e.Error, "/nobody/is/here") {
		t.Errorf("%+v, want it to name the engine's socket", e)
	}
	x.nothingLeft()
}

func TestNoGuestInABox(t *testing.T) {
	x := spawnBoxes(t)
	x.start(x.box(0, "echo up; sleep 1000"))
	x.awaitLog(0, "up\n")
	_, err := x.bench.c.Exec(x.ctx, Exec{Guest: "g", Rank: 0, Argv: []string{"true"}}, func() error { return nil }, func(launcher.Stream, []byte) error { return nil })
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "docker exec") {
		t.Errorf("%v, want it to say what to type", err)
	}
}

// A shim from before containers would run such a rank on the host, so that the op that
// it knows must not have any.
func TestStartTakesNoBox(t *testing.T) {
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
func (x boxes) awaitLog(rank int, want string) {
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
