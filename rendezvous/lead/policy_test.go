package lead

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// failsOn makes rank of n exit with code after d; its other ranks go on.
func failsOn(rank int, d time.Duration, code int, others time.Duration) func(launcher.Key, int) (time.Duration,
	*launcher.Exit) {
	return func(_ launcher.Key, r int) (time.Duration, *launcher.Exit) {
		if r == rank {
			return d, &launcher.Exit{Code: code}
		}
		return others, &launcher.Exit{}
	}
}

func TestContinueOnFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.each(failsOn(1, 5*time.Second, 7, time.Minute))
		r := w.ready()
		s := spec("jjjj", 2, 1)
		s.OnFailure = launcher.ContinueOnFailure
		began := time.Now()
		if _, err := w.client(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < time.Minute {
			t.Errorf("the others were given %s, not their minute", took)
		}
		out := mustOutcome(t, w, "jjjj")
		if out.End != rendezvous.Failed || out.ExitCode != 7 || out.Root == nil || out.Root.Rank != 1 || len(out.Exits) != 1 {
			t.Errorf("outcome %+v", out)
		}
		w.settle()
		if n := r.sent("forget"); n != 2 {
			t.Errorf("%d nodes were let go", n)
		}
	})
}

// With --on-failure continue a lost node ends nothing either; it is told in the
// end.
func TestContinueWithoutANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.each(exitAfter(2*time.Minute, 0))
		w.ready()
		s := spec("jjjj", 2, 1)
		s.OnFailure, s.NodeTimeout = launcher.ContinueOnFailure, 20*time.Second
		go func() {
			time.Sleep(time.Second)
			w.nodes[1].cutOff()
		}()
		began := time.Now()
		if _, err := w.client(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 2*time.Minute {
			t.Errorf("the other node was given %s, not its two minutes", took)
		}
		if out := mustOutcome(t, w, "jjjj"); out.End != rendezvous.Failed || out.Cause != "spark2 has not answered for 20s" {
			t.Errorf("outcome %+v", out)
		}
		w.nodes[1].heal()
		w.settle()
	})
}

func TestTimeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		first := w.ready()
		s := spec("jjjj", 2, 1)
		s.Timeout = time.Minute
		began := time.Now()
		if err := first.leader.Launch(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		first.kill() // the next leader knows the limit from the record
		w.crown(0)
		if _, err := w.client(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		out := mustOutcome(t, w, "jjjj")
		if out.End != rendezvous.Failed || out.ExitCode != launcher.ExitTimedOut ||
			!strings.Contains(out.Cause, "time limit of 1m0s") || out.Root != nil {
			t.Errorf("outcome %+v", out)
		}
		if took := time.Since(began); took < time.Minute || took > 62*time.Second {
			t.Errorf("it took %s", took)
		}
		w.settle()
	})
}

// Who has left with 0 while others go on is told, and in the outcome where that ends badly.
func TestWhoHadEndedIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.nodes[0].life = exitAfter(5*time.Second, 0)
		w.nodes[1].life = exitAfter(20*time.Second, 7)
		r := w.ready()
		w.wg.Go(func() {
			time.Sleep(10 * time.Second)
			if jobs := r.leader.Jobs(); len(jobs) != 1 || !slices.Equal(jobs[0].Done, []int{0}) {
				w.fault("after 10 s: %+v", jobs)
			}
		})
		if _, err := w.client(t.Context(), spec("jjjj", 2, 1)); err != nil {
			t.Fatal(err)
		}
		out := mustOutcome(t, w, "jjjj")
		if out.ExitCode != 7 || len(out.Exits) != 2 || out.Exits[0].Rank != 1 || out.Exits[1].Rank != 0 ||
			out.Exits[1].Exit.Failed() {
			t.Errorf("outcome %+v", out)
		}
		w.settle()
	})
}

// A failure is evaluated 50 ms late: what another rank did by itself meanwhile, and
// earlier, is the cause.
func TestFailuresAreCollected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.nodes[0].life = exitAfter(5*time.Second+30*time.Millisecond, 1)
		w.nodes[1].life = exitAfter(5*time.Second, 7)
		w.ready()
		if _, err := w.client(t.Context(), spec("jjjj", 2, 1)); err != nil {
			t.Fatal(err)
		}
		out := mustOutcome(t, w, "jjjj")
		if out.Root == nil || out.Root.Rank != 1 || len(out.Exits) != 2 || out.Exits[1].Exit.ByUs {
			t.Errorf("outcome %+v", out)
		}
		w.settle()
	})
}

// silentUntil answers for a node that only its control stream has lost.
func silentUntil(t *time.Time) func() bool {
	return func() bool {
		time.Sleep(2 * time.Second) // as long as a dial into the void takes
		return time.Now().Before(*t)
	}
}

// A dead management switch takes every control stream and no rank: the node is
// given up a node time-out after its last sign of life, not before.
func TestANodeThatAnswersElsewhereIsNotSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		answersUntil := time.Now().Add(10 * time.Minute)
		w.others = fakeOthers{answers: silentUntil(&answersUntil)}
		w.ready()
		s := spec("jjjj", 2, 1)
		s.NodeTimeout = 3 * time.Second
		go func() {
			time.Sleep(time.Second)
			w.nodes[1].cutOff()
		}()
		if _, err := w.client(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if out := mustOutcome(t, w, "jjjj"); out.Cause != "spark2 has not answered for 3s" {
			t.Errorf("outcome %+v", out)
		}
		if over := time.Since(answersUntil); over < 0 || over > 10*time.Second {
			t.Errorf("given up %s after the last sign of life", over)
		}
		w.nodes[1].heal()
		w.settle()
	})
}

// Who never gives a node up can still end the job: the outcome does not wait for
// a node that is away for longer than a batch job would.
func TestNeverGivingUpANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		r := w.ready()
		s := spec("jjjj", 2, 1)
		s.NodeTimeout = launcher.Never
		go func() {
			time.Sleep(time.Second)
			w.nodes[1].cutOff()
			time.Sleep(24 * time.Hour)
			if js := r.leader.Jobs()[0]; js.State != rendezvous.StateRuns {
				w.fault("after a day without spark2: %s", js.State)
			}
			if err := r.leader.Stop(t.Context(), "jjjj", time.Second, "enough"); err != nil {
				w.fault("stop: %v", err)
			}
		}()
		began := time.Now()
		if _, err := w.client(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began) - 24*time.Hour; took > 2*time.Minute {
			t.Errorf("the end took %s", took)
		}
		if out := mustOutcome(t, w, "jjjj"); out.End != rendezvous.Stopped {
			t.Errorf("outcome %+v", out)
		}
		w.nodes[1].heal()
		w.settle()
	})
}

// Clocks differ by more than what lies between two failures: the measured
// difference puts them in order.
func TestRootCauseByCorrectedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.nodes[0].life = exitAfter(5*time.Second+20*time.Millisecond, 1)
		w.nodes[1].life = exitAfter(5*time.Second, 7)
		w.nodes[1].ahead = time.Hour
		r := w.ready()
		r.leader.Clock("id2", time.Hour)
		r.leader.Clock("nobody", time.Hour)
		began := time.Now()
		if _, err := w.client(t.Context(), spec("jjjj", 2, 1)); err != nil {
			t.Fatal(err)
		}
		out := mustOutcome(t, w, "jjjj")
		if out.Root == nil || out.Root.Rank != 1 || out.Root.Time.Sub(began) > 6*time.Second || out.Exits[0].Rank != 1 {
			t.Errorf("outcome %+v", out)
		}
		w.settle()
	})
}

// Ranks that only report a lost peer are no cause while there is a better one.
func TestLostPeersComeLast(t *testing.T) {
	report := &launcher.Exit{Code: 1, Words: "Connection closed by peer", LostPeer: true}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.nodes[0].life = func(launcher.Key, int) (time.Duration, *launcher.Exit) { return 5 * time.Second, report }
		w.nodes[1].life = exitAfter(5*time.Second+800*time.Millisecond, 7) // still on its way out
		w.ready()
		if _, err := w.client(t.Context(), spec("jjjj", 2, 1)); err != nil {
			t.Fatal(err)
		}
		if out := mustOutcome(t, w, "jjjj"); out.ExitCode != 7 || out.Root == nil || out.Root.Rank != 1 {
			t.Errorf("outcome %+v", out)
		}
		w.settle()
	})
	// The peer went with its machine, which is known later than its absence.
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.nodes[0].life = func(launcher.Key, int) (time.Duration, *launcher.Exit) { return 5 * time.Second, report }
		w.ready()
		s := spec("jjjj", 2, 1)
		s.NodeTimeout = 20 * time.Second
		go func() {
			time.Sleep(4900 * time.Millisecond)
			w.nodes[1].cutOff()
		}()
		if _, err := w.client(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		want := "spark2 has not answered for 20s; seen as: rank 0 on spark1: exit 1: Connection closed by peer"
		if out := mustOutcome(t, w, "jjjj"); out.ExitCode != 125 || out.Root != nil || out.Cause != want {
			t.Errorf("outcome %+v", out)
		}
		w.nodes[1].heal()
		w.settle()
	})
}
