package lead

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

const hung = "rank 1: process 77 (python3) cannot be killed"

// A rank that survives KILL: its job gets an outcome that names it, its node
// gets no job, of whatever leader, until the rank is gone.
func TestWhatCannotBeKilledDrainsItsNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		first := w.ready()
		w.nodes[1].stuck = hung
		if err := first.leader.Launch(t.Context(), spec("jjjj", 2, 1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := first.leader.Stop(t.Context(), "jjjj", time.Second, "stopped by root"); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var events []rendezvous.Progress
		if err := first.leader.Watch(t.Context(), "jjjj",
			func(p rendezvous.Progress) error { events = append(events, p); return nil }); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("the stop took %s", took)
		}
		out := mustOutcome(t, w, "jjjj")
		if out.End != rendezvous.Stopped || !strings.Contains(out.Cause, "stopped by root") ||
			!strings.Contains(out.Cause, "spark2 "+hung) {
			t.Errorf("outcome %+v", out)
		}
		if told := tellOf(events, rendezvous.StepStuck); len(told) != 1 || !strings.Contains(told[0], hung) {
			t.Errorf("followers were told %q", told)
		}

		for _, reign := range []string{"the same leader", "the next one"} {
			w.nodes[0].life = exitAfter(time.Second, 0)
			on2 := spec("k"+launcher.JobID(reign[4:7]), 1, 1)
			on2.On = []string{"spark2"}
			for _, s := range []launcher.Spec{on2, spec("l"+launcher.JobID(reign[4:7]), 2, 1)} {
				if err := w.reign.leader.Launch(t.Context(), s); !errors.Is(err, rendezvous.ErrCannotPlace) ||
					!strings.Contains(err.Error(), hung) {
					t.Errorf("%s placed a job on a drained node, or did not say why: %v", reign, err)
				}
			}
			if _, err := w.client(t.Context(), spec("m"+launcher.JobID(reign[4:7]), 1, 1)); err != nil {
				t.Errorf("%s: a job for the other node: %v", reign, err)
			}
			w.reign.kill()
			w.crown(0)
			time.Sleep(5 * time.Second)
		}

		w.nodes[1].letDie()
		time.Sleep(time.Second)
		w.each(exitAfter(time.Second, 0))
		if _, err := w.client(t.Context(), spec("nnnn", 2, 1)); err != nil {
			t.Errorf("the node is free again: %v", err)
		}
		if out := mustOutcome(t, w, "nnnn"); out.End != rendezvous.Completed {
			t.Errorf("outcome %+v", out)
		}
		w.settle()
	})
}

// The node itself ended its ranks, not the leader: the job does not wait for ever.
func TestWhatItsOwnNodeCouldNotKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		first := w.ready()
		if err := first.leader.Launch(t.Context(), spec("jjjj", 2, 1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		n := w.nodes[1]
		n.mu.Lock()
		n.stuck = hung
		for _, tr := range n.ledger {
			n.end(tr, 0)
		}
		n.mu.Unlock()
		if _, err := w.client(t.Context(), spec("jjjj", 2, 1)); err != nil {
			t.Fatal(err)
		}
		if out := mustOutcome(t, w, "jjjj"); out.End != rendezvous.Failed || !strings.Contains(out.Cause, hung) {
			t.Errorf("outcome %+v", out)
		}
		n.letDie()
		w.settle()
	})
}

// Two attempts never run at once, nor does one beside what is left of the other.
func TestNoTryBesideWhatCannotBeKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.nodes[0].life = perTry(5*time.Second, 7, 0)
		w.nodes[1].life = theFirstHangs
		w.nodes[1].stuck = hung
		w.ready()
		s := spec("jjjj", 2, 1)
		s.MaxRestarts = 1
		go func() {
			time.Sleep(10 * time.Minute)
			if n := w.started("jjjj"); n != 2 {
				t.Errorf("%d ranks were started while one of the first attempt was left", n)
			}
			w.nodes[1].letDie()
		}()
		events, err := w.client(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		if told := tellOf(events, rendezvous.StepWaiting); len(told) != 1 || !strings.Contains(told[0], hung) {
			t.Errorf("followers were told %q", told)
		}
		if out := mustOutcome(t, w, "jjjj"); out.End != rendezvous.Completed {
			t.Errorf("outcome %+v", out)
		}
		w.settle()
	})
}

// What a rank has left behind is told to those who follow the job.
func TestLeftBehindIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		r := w.ready()
		if err := r.leader.Launch(t.Context(), spec("jjjj", 2, 1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		n := w.nodes[1]
		n.mu.Lock()
		for k := range n.ledger {
			for _, rank := range []int{1, -1} {
				n.emit(launcher.Event{Key: k, Kind: launcher.Left, Rank: rank, Text: "left 1 process behind (x): ended"})
			}
		}
		n.mu.Unlock()
		time.Sleep(time.Second)
		if err := r.leader.Stop(t.Context(), "jjjj", time.Second, "stopped by root"); err != nil {
			t.Fatal(err)
		}
		var events []rendezvous.Progress
		if err := r.leader.Watch(t.Context(), "jjjj",
			func(p rendezvous.Progress) error { events = append(events, p); return nil }); err != nil {
			t.Fatal(err)
		}
		want := []string{"rank 1 on spark2 left 1 process behind (x): ended",
			"ranks on spark2 left 1 process behind (x): ended"}
		if got := tellOf(events, rendezvous.StepLeft); !slices.Equal(got, want) {
			t.Errorf("told %q, want %q", got, want)
		}
		w.settle()
	})
}
