package lead

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// leased is a job of two nodes, whose third is spare: 20 s of lease and 2 s of grace.
func leased() launcher.Spec {
	s := spec("jjjj", 2, 1)
	s.MaxRestarts, s.Spare, s.On = 2, 1, []string{"spark3", "spark2", "spark1"}
	s.NodeTimeout, s.Grace, s.OnPartition = 20*time.Second, 2*time.Second, launcher.EndOnPartition
	return s
}

// alive tells whether a rank of the first generation runs on; the witness in exec
// faults whoever starts beside it.
func (w *world) alive() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k := range w.running {
		if k.Generation == 1 {
			return true
		}
	}
	return false
}

// cutAfter cuts a node off a while after the job has begun, and heals it when the
// job has gone on without it.
func cutAfter(w *world, n *fakeNode, d time.Duration) (cut *time.Time) {
	cut = new(time.Time)
	w.wg.Go(func() {
		time.Sleep(d)
		*cut = time.Now()
		n.cutOff()
	})
	return cut
}

// A node is cut off for ever: the job goes on with the spare one once its lease is
// over, by itself, and not before.
func TestLeaseMakesRoom(t *testing.T) {
	for name, change := range map[string]func(*world, *fakeNode){
		"ranks obey TERM":     func(*world, *fakeNode) {},
		"ranks are deaf":      func(_ *world, n *fakeNode) { n.deaf = true },
		"proofs take a while": func(w *world, _ *fakeNode) { w.slowProof = 4 * time.Second },
		"words are slow":      func(w *world, _ *fakeNode) { w.lag = 3 * time.Second },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 3)
				w.each(theFirstHangs)
				lost := w.nodes[2]
				change(w, lost)
				w.ready()
				cut := cutAfter(w, lost, 30*time.Second)
				events, err := w.client(t.Context(), leased())
				if err != nil {
					t.Fatal(err)
				}
				j := mustJob(t, w, "jjjj")
				if j.Outcome.End != rendezvous.Completed || j.Plan.Generation != 2 ||
					j.Plan.Nodes[0].Host != "spark1" || j.Plan.Nodes[1].Host != "spark2" {
					t.Errorf("generation %d on %+v: %+v", j.Plan.Generation, j.Plan.Nodes, j.Outcome)
				}
				var again time.Time
				for _, p := range events {
					if p.Step == rendezvous.StepPrepared && p.Generation == 2 && again.IsZero() {
						again = p.Time
					}
				}
				if took := again.Sub(*cut); took < 22*time.Second || took > 40*time.Second {
					t.Errorf("prepared again %s after the cut", took)
				}
				if waits := strings.Join(tellOf(events, rendezvous.StepWaiting), "; "); !strings.Contains(waits,
					"leases of ranks on spark3") {
					t.Errorf("waits: %q", waits)
				}
				lost.heal()
				w.settle()
			})
		})
	}
}

// A node that is back before its lease runs out has lost nothing, however often.
func TestLeaseIsRenewedAfterACut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.each(exitAfter(5*time.Minute, 0))
		w.ready()
		w.wg.Go(func() {
			for range 8 {
				time.Sleep(20 * time.Second)
				w.nodes[2].cutOff()
				time.Sleep(12 * time.Second)
				w.nodes[2].heal()
			}
		})
		if _, err := w.client(t.Context(), leased()); err != nil {
			t.Fatal(err)
		}
		if j := mustJob(t, w, "jjjj"); j.Outcome.End != rendezvous.Completed || j.Plan.Generation != 1 {
			t.Errorf("generation %d: %+v", j.Plan.Generation, j.Outcome)
		}
		w.settle()
	})
}

// Who comes back with its lease run out is asked as usual: its ledger says it
// before the leader would count on it.
func TestLeaseRanOutIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.each(theFirstHangs)
		w.ready()
		cut := cutAfter(w, w.nodes[2], 30*time.Second)
		w.wg.Go(func() {
			time.Sleep(51 * time.Second)
			w.nodes[2].heal()
		})
		if _, err := w.client(t.Context(), leased()); err != nil {
			t.Fatal(err)
		}
		j := mustJob(t, w, "jjjj")
		if j.Outcome.End != rendezvous.Completed || len(j.Attempts) != 1 ||
			!strings.Contains(j.Attempts[0].Cause, "its lease ran out") {
			t.Errorf("after %+v: %+v", j.Attempts, j.Outcome)
		}
		if took := j.Outcome.At.Sub(*cut); took > leased().LeaseOver() {
			t.Errorf("the second attempt was over %s after the cut", took)
		}
		w.settle()
	})
}

// A new leader does not know when the last echo was given: it waits as if that was
// just before it began.
func TestNewLeaderWaitsForLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.each(theFirstHangs)
		lost := w.nodes[2]
		first := w.ready()
		if err := first.leader.Launch(t.Context(), leased()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		lost.cutOff()
		time.Sleep(15 * time.Second)
		first.kill()
		began := time.Now()
		w.crown(0)
		if _, err := w.client(t.Context(), leased()); err != nil {
			t.Fatal(err)
		}
		j := mustJob(t, w, "jjjj")
		if j.Outcome.End != rendezvous.Completed || j.Plan.Generation != 2 {
			t.Errorf("generation %d: %+v", j.Plan.Generation, j.Outcome)
		}
		if took := j.Outcome.At.Sub(began); took < leased().LeaseOver() {
			t.Errorf("the second attempt was over %s after the change of leaders", took)
		}
		lost.heal()
		w.settle()
	})
}

// Without a lease nothing changes, however long it takes: the job waits.
func TestNoLeaseNoRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.each(theFirstHangs)
		lost := w.nodes[2]
		w.ready()
		s := leased()
		s.OnPartition = launcher.ContinueOnPartition
		w.wg.Go(func() {
			time.Sleep(30 * time.Second)
			lost.cutOff()
			time.Sleep(time.Hour)
			if n := w.started("jjjj"); n != 2 || !w.alive() {
				w.fault("%d ranks were started, the first ones live: %t", n, w.alive())
			}
			lost.heal()
		})
		if _, err := w.client(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		mustJob(t, w, "jjjj")
		w.settle()
	})
}

// A node without leases gets no rank of such a job, and the launch says so.
func TestOldNodeGetsNoLeasedJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.each(exitAfter(time.Second, 0))
		w.nodes[2].old = true
		w.ready()
		_, err := w.client(t.Context(), leased())
		if !errors.Is(err, rendezvous.ErrCannotPlace) || !strings.Contains(err.Error(), "spark3") ||
			!strings.Contains(err.Error(), "newer sparkrun") {
			t.Errorf("got %v", err)
		}
		plain := spec("pppp", 3, 1)
		if _, err := w.client(t.Context(), plain); err != nil {
			t.Fatal(err)
		}
		mustOutcome(t, w, "pppp")
		w.settle()
	})
}

// However leaders die while a node is cut off, at whatever moment: no generation
// starts beside another (the witness in exec sees it), and the job completes.
func TestLeasesUnderDyingLeaders(t *testing.T) {
	for k := 1; k <= 40; k++ {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 3)
			w.each(theFirstHangs)
			lost := w.nodes[2]
			w.succession(100*time.Millisecond, k, 25, 30)
			cutAfter(w, lost, time.Duration(k)*time.Second/4)
			for {
				_, err := w.client(t.Context(), leased())
				if err == nil {
					break
				}
				if !errors.Is(err, rendezvous.ErrCannotPlace) {
					t.Fatalf("leader dies after %d: %v", k, err)
				}
				time.Sleep(50 * time.Millisecond)
				if w.started("jjjj") == 0 {
					lost.heal()
				}
			}
			j := mustJob(t, w, "jjjj")
			if early := j.Outcome.End == rendezvous.Rejected &&
				w.started("jjjj") == 0; j.Outcome.End != rendezvous.Completed && !early {
				t.Errorf("leader dies after %d: generation %d, %+v", k, j.Plan.Generation, j.Outcome)
			}
			lost.heal()
			w.settle()
		})
	}
}
