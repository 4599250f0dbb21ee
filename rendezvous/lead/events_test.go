package lead

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// exitAfter makes every rank end so; the ranks named in others end otherwise.
func exitAfter(d time.Duration, code int) func(launcher.Key, int) (time.Duration, *launcher.Exit) {
	return exitAs(d, launcher.Exit{Code: code})
}

func exitAs(d time.Duration, exit launcher.Exit) func(launcher.Key, int) (time.Duration, *launcher.Exit) {
	return func(launcher.Key, int) (time.Duration, *launcher.Exit) { return d, &exit }
}

// each sets the life of all ranks of all nodes.
func (w *world) each(life func(launcher.Key, int) (time.Duration, *launcher.Exit)) {
	for _, n := range w.nodes {
		n.life = life
	}
}

// ready crowns a leader and waits until all nodes are up.
func (w *world) ready() *reign {
	r := w.crown(0)
	time.Sleep(50 * time.Millisecond)
	return r
}

func mustOutcome(t *testing.T, w *world, id launcher.JobID) rendezvous.Outcome {
	t.Helper()
	j, ok := w.record.Job(id)
	if !ok || j.Outcome == nil {
		t.Fatalf("job %s has no outcome", id)
	}
	return *j.Outcome
}

// steps renders events in short, without what runs in parallel by chance.
func steps(events []rendezvous.Progress) string {
	var out []string
	for _, p := range events {
		out = append(out, string(p.Step))
	}
	return strings.Join(out, " ")
}

func TestHappyPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.each(exitAfter(time.Minute, 0))
		r := w.ready()
		began := time.Now()
		events, err := w.client(t.Context(), spec("jjjj", 3, 2))
		if err != nil {
			t.Fatal(err)
		}
		want := "planned prepared prepared prepared started started started running exited exited exited exited exited exited ended"
		if got := steps(events); got != want {
			t.Errorf("events %s, want %s", got, want)
		}
		last := events[len(events)-1]
		if d := cmp.Diff(&rendezvous.Outcome{End: rendezvous.Completed, At: last.Outcome.At,
			Started: last.Outcome.Started}, last.Outcome); d != "" {
			t.Error(d)
		}
		if last.Outcome.Started == nil || last.Outcome.Started.Sub(began) > time.Second {
			t.Errorf("started at %v, asked at %v", last.Outcome.Started, began)
		}
		if took := time.Since(began); took > time.Minute+2*time.Second {
			t.Errorf("it took %s", took)
		}
		if n := w.started("jjjj"); n != 6 {
			t.Errorf("%d ranks were started", n)
		}
		w.settle()
		if r.sent("start") != 3 || r.sent("prepare") != 3 || r.sent("forget") != 3 {
			t.Errorf("orders %v", r.orders)
		}
	})
}

func TestNoneStartsBeforeAllArePrepared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.each(exitAfter(time.Second, 0))
		w.nodes[1].slow = 20 * time.Second
		r := w.ready()
		done := make(chan error, 1)
		go func() { _, err := w.client(context.Background(), spec("jjjj", 3, 1)); done <- err }()
		time.Sleep(19 * time.Second)
		if n := r.sent("start"); n != 0 || w.started("jjjj") != 0 {
			t.Errorf("%d starts were sent while spark2 was preparing", n)
		}
		if s := r.leader.Jobs()[0].State; s != rendezvous.StateStarts {
			t.Errorf("state %s", s)
		}
		time.Sleep(1200 * time.Millisecond)
		if s := r.leader.Jobs()[0]; s.State != rendezvous.StateRuns || s.Started == nil {
			t.Errorf("status %+v", s)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		w.settle()
	})
}

func TestStartTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.nodes[1].slow, w.nodes[1].does = time.Hour, "pulls train:1: 1 MiB of 9 GiB"
		w.ready()
		s := spec("jjjj", 2, 1)
		s.StartTimeout = 30 * time.Second
		began := time.Now()
		if _, err := w.client(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		out := mustOutcome(t, w, "jjjj")
		if out.End != rendezvous.Failed || out.ExitCode != 125 ||
			!strings.Contains(out.Cause, "not started within 30s: spark1 is prepared and waiting, "+
				"spark2 is still preparing (pulls train:1: 1 MiB of 9 GiB)") {
			t.Errorf("outcome %+v", out)
		}
		if took := time.Since(began); took > 31*time.Second {
			t.Errorf("it took %s", took)
		}
		if w.started("jjjj") != 0 {
			t.Error("a rank was started")
		}
		w.settle()
	})
}

func TestOneRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.nodes[2].refuses = `exec "pyhton3": not found`
		w.ready()
		events, err := w.client(t.Context(), spec("jjjj", 3, 1))
		if err != nil {
			t.Fatal(err)
		}
		out := mustOutcome(t, w, "jjjj")
		if out.End != rendezvous.Rejected || out.ExitCode != 125 || out.Cause != `spark3: exec "pyhton3": not found` {
			t.Errorf("outcome %+v", out)
		}
		if w.started("jjjj") != 0 {
			t.Error("a rank was started")
		}
		if got := steps(events); !strings.Contains(got, " refused ") || !strings.HasSuffix(got, " ended") ||
			strings.Contains(got, "running") {
			t.Errorf("events %s", got)
		}
		w.settle()
	})
}

func TestFailingRankEndsItsAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.nodes[1].life = exitAfter(5*time.Second, 7)
		w.nodes[2].deaf = true
		w.ready()
		s := spec("jjjj", 3, 1)
		s.Grace = 3 * time.Second
		began := time.Now()
		if _, err := w.client(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 9*time.Second {
			t.Errorf("the ranks took %s to end", took)
		}
		out := mustOutcome(t, w, "jjjj")
		if out.End != rendezvous.Failed || out.ExitCode != 7 || out.Cause != "rank 1 on spark2: exit 7" ||
			out.Root == nil || out.Root.Rank != 1 {
			t.Errorf("outcome %+v", out)
		}
		if len(out.Exits) != 3 || out.Exits[0].Rank != 1 || !out.Exits[1].Exit.ByUs || out.Exits[2].Exit.Signal != 9 {
			t.Errorf("exits %+v", out.Exits)
		}
		w.settle()
	})
}

// The first failure may be told after a later one: its node's stream was slow.
func TestRootCauseMayBeToldLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.nodes[0].life = exitAfter(5*time.Second, 7)
		w.nodes[1].life = exitAfter(6*time.Second, 1) // falls over because of the first
		w.ready()
		go func() {
			time.Sleep(4 * time.Second)
			w.nodes[0].cutOff()
			time.Sleep(4 * time.Second)
			w.nodes[0].heal()
		}()
		events, err := w.client(t.Context(), spec("jjjj", 2, 1))
		if err != nil {
			t.Fatal(err)
		}
		out := mustOutcome(t, w, "jjjj")
		if out.ExitCode != 7 || out.Root == nil || out.Root.Host != "spark1" || out.Cause != "rank 0 on spark1: exit 7" {
			t.Errorf("outcome %+v", out)
		}
		if got := steps(events); !strings.Contains(got, "node-down exited ending") || !strings.Contains(got, "node-up") {
			t.Errorf("events %s", got)
		}
		w.settle()
	})
}

func TestStop(t *testing.T) {
	tests := map[string]struct {
		deaf   bool
		graces []time.Duration // one stop each, a second apart
		took   time.Duration   // from the first stop to the outcome, at most
		code   int
	}{
		"ranks that listen":          {false, []time.Duration{10 * time.Second}, time.Second, 143},
		"ranks that do not":          {true, []time.Duration{10 * time.Second}, 11 * time.Second, 143},
		"again with a shorter grace": {true, []time.Duration{10 * time.Second, 2 * time.Second}, 4 * time.Second, 143},
		"again with none":            {true, []time.Duration{10 * time.Second, 0}, 2 * time.Second, 137},
		"again with a longer one":    {true, []time.Duration{2 * time.Second, time.Hour}, 3 * time.Second, 143},
		"kill at once":               {true, []time.Duration{0}, time.Second, 137},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 2)
				for _, n := range w.nodes {
					n.deaf = tt.deaf
				}
				r := w.ready()
				done := make(chan struct{})
				go func() { defer close(done); w.client(context.Background(), spec("jjjj", 2, 1)) }()
				time.Sleep(time.Second)
				began := time.Now()
				for _, g := range tt.graces {
					if err := r.leader.Stop(t.Context(), "jjjj", g, "stopped by alice"); err != nil {
						break // ended already
					}
					time.Sleep(time.Second)
				}
				<-done
				out := mustOutcome(t, w, "jjjj")
				if out.End != rendezvous.Stopped || out.ExitCode != tt.code || out.Cause != "stopped by alice" || out.Root != nil {
					t.Errorf("outcome %+v", out)
				}
				if took := out.At.Sub(began); took > tt.took {
					t.Errorf("it took %s, at most %s wanted", took, tt.took)
				}
				if err := r.leader.Stop(t.Context(), "jjjj", 0, ""); !errors.Is(err, rendezvous.ErrJobEnded) {
					t.Errorf("stop of an ended job: %v", err)
				}
				if err := r.leader.Stop(t.Context(), "none", 0, ""); !errors.Is(err, rendezvous.ErrNoJob) {
					t.Errorf("stop of no job: %v", err)
				}
				w.settle()
			})
		})
	}
}

// A stop that ends without a machine says so: its ranks go on there, for all that is known.
func TestStopWithoutANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		r := w.ready()
		s := spec("jjjj", 2, 1)
		s.NodeTimeout = 20 * time.Second
		done := make(chan struct{})
		go func() { defer close(done); w.client(context.Background(), s) }()
		time.Sleep(time.Second)
		w.nodes[1].cutOff()
		if err := r.leader.Stop(t.Context(), "jjjj", time.Second, "stopped by alice"); err != nil {
			t.Fatal(err)
		}
		<-done
		out := mustOutcome(t, w, "jjjj")
		if out.Cause != "stopped by alice; not every rank was seen to end: spark2 has not answered for 20s" ||
			out.Doubts() != "not every rank was seen to end: spark2 has not answered for 20s" {
			t.Errorf("outcome %+v", out)
		}
		w.nodes[1].heal()
		w.settle()
	})
}

func TestStopBeforeStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.nodes[1].slow = 10 * time.Second
		r := w.ready()
		s := spec("jjjj", 2, 1)
		if err := r.leader.Launch(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := r.leader.Stop(t.Context(), "jjjj", time.Second, "changed my mind"); err != nil {
			t.Fatal(err)
		}
		events, err := w.client(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		out := mustOutcome(t, w, "jjjj")
		if out.End != rendezvous.Stopped || w.started("jjjj") != 0 {
			t.Errorf("outcome %+v, %d ranks started", out, w.started("jjjj"))
		}
		if strings.Contains(steps(events), "running") {
			t.Errorf("a job that never ran is told to run: %s", steps(events))
		}
		w.settle()
	})
}

func TestNodeLostBeforeStart(t *testing.T) {
	for name, lose := range map[string]func(*fakeNode){
		"power cut":          func(n *fakeNode) { n.crash() },
		"cable pulled":       func(n *fakeNode) { n.cutOff() },
		"and back, rebooted": func(n *fakeNode) { n.crash(); n.heal() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 3)
				w.nodes[0].slow = 10 * time.Second
				w.ready()
				began := time.Now()
				go func() {
					time.Sleep(time.Second)
					lose(w.nodes[1])
				}()
				if _, err := w.client(t.Context(), spec("jjjj", 3, 1)); err != nil {
					t.Fatal(err)
				}
				out := mustOutcome(t, w, "jjjj")
				if out.End != rendezvous.Rejected || out.ExitCode != 125 || !strings.Contains(out.Cause, "spark2") ||
					!strings.Contains(out.Cause, "no rank was started") {
					t.Errorf("outcome %+v", out)
				}
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("the answer took %s", took)
				}
				if w.started("jjjj") != 0 {
					t.Error("a rank was started")
				}
				w.nodes[1].heal()
				w.settle()
			})
		})
	}
}

func TestNodeLostWhileRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		r := w.ready()
		s := spec("jjjj", 2, 1)
		s.NodeTimeout = 20 * time.Second
		go func() {
			time.Sleep(time.Second)
			w.nodes[1].cutOff()
			time.Sleep(5 * time.Second)
			if js := r.leader.Jobs()[0]; js.State != rendezvous.StateRuns || len(js.Away) != 1 ||
				js.Away[0] != "spark2" || time.Since(js.AwaySince["spark2"]) > 5*time.Second ||
				time.Since(js.AwaySince["spark2"]) < 2*time.Second {
				w.fault("status while a node is away: %s, away %v since %v", js.State, js.Away, js.AwaySince)
			}
		}()
		began := time.Now()
		events, err := w.client(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		out := mustOutcome(t, w, "jjjj")
		if out.End != rendezvous.Failed || out.ExitCode != 125 || out.Cause != "spark2 has not answered for 20s" {
			t.Errorf("outcome %+v", out)
		}
		if took := time.Since(began); took < 20*time.Second || took > 25*time.Second {
			t.Errorf("it took %s", took)
		}
		if got := steps(events); !strings.Contains(got, "running node-down ending") {
			t.Errorf("events %s", got)
		}
		// It was given up, but it runs: it must end once it is back.
		w.nodes[1].heal()
		w.settle()
	})
}

// A node given up on comes back while the others are still being ended.
func TestLostNodeBackWhileTheAttemptEnds(t *testing.T) {
	for _, back := range []time.Duration{22100 * time.Millisecond, 24 * time.Second, 29 * time.Second,
		31900 * time.Millisecond, 32 * time.Second, 32100 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 2)
			w.nodes[0].deaf = true
			w.ready()
			s := spec("jjjj", 2, 1)
			s.NodeTimeout = 20 * time.Second
			go func() {
				time.Sleep(time.Second)
				w.nodes[1].cutOff()
				time.Sleep(back)
				w.nodes[1].heal()
			}()
			if _, err := w.client(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			if out := mustOutcome(t, w, "jjjj"); out.End != rendezvous.Failed || out.Cause != "spark2 has not answered for 20s" {
				t.Errorf("back after %s: outcome %+v", back, out)
			}
			w.settle()
		})
	}
}

func TestShortAbsenceIsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.each(exitAfter(30*time.Second, 0))
		w.ready()
		go func() {
			for _, n := range w.nodes {
				time.Sleep(5 * time.Second)
				n.cutOff()
				time.Sleep(5 * time.Second)
				n.heal()
			}
			time.Sleep(8 * time.Second) // the ranks end while spark2 is away
			w.nodes[1].cutOff()
			time.Sleep(8 * time.Second)
			w.nodes[1].heal()
		}()
		if _, err := w.client(t.Context(), spec("jjjj", 2, 1)); err != nil {
			t.Fatal(err)
		}
		if out := mustOutcome(t, w, "jjjj"); out.End != rendezvous.Completed || out.ExitCode != 0 {
			t.Errorf("outcome %+v", out)
		}
		w.settle()
	})
}

func TestNodeBackWithAnotherBoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.ready()
		began := time.Now()
		go func() {
			time.Sleep(time.Second)
			w.nodes[1].crash()
			w.nodes[1].heal()
		}()
		if _, err := w.client(t.Context(), spec("jjjj", 2, 1)); err != nil {
			t.Fatal(err)
		}
		out := mustOutcome(t, w, "jjjj")
		if out.End != rendezvous.Failed || out.Cause != "spark2 restarted" || out.ExitCode != 125 {
			t.Errorf("outcome %+v", out)
		}
		if took := time.Since(began); took > 6*time.Second { // no waiting for the node time-out: the boot is proof
			t.Errorf("it took %s", took)
		}
		w.settle()
	})
}

// A node that has ended its part may reboot without harm.
func TestRebootAfterTheEndIsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.nodes[0].life = exitAfter(30*time.Second, 0)
		w.nodes[1].life = exitAfter(time.Second, 0)
		w.ready()
		go func() {
			time.Sleep(5 * time.Second)
			w.nodes[1].crash()
			w.nodes[1].heal()
		}()
		if _, err := w.client(t.Context(), spec("jjjj", 2, 1)); err != nil {
			t.Fatal(err)
		}
		if out := mustOutcome(t, w, "jjjj"); out.End != rendezvous.Completed {
			t.Errorf("outcome %+v", out)
		}
		w.settle()
	})
}

func TestStartRefusedOnOneNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		r := w.ready()
		go func() {
			time.Sleep(time.Second)
			j, _ := w.record.Job("jjjj")
			r.leader.Event(launcher.Event{Key: j.Key(), Node: "id2", Kind: launcher.Refused, Text: "start ranks: no shim"})
		}()
		if _, err := w.client(t.Context(), spec("jjjj", 2, 1)); err != nil {
			t.Fatal(err)
		}
		// Ranks have run: "rejected" would claim that none had.
		if out := mustOutcome(t, w, "jjjj"); out.End != rendezvous.Failed || out.Cause != "spark2: start ranks: no shim" {
			t.Errorf("outcome %+v", out)
		}
		w.settle()
	})
}
