package lead

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// scenarios are courses of events whose outcome no change of leader may alter.
var scenarios = map[string]struct {
	setUp func(*world)
	stop  bool // somebody asks for the end, again and again, from 1 s on
	check func(rendezvous.Outcome) bool
	ranks int // that must have been started; -1 = any number
}{
	"all is well": {
		setUp: func(w *world) { w.each(exitAfter(3*time.Second, 0)) },
		check: func(o rendezvous.Outcome) bool { return o.End == rendezvous.Completed && o.ExitCode == 0 },
		ranks: 4,
	},
	"over in a moment": {
		setUp: func(w *world) { w.each(exitAfter(time.Millisecond, 0)) },
		check: func(o rendezvous.Outcome) bool { return o.End == rendezvous.Completed && o.ExitCode == 0 },
		ranks: 4,
	},
	"a rank fails": {
		setUp: func(w *world) { w.nodes[1].life = exitAfter(3*time.Second, 7) },
		check: func(o rendezvous.Outcome) bool {
			return o.End == rendezvous.Failed && o.ExitCode == 7 && o.Root != nil && o.Root.Host == "spark2"
		},
		ranks: 4,
	},
	"a node refuses": {
		setUp: func(w *world) { w.nodes[1].refuses = "no such user" },
		check: func(o rendezvous.Outcome) bool {
			return o.End == rendezvous.Rejected && o.ExitCode == 125 && strings.HasPrefix(o.Cause, "spark2: no such user")
		},
	},
	"somebody stops it": {
		setUp: func(w *world) { w.nodes[0].deaf = true },
		stop:  true,
		check: func(o rendezvous.Outcome) bool { return o.End == rendezvous.Stopped && o.ExitCode == 143 },
		ranks: -1,
	},
	"a node is lost": {
		setUp: func(w *world) {
			w.wg.Go(func() {
				time.Sleep(2 * time.Second)
				w.nodes[1].crash()
				time.Sleep(3 * time.Second)
				w.nodes[1].heal()
			})
		},
		check: func(o rendezvous.Outcome) bool {
			// A leader that comes after the end of the others finds only their
			// ledgers; it may have to wait for the node to know.
			return o.End == rendezvous.Failed && o.ExitCode == 125 && o.Cause == "spark2 restarted"
		},
		ranks: 4,
	},
}

// play runs one scenario under leaders that die after so many points each; the
// last one stays. It returns the points that each reign had.
func play(t *testing.T, name string, lag time.Duration, deaths ...int) (points []int) {
	synctest.Test(t, func(t *testing.T) {
		sc := scenarios[name]
		w := newWorld(t, 2)
		w.lag = lag
		sc.setUp(w)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		had := w.succession(100*time.Millisecond, deaths...)
		if sc.stop {
			w.wg.Go(func() {
				for ctx.Err() == nil {
					time.Sleep(time.Second)
					w.mu.Lock()
					r := w.reign
					w.mu.Unlock()
					if r != nil {
						r.leader.Stop(t.Context(), "jjjj", 2*time.Second, "enough")
					}
				}
			})
		}
		time.Sleep(20 * time.Millisecond)
		s := spec("jjjj", 2, 2)
		s.Grace = 2 * time.Second
		for {
			_, err := w.client(ctx, s)
			if err == nil {
				break
			}
			if strings.Contains(err.Error(), "cannot place") { // not all nodes are up yet
				time.Sleep(50 * time.Millisecond)
				continue
			}
			t.Errorf("client: %v", err)
			break
		}
		cancel()
		if out := mustOutcome(t, w, "jjjj"); !sc.check(out) {
			t.Errorf("outcome %+v", out)
		}
		if n := w.started("jjjj"); sc.ranks >= 0 && n != sc.ranks {
			t.Errorf("%d ranks were started, want %d", n, sc.ranks)
		}
		w.settle()
		points = had()
	})
	return points
}

// TestLeaderChangeAtEveryPoint kills the leadership after its k-th order, event
// or step of a commit, for every k of the scenario, and lets another go on.
func TestLeaderChangeAtEveryPoint(t *testing.T) {
	for name := range scenarios {
		t.Run(name, func(t *testing.T) {
			all := play(t, name, 5*time.Millisecond)[0]
			if all < 8 {
				t.Fatalf("the scenario has only %d points", all)
			}
			for k := 1; k <= all; k++ {
				for _, lag := range []time.Duration{5 * time.Millisecond, 300 * time.Millisecond} {
					t.Run(fmt.Sprintf("%d of %d, lag %s", k, all, lag), func(t *testing.T) { play(t, name, lag, k) })
				}
				for _, second := range []int{1, 3, 6, 10} {
					t.Run(fmt.Sprintf("%d of %d, then %d", k, all, second),
						func(t *testing.T) { play(t, name, 5*time.Millisecond, k, second) })
				}
			}
		})
	}
}

// An earlier leader had told one node to end, and died before the other: the
// job must not go on without half of its ranks.
func TestAnAttemptThatWasBeingEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		first := w.ready()
		s := spec("jjjj", 2, 1)
		if err := first.leader.Launch(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		k := launcher.Key{Job: "jjjj", Generation: 1}
		first.send("id1", launcher.Order{Fence: first.fence, End: &launcher.End{Key: k, Grace: time.Second}})
		time.Sleep(100 * time.Millisecond)
		first.kill()
		w.crown(0)
		if _, err := w.client(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		out := mustOutcome(t, w, "jjjj")
		if out.End != rendezvous.Stopped || out.ExitCode != 143 || !strings.Contains(out.Cause, "being ended") {
			t.Errorf("outcome %+v", out)
		}
		w.settle()
	})
}

// The next leader hears of a failure on one node before it has heard of the
// other, which holds the cause.
func TestANewLeaderWaitsForTheCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.nodes[0].life = exitAfter(5*time.Second, 7)
		first := w.ready()
		s := spec("jjjj", 2, 1)
		if err := first.leader.Launch(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		first.onCommit(func(rendezvous.Kind, bool) error { return errUnknown }) // the outcome is never recorded
		time.Sleep(6 * time.Second)
		first.kill()
		w.nodes[0].cutOff()
		w.crown(0)
		go func() {
			time.Sleep(20 * time.Second)
			w.nodes[0].heal()
		}()
		if _, err := w.client(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		out := mustOutcome(t, w, "jjjj")
		if out.End != rendezvous.Failed || out.ExitCode != 7 || out.Cause != "rank 0 on spark1: exit 7" {
			t.Errorf("outcome %+v", out)
		}
		w.settle()
	})
}
