package lead

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// perTry makes every rank of the n-th generation exit with the n-th code, after d.
func perTry(d time.Duration, codes ...int) func(launcher.Key, int) (time.Duration, *launcher.Exit) {
	return func(k launcher.Key, _ int) (time.Duration, *launcher.Exit) {
		return d, &launcher.Exit{Code: codes[min(int(k.Generation), len(codes))-1]}
	}
}

// theFirstHangs is a life in which only the attempts after the first one complete.
func theFirstHangs(k launcher.Key, _ int) (time.Duration, *launcher.Exit) {
	if k.Generation == 1 {
		return 0, nil
	}
	return time.Second, &launcher.Exit{}
}

func mustJob(t *testing.T, w *world, id launcher.JobID) rendezvous.Job {
	t.Helper()
	mustOutcome(t, w, id)
	j, _ := w.record.Job(id)
	return j
}

// tellOf lists the texts of one kind of step.
func tellOf(events []rendezvous.Progress, step rendezvous.Step) []string {
	var out []string
	for _, p := range events {
		if p.Step == step {
			out = append(out, p.Text)
		}
	}
	return out
}

func TestRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.each(perTry(5*time.Second, 7, 8, 0))
		w.ready()
		s := spec("jjjj", 2, 1)
		s.MaxRestarts = 3
		began := time.Now()
		events, err := w.client(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		j := mustJob(t, w, "jjjj")
		if o := j.Outcome; o.End != rendezvous.Completed || o.ExitCode != 0 || j.Plan.Generation != 3 ||
			j.Plan.Restarts != 2 {
			t.Errorf("outcome %+v of generation %d", o, j.Plan.Generation)
		}
		counts := Counts{Ended: map[rendezvous.End]int64{rendezvous.Completed: 1}, Again: 2}
		if d := cmp.Diff(counts, w.reign.leader.Counts()); d != "" {
			t.Error(d)
		}
		if len(j.Attempts) != 2 || j.Attempts[0].ExitCode != 7 || j.Attempts[1].ExitCode != 8 ||
			!j.Planned.Equal(events[0].Time) {
			t.Errorf("attempts %+v, planned %s", j.Attempts, j.Planned)
		}
		want := []string{"rank 0 on spark1: exit 7; attempt 2 of 4 in 1s", "rank 0 on spark1: exit 8; attempt 3 of 4 in 2s"}
		if d := cmp.Diff(want, tellOf(events, rendezvous.StepAgain)); d != "" {
			t.Error(d)
		}
		if took := time.Since(began); took < 18*time.Second || took > 20*time.Second {
			t.Errorf("three attempts of 5 s and pauses of 1 s and 2 s took %s", took)
		}
		w.settle()
	})
}

// While the nodes' addresses change each of them would refuse: no attempt is lost to that.
func TestRestartIsHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.each(perTry(5*time.Second, 7, 0))
		began := time.Now()
		w.hold = func() string {
			if at := time.Since(began); at > 4*time.Second && at < 40*time.Second {
				return "the addresses change"
			}
			return ""
		}
		w.ready()
		s := spec("jjjj", 2, 1)
		s.MaxRestarts = 1
		events, err := w.client(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		j := mustJob(t, w, "jjjj")
		if o := j.Outcome; o.End != rendezvous.Completed || j.Plan.Generation != 2 || time.Since(began) < 40*time.Second {
			t.Errorf("outcome %+v of generation %d after %s", o, j.Plan.Generation, time.Since(began))
		}
		if d := cmp.Diff([]string{"the addresses change"}, tellOf(events, rendezvous.StepWaiting)); d != "" {
			t.Error(d)
		}
		w.settle()
	})
}

// Who stands in line meanwhile is looked at again, and then waits for its turn as before.
func TestLineIsHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.each(exitAfter(time.Minute, 0))
		began := time.Now()
		w.hold = func() string {
			if time.Since(began) < 10*time.Second {
				return "the addresses change"
			}
			return ""
		}
		r := w.ready()
		first, second := gpuJob("aaaa", 1), gpuJob("bbbb", 1)
		second.Wait = true
		for _, s := range []launcher.Spec{first, second} {
			if err := r.leader.Launch(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		for _, s := range []launcher.Spec{first, second} {
			if _, err := w.client(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			if out := mustOutcome(t, w, s.ID); out.End != rendezvous.Completed {
				t.Errorf("%s: %+v", s.ID, out)
			}
		}
		w.settle()
	})
}

func TestRestartsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.each(exitAfter(time.Second, 7))
		w.ready()
		s := spec("jjjj", 2, 1)
		s.MaxRestarts = 2
		if _, err := w.client(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		j := mustJob(t, w, "jjjj")
		if o := j.Outcome; o.End != rendezvous.Failed || o.ExitCode != 7 ||
			o.Cause != "rank 0 on spark1: exit 7 (attempt 3 of 3)" || j.Plan.Generation != 3 {
			t.Errorf("generation %d: %+v", j.Plan.Generation, o)
		}
		w.settle()
	})
}

// What cannot even be prepared once, was stopped, or ran out of its time is not
// tried again.
func TestWhatIsNotRestarted(t *testing.T) {
	tests := map[string]struct {
		setUp func(*world)
		stop  bool
		end   rendezvous.End
		cause string
	}{
		"refused": {func(w *world) { w.nodes[1].refuses = "no such user" }, false, rendezvous.Rejected,
			"spark2: no such user"},
		"out of time": {func(*world) {}, false, rendezvous.Failed, "the time limit of 10s has passed (--timeout)"},
		"stopped":     {func(*world) {}, true, rendezvous.Stopped, "enough"},
		"stopped while it waits": {func(w *world) { w.each(exitAfter(2900*time.Millisecond, 1)) }, true, rendezvous.Stopped,
			"enough while it waited for its next attempt; the last one had failed: rank 0 on spark1: exit 1"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 2)
				tt.setUp(w)
				if r := w.ready(); tt.stop {
					stopAfter(w, r, 3*time.Second)
				}
				s := spec("jjjj", 2, 1)
				s.MaxRestarts, s.Timeout = 5, 10*time.Second
				if _, err := w.client(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				if j := mustJob(t, w, "jjjj"); j.Outcome.End != tt.end ||
					!strings.HasPrefix(j.Outcome.Cause, tt.cause) || j.Plan.Generation != 1 {
					t.Errorf("generation %d: %+v, want %q", j.Plan.Generation, j.Outcome, tt.cause)
				}
				w.settle()
			})
		})
	}
}

func stopAfter(w *world, r *reign, d time.Duration) {
	w.wg.Go(func() {
		time.Sleep(d)
		if err := r.leader.Stop(w.t.Context(), "jjjj", time.Second, "enough"); err != nil {
			w.fault("stop: %v", err)
		}
	})
}

// A node that is cut off may run its ranks on: the next attempt waits until it is
// back, whatever else is free, and says so.
func TestNoRestartBesideRanksThatMayLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.each(theFirstHangs)
		r := w.ready()
		s := spec("jjjj", 3, 1)
		s.MaxRestarts, s.MinNodes, s.NodeTimeout = 1, 2, 20*time.Second
		go func() {
			time.Sleep(time.Second)
			w.nodes[2].cutOff()
			time.Sleep(10 * time.Minute)
			if n := w.started("jjjj"); n != 3 {
				w.fault("%d ranks were started while spark3 was away", n)
			}
			js := r.leader.Jobs()[0]
			if js.State != rendezvous.StateWaits || !strings.Contains(js.Waits, "mark-dead spark3") {
				w.fault("status %s, %q", js.State, js.Waits)
			}
			w.nodes[2].heal()
		}()
		if _, err := w.client(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if j := mustJob(t, w, "jjjj"); j.Outcome.End != rendezvous.Completed || j.Plan.Generation != 2 ||
			len(j.Plan.Nodes) != 3 {
			t.Errorf("generation %d on %d nodes: %+v", j.Plan.Generation, len(j.Plan.Nodes), j.Outcome)
		}
		w.settle()
	})
}

// A person says that the node is gone: the job goes on with those that are left.
func TestMarkDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.each(theFirstHangs)
		r := w.ready()
		s := spec("jjjj", 3, 1)
		s.MaxRestarts, s.MinNodes = 1, 2
		go func() {
			time.Sleep(time.Second)
			w.nodes[2].crash()
			if err := r.leader.MarkDead("id2"); !errors.Is(err, ErrAnswers) {
				w.fault("mark a node dead that answers: %v", err)
			}
			time.Sleep(3 * time.Second)
			if err := r.leader.MarkDead("id3"); err != nil {
				w.fault("mark dead: %v", err)
			}
		}()
		began := time.Now()
		if _, err := w.client(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("it took %s", took)
		}
		j := mustJob(t, w, "jjjj")
		if j.Outcome.End != rendezvous.Completed || len(j.Plan.Nodes) != 2 ||
			j.Attempts[0].Cause != "spark3 was marked dead" {
			t.Errorf("on %d nodes after %+v: %+v", len(j.Plan.Nodes), j.Attempts, j.Outcome)
		}
		w.nodes[2].heal()
		w.settle()
	})
}

// Another boot proves that nothing of the old one runs: no word of anybody is
// needed, and a spare node takes the place of one that stays away.
func TestSpareNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.each(theFirstHangs)
		r := w.ready()
		s := spec("jjjj", 2, 1)
		s.MaxRestarts, s.Spare, s.On = 1, 1, []string{"spark3", "spark2", "spark1"}
		go func() {
			time.Sleep(time.Second)
			j, _ := w.record.Job("jjjj")
			if len(j.Plan.Held) != 1 || j.Plan.Held[0].Host != "spark1" {
				w.fault("held: %+v", j.Plan.Held)
			}
			w.nodes[2].crash()
			time.Sleep(4 * time.Second)
			if err := r.leader.MarkDead("id3"); err != nil {
				w.fault("mark dead: %v", err)
			}
		}()
		if _, err := w.client(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		j := mustJob(t, w, "jjjj")
		if j.Outcome.End != rendezvous.Completed || j.Plan.Nodes[0].Host != "spark1" ||
			j.Plan.Nodes[1].Host != "spark2" || len(j.Plan.Held) != 0 {
			t.Errorf("plan %+v: %+v", j.Plan, j.Outcome)
		}
		w.nodes[2].heal()
		w.settle()
	})
}

// before and after run once each, as one rank where rank 0 is, whatever the main
// stage's attempts come to.
func TestBeforeAndAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.each(perTry(time.Second, 0, 7, 0, 0))
		w.ready()
		s := withStages(spec("jjjj", 2, 2))
		s.MaxRestarts = 1
		events, err := w.client(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		j := mustJob(t, w, "jjjj")
		var got []string
		for _, p := range events {
			if p.Step == rendezvous.StepPlanned {
				got = append(got, strings.TrimSpace(p.Plan.Stage+" "+p.Text)+" on "+p.Plan.Nodes[0].Host)
			}
		}
		want := []string{"before --before on spark1", "attempt 1 of 2 on spark1", "attempt 2 of 2 on spark1",
			"after --after on spark1"}
		if d := cmp.Diff(want, got); d != "" || j.Outcome.End != rendezvous.Completed {
			t.Errorf("%s: %+v", d, j.Outcome)
		}
		for gen, ranks := range map[launcher.Generation]int{1: 1, 2: 4, 3: 4, 4: 1} {
			n := 0
			for k := range w.execs {
				if k.Generation == gen {
					n++
				}
			}
			if n != ranks {
				t.Errorf("generation %d started %d ranks", gen, n)
			}
		}
		w.settle()
	})
}

func TestBeforeFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.each(perTry(time.Second, 3, 0))
		w.ready()
		s := withStages(spec("jjjj", 2, 2))
		s.MaxRestarts = 5
		if _, err := w.client(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if j := mustJob(t, w, "jjjj"); j.Outcome.ExitCode != 3 ||
			j.Outcome.Cause != "rank 0 on spark1: exit 3 (--before)" || j.Plan.Generation != 1 {
			t.Errorf("outcome %+v", j.Outcome)
		}
		w.settle()
	})
}

func withStages(s launcher.Spec) launcher.Spec {
	for _, name := range []string{launcher.StageBefore, launcher.StageAfter} {
		s.Stages = append(s.Stages, launcher.Stage{Name: name, RanksPerNode: 1, Argv: launcher.Lits("true"), Workdir: "/"})
	}
	slices.Reverse(s.Stages)
	return s
}

// However often leaders die meanwhile, the attempts are as many as were asked for,
// and none runs beside another.
func TestRestartsUnderDyingLeaders(t *testing.T) {
	for k := 1; k <= 60; k++ {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 2)
			w.each(perTry(2*time.Second, 7, 8, 0))
			w.succession(100*time.Millisecond, k, 25)
			s := spec("jjjj", 2, 2)
			s.MaxRestarts = 2
			for {
				_, err := w.client(t.Context(), s)
				if err == nil {
					break
				}
				if !errors.Is(err, rendezvous.ErrCannotPlace) {
					t.Fatalf("leader dies after %d: %v", k, err)
				}
				time.Sleep(50 * time.Millisecond)
			}
			if j := mustJob(t, w, "jjjj"); j.Outcome.End != rendezvous.Completed || j.Plan.Generation != 3 ||
				len(j.Attempts) != 2 {
				t.Errorf("leader dies after %d: generation %d, %+v", k, j.Plan.Generation, j.Outcome)
			}
			w.settle()
		})
	}
}

// Where no cause is known a rank's last line is told in its place, unless it is only a warning.
func TestALastLine(t *testing.T) {
	for last, want := range map[string]string{
		"a\nno luck": " (its last line: no luck)", "": "", "a\nWARNING: x is slow": "", "a\nwarning: x": "",
		"a\n/x/y.py:3: UserWarning: x is old": "", "UserWarning: x\n  warnings.warn(\"x\")": "",
		"a\n2026-11-24 01:02:03 WARN x": "", "no warning came": " (its last line: no warning came)",
	} {
		out := rendezvous.Outcome{Root: &launcher.RankExit{Exit: launcher.Exit{Code: 1, Last: last}}}
		if got := lastLine(out); got != want {
			t.Errorf("%q: %q, want %q", last, got, want)
		}
	}
}
