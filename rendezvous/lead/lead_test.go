package lead

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

func TestLaunchTwiceStartsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.each(exitAfter(time.Second, 0))
		r := w.ready()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := r.leader.Launch(context.Background(), spec("jjjj", 2, 1)); err != nil {
					w.fault("launch: %v", err)
				}
				if _, ok := w.record.Job("jjjj"); !ok {
					w.fault("launch returned before the job was recorded")
				}
			})
		}
		wg.Wait()
		if _, err := w.client(t.Context(), spec("jjjj", 2, 1)); err != nil {
			t.Fatal(err)
		}
		// Again, after its end: the same answer, and nothing is started.
		began := w.index
		events, err := w.client(t.Context(), spec("jjjj", 2, 1))
		if err != nil || steps(events) != "planned ended" || events[1].Outcome.End != rendezvous.Completed {
			t.Errorf("events of an ended job: %s, %v", steps(events), err)
		}
		if w.index != began {
			t.Error("launching an ended job wrote to the record")
		}
		if r.sent("prepare") != 2 || r.sent("start") != 2 {
			t.Errorf("orders %v", r.orders)
		}
		w.settle()
	})
}

func TestLaunchRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.nodes[1].away = true
		w.epoch = 3
		r := w.ready()
		tests := map[string]struct {
			change func(*launcher.Spec)
			want   error
			text   string
		}{
			"an invalid spec":      {func(s *launcher.Spec) { s.Stages = nil }, launcher.ErrInvalid, "main stages"},
			"more than are ready":  {func(s *launcher.Spec) { s.Nodes = 2 }, rendezvous.ErrCannotPlace, "away: spark2"},
			"an id of another age": {func(s *launcher.Spec) { s.Epoch = 2 }, ErrUnknownRetry, "ps --all"},
		}
		for name, tt := range tests {
			s := spec("jjjj", 1, 1)
			tt.change(&s)
			if err := r.leader.Launch(t.Context(), s); !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%s: %v", name, err)
			}
			if err := r.leader.Watch(t.Context(), "jjjj", nil); !errors.Is(err, rendezvous.ErrNoJob) {
				t.Errorf("%s: watch: %v", name, err)
			}
		}
		if len(w.record.Jobs()) != 0 || r.sent("prepare") != 0 {
			t.Error("something was recorded or sent")
		}
		w.settle()
	})
}

// A member that leaves has no ranks, and gets none.
func TestRetire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.each(exitAfter(time.Second, 0))
		r := w.ready()
		id := w.nodes[1].id
		if err := r.leader.Launch(t.Context(), spec("jjjj", 2, 1)); err != nil {
			t.Fatal(err)
		}
		if err := r.leader.Retire(id); err == nil || !strings.Contains(err.Error(), "sparkrun stop jjjj") {
			t.Errorf("retire a node with ranks: %v", err)
		}
		if _, err := w.client(t.Context(), spec("jjjj", 2, 1)); err != nil {
			t.Error(err)
		}
		if err := r.leader.Retire(id); err != nil {
			t.Error(err)
		}
		if err := r.leader.Launch(t.Context(), spec("kkkk", 2, 1)); !errors.Is(err, rendezvous.ErrCannotPlace) {
			t.Errorf("launch on a retired node: %v", err)
		}
		r.leader.Unretire(id)
		if _, err := w.client(t.Context(), spec("mmmm", 2, 1)); err != nil {
			t.Error(err)
		}
		w.settle()
	})
}

// A job of an older epoch that the record does know is followed as usual.
func TestRetryOfAKnownJobOfAnotherEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.each(exitAfter(time.Second, 0))
		s := spec("jjjj", 1, 1)
		s.Epoch = 1
		first := w.ready()
		if err := first.leader.Launch(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		first.kill()
		w.epoch = 2
		w.crown(0)
		if _, err := w.client(t.Context(), s); err != nil {
			t.Errorf("retry of a job that runs: %v", err)
		}
		if _, err := w.client(t.Context(), s); err != nil {
			t.Errorf("retry of a job that has ended: %v", err)
		}
		w.settle()
	})
}

func TestRecorderRefusesThePlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.each(exitAfter(time.Second, 0))
		r := w.ready()
		tooLarge := errors.New("entry too large")
		r.onCommit(func(rendezvous.Kind, bool) error {
			time.Sleep(time.Second)
			return tooLarge
		})
		watched := make(chan error, 1)
		go func() {
			time.Sleep(100 * time.Millisecond) // while the plan is being recorded
			watched <- r.leader.Watch(context.Background(), "jjjj", func(rendezvous.Progress) error { return nil })
		}()
		err := r.leader.Launch(t.Context(), spec("jjjj", 2, 1))
		if !errors.Is(err, tooLarge) || !strings.Contains(err.Error(), "record job jjjj") {
			t.Errorf("launch: %v", err)
		}
		if err := <-watched; !errors.Is(err, tooLarge) { // and does not wait for ever
			t.Errorf("watch: %v", err)
		}
		if r.sent("prepare") != 0 {
			t.Error("an unrecorded job was prepared")
		}
		// The same id may be launched once the record takes it.
		r.onCommit(nil)
		if _, err := w.client(t.Context(), spec("jjjj", 2, 1)); err != nil {
			t.Error(err)
		}
		w.settle()
	})
}

func TestOutcomeIsRecordedInTheEnd(t *testing.T) {
	// The hook is asked before the commit, and after it: then the outcome is in
	// the record and nobody has been told.
	for name, lostAnswer := range map[string]bool{"not committed": false, "committed unknown to us": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 2)
				w.each(exitAfter(time.Second, 0))
				r := w.ready()
				left := 3
				r.onCommit(func(k rendezvous.Kind, done bool) error {
					if k == rendezvous.KindEnd && done == lostAnswer && left > 0 {
						left--
						return errUnknown
					}
					return nil
				})
				began := time.Now()
				events, err := w.client(t.Context(), spec("jjjj", 2, 1))
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took > 6*time.Second {
					t.Errorf("it took %s", took)
				}
				out := mustOutcome(t, w, "jjjj")
				if d := cmp.Diff(&out, events[len(events)-1].Outcome); d != "" {
					t.Errorf("told another outcome than the record's: %s", d)
				}
				w.settle()
			})
		})
	}
}

// Launch returns with the leadership, not with an error of the context that
// would look as if the caller had gone away.
func TestLeadershipEndsUnderALaunch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		r := w.ready()
		r.onCommit(func(rendezvous.Kind, bool) error {
			<-r.ctx.Done()
			return r.ctx.Err()
		})
		go func() {
			time.Sleep(time.Second)
			r.kill()
		}()
		err := r.leader.Launch(t.Context(), spec("jjjj", 2, 1))
		if !errors.Is(err, ErrOver) || errors.Is(err, context.Canceled) {
			t.Errorf("launch: %v", err)
		}
		time.Sleep(time.Second)
		for what, err := range map[string]error{
			"launch": r.leader.Launch(t.Context(), spec("kkkk", 1, 1)),
			"stop":   r.leader.Stop(t.Context(), "jjjj", 0, ""),
			"watch":  r.leader.Watch(t.Context(), "jjjj", nil),
		} {
			if !errors.Is(err, ErrOver) {
				t.Errorf("%s after the end: %v", what, err)
			}
		}
		w.settle()
	})
}

func TestCallerGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.each(exitAfter(time.Second, 0))
		r := w.ready()
		r.onCommit(func(rendezvous.Kind, bool) error { time.Sleep(time.Second); return nil })
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := r.leader.Launch(ctx, spec("jjjj", 2, 1)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("launch: %v", err)
		}
		time.Sleep(20 * time.Second) // the job goes on without its caller
		if out := mustOutcome(t, w, "jjjj"); out.End != rendezvous.Completed {
			t.Errorf("outcome %+v", out)
		}
		w.settle()
	})
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.each(exitAfter(10*time.Second, 0))
		r := w.ready()
		if err := r.leader.Launch(t.Context(), spec("jjjj", 2, 2)); err != nil {
			t.Fatal(err)
		}
		logs := make([]string, 4)
		var wg sync.WaitGroup
		follow := func(i int, late, slow time.Duration) {
			wg.Go(func() {
				time.Sleep(late)
				var events []rendezvous.Progress
				err := r.leader.Watch(context.Background(), "jjjj", func(p rendezvous.Progress) error {
					time.Sleep(slow)
					events = append(events, p)
					return nil
				})
				if err != nil {
					w.fault("watch %d: %v", i, err)
				}
				logs[i] = steps(events)
			})
		}
		began := time.Now()
		follow(0, 0, 0)
		follow(1, 5*time.Second, 0)
		follow(2, 0, 5*time.Second) // slow: hears the end long after it
		follow(3, 9*time.Second, time.Second)
		wg.Go(func() {
			enough := errors.New("enough")
			n := 0
			err := r.leader.Watch(context.Background(), "jjjj", func(rendezvous.Progress) error {
				if n++; n == 2 {
					return enough
				}
				return nil
			})
			if err != enough || n != 2 {
				w.fault("a follower that fails: %v after %d", err, n)
			}
		})
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			err := r.leader.Watch(ctx, "jjjj", func(rendezvous.Progress) error { return nil })
			if !errors.Is(err, context.DeadlineExceeded) {
				w.fault("a follower that goes away: %v", err)
			}
		})
		wg.Wait()
		for i, s := range logs {
			if s != logs[0] || !strings.HasPrefix(s, "planned ") || !strings.HasSuffix(s, " ended") {
				t.Errorf("follower %d was told %s, the first %s", i, s, logs[0])
			}
		}
		if out := mustOutcome(t, w, "jjjj"); out.At.Sub(began) > 11*time.Second {
			t.Errorf("the slow follower held the job up for %s", out.At.Sub(began))
		}
		w.settle()
	})
}

// NodeUp sweeps what the record says is over, and leaves alone what it cannot
// decide about.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		for _, e := range []rendezvous.Entry{
			{Kind: rendezvous.KindPlan, Job: &rendezvous.Job{Spec: spec("ended", 1, 1), Plan: rendezvous.Plan{Generation: 1}}},
			{Kind: rendezvous.KindEnd,
				End: &rendezvous.JobEnd{Key: launcher.Key{Job: "ended", Generation: 1},
					Outcome: rendezvous.Outcome{End: rendezvous.Failed}}},
			{Kind: rendezvous.KindPlan,
				Job: &rendezvous.Job{Spec: spec("again", 1, 1).WithDefaults(), Plan: rendezvous.Plan{Generation: 1}}},
			{Kind: rendezvous.KindPlan,
				Job: &rendezvous.Job{Spec: spec("again", 1, 1).WithDefaults(),
					Plan: rendezvous.Plan{Generation: 2, Nodes: []rendezvous.Place{{Node: "id1", Boot: "b", Ranks: 1}}}}},
		} {
			if err := w.commit(e); err != nil {
				t.Fatal(err)
			}
		}
		var mu sync.Mutex
		forgot, ended := map[launcher.Key]bool{}, map[launcher.Key]bool{}
		ctx, cancel := context.WithCancel(t.Context())
		l := Open(ctx, Config{Fence: launcher.Fence{Epoch: launcher.Epoch{N: 1}, Term: 7}, Record: w.record,
			Logger: slog.New(slog.DiscardHandler),
			Send: func(id launcher.NodeID, o launcher.Order) {
				mu.Lock()
				defer mu.Unlock()
				if o.Forget != nil {
					forgot[*o.Forget] = true
				}
				if o.End != nil {
					ended[o.End.Key] = true
				}
				if o.Fence.Term != 7 {
					t.Errorf("an order with fence %s", o.Fence)
				}
			}})
		entry := func(id launcher.JobID, gen launcher.Generation, p launcher.Phase) launcher.LedgerEntry {
			return launcher.LedgerEntry{Key: launcher.Key{Job: id, Generation: gen}, Phase: p}
		}
		l.NodeUp("id1", Up{Boot: "b", Ledger: []launcher.LedgerEntry{
			entry("ended", 1, launcher.PhaseStarted), // was given up on while away
			entry("again", 1, launcher.PhaseEnded),
			entry("again", 2, launcher.PhaseStarted), // driven by this leader
			entry("lost1", 1, launcher.PhaseEnded),
			entry("lost2", 1, launcher.PhasePrepared),
			entry("lost3", 1, launcher.PhaseStarted), // perhaps lost in a recovery: nobody's to kill
		}})
		// What runs is ended with its grace, and forgotten when it has.
		late := launcher.Key{Job: "ended", Generation: 1}
		if d := cmp.Diff(map[launcher.Key]bool{late: true}, ended); d != "" || forgot[late] {
			t.Error("ended, or forgotten too soon:", d)
		}
		l.Event(launcher.Event{Node: "id1", Key: late, Kind: launcher.Ended})
		cancel()
		l.Close()
		want := map[launcher.Key]bool{{Job: "ended", Generation: 1}: true, {Job: "again", Generation: 1}: true,
			{Job: "lost1", Generation: 1}: true, {Job: "lost2", Generation: 1}: true}
		if d := cmp.Diff(want, forgot); d != "" {
			t.Error(d)
		}
	})
}

func TestRoster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		r := w.crown(0)
		before, changed := r.leader.Roster()
		if len(before) != 2 || before[0].Ready {
			t.Errorf("roster before any stream: %+v", before)
		}
		<-changed
		time.Sleep(time.Second)
		w.nodes[1].cutOff()
		time.Sleep(3 * time.Second)
		roster, changed := r.leader.Roster()
		if !roster[0].Ready || roster[0].Boot != "boot1.1" || roster[0].Inventory.Host != "spark1" || roster[1].Ready {
			t.Errorf("roster %+v", roster)
		}
		if gone := time.Since(roster[1].Since); gone < time.Second || gone > 3*time.Second {
			t.Errorf("spark2 is away since %s", gone)
		}
		r.leader.Inventory("id1", inventoryOf("renamed"))
		<-changed
		if roster, _ := r.leader.Roster(); roster[0].Inventory.Host != "renamed" {
			t.Errorf("inventory %+v", roster[0].Inventory)
		}
		r.leader.Inventory("nobody", inventoryOf("x"))
		w.nodes[1].heal()
		w.settle()
	})
}

// Strange words from a node change nothing.
func TestStrangeWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		r := w.ready()
		go func() {
			time.Sleep(time.Second)
			k := launcher.Key{Job: "jjjj", Generation: 1}
			for _, ev := range []launcher.Event{
				{Key: k, Node: "stranger", Kind: launcher.Refused, Text: "no"},
				{Key: launcher.Key{Job: "jjjj", Generation: 2}, Node: "id1", Kind: launcher.Refused, Text: "no"},
				{Key: launcher.Key{Job: "kkkk", Generation: 1}, Node: "id1", Kind: launcher.Ended},
				{Key: k, Node: "id1", Kind: "dances"},
				{Key: k, Node: "id1", Kind: launcher.Prepared, Port: 29500},                          // once more
				{Key: k, Node: "id1", Kind: launcher.Exited, Rank: 1, Exit: &launcher.Exit{Code: 9}}, // spark2's rank
				{Key: k, Node: "id1", Kind: launcher.Exited, Rank: 77, Exit: &launcher.Exit{}},
				{Key: k, Node: "id1", Kind: launcher.Exited, Rank: 0}, // without an exit
			} {
				r.leader.Event(ev)
			}
			r.leader.NodeDown("stranger")
			time.Sleep(time.Second)
			if s := r.leader.Jobs()[0].State; s != rendezvous.StateRuns {
				w.fault("state %s", s)
			}
			r.leader.Stop(t.Context(), "jjjj", time.Second, "enough")
		}()
		if _, err := w.client(t.Context(), spec("jjjj", 2, 1)); err != nil {
			t.Fatal(err)
		}
		if out := mustOutcome(t, w, "jjjj"); out.End != rendezvous.Stopped {
			t.Errorf("outcome %+v", out)
		}
		w.settle()
	})
}

// Close leaves no goroutine behind, in real time, whatever a run was doing.
func TestCloseLeavesNothing(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	w := newWorld(t, 2)
	w.nodes[1].slow = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	r := &reign{w: w, fence: launcher.Fence{Epoch: launcher.Epoch{N: 1}, Term: 1}, ctx: ctx, stop: cancel,
		orders: map[string]int{}}
	l := Open(ctx, Config{Fence: r.fence, Record: w.record, Recorder: r, Send: r.send,
		Logger: slog.New(slog.DiscardHandler)})
	for _, n := range w.nodes {
		l.NodeUp(n.id, Up{Boot: n.boot, Inventory: inventoryOf(n.host)})
	}
	for i := range 5 {
		if err := l.Launch(ctx, spec(ids(i), 1+i%2, 1)); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	l.Close()
	if err := l.Launch(t.Context(), spec("jjjj", 1, 1)); !errors.Is(err, ErrOver) {
		t.Errorf("launch after Close: %v", err)
	}
}

func TestExitsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.nodes[0].life = func(_ launcher.Key, rank int) (time.Duration, *launcher.Exit) {
			return time.Duration(40-rank) * time.Second, &launcher.Exit{Code: rank + 1}
		}
		w.ready()
		if _, err := w.client(t.Context(), spec("jjjj", 1, 40)); err != nil {
			t.Fatal(err)
		}
		out := mustOutcome(t, w, "jjjj")
		if len(out.Exits) != rendezvous.MaxExits || out.Exits[0].Rank != 39 || out.ExitCode != 40 {
			t.Errorf("%d exits, first %+v, code %d", len(out.Exits), out.Exits[0], out.ExitCode)
		}
		for i := 1; i < len(out.Exits); i++ {
			if out.Exits[i].Time.Equal(out.Exits[i-1].Time) && out.Exits[i].Rank < out.Exits[i-1].Rank {
				t.Error("exits of one moment are not in the order of ranks")
			}
		}
		w.settle()
	})
}

func ids(n int) launcher.JobID { return launcher.JobID(fmt.Sprintf("job%04d", n)) }

// A launch that reaches a leader in its first moments waits for the members
// that have not opened their streams yet, instead of refusing for want of them.
func TestNewLeaderWaitsForItsMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		ctx, cancel := context.WithCancel(t.Context())
		r := &reign{w: w}
		l := Open(ctx, Config{Fence: launcher.Fence{Epoch: launcher.Epoch{N: 1}, Term: 1}, Record: w.record, Recorder: r,
			Send: func(launcher.NodeID, launcher.Order) {}, Logger: slog.New(slog.DiscardHandler)})
		began := time.Now()
		admitted := make(chan error, 1)
		go func() {
			_, err := l.admitSettled(ctx, spec("jjjj", 2, 1).WithDefaults())
			admitted <- err
		}()
		time.Sleep(time.Second)
		for _, n := range w.record.Nodes() {
			l.NodeUp(n.ID, Up{Boot: "boot", Inventory: inventoryOf(n.Host)})
		}
		if err := <-admitted; err != nil || time.Since(began) != time.Second {
			t.Errorf("admitted after %s: %v", time.Since(began), err)
		}
		// Once it is settled, what is missing is missed at once; so is what no
		// member could give.
		began = time.Now()
		if _, err := l.admitSettled(ctx, spec("kkkk", 3, 1).WithDefaults()); !errors.Is(err,
			rendezvous.ErrCannotPlace) || time.Since(began) != 0 {
			t.Errorf("three of two: %v after %s", err, time.Since(began))
		}
		cancel()
		l.Close()
	})
}
