package lead

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// serving is a job that serves on two nodes, and may be tried again three times an hour.
func servingJob(id launcher.JobID, nodes int) launcher.Spec {
	s := spec(id, nodes, 1)
	s.Stages[0].Ports = []launcher.NamedPort{{Name: "api", At: 8000}}
	s.Service = &launcher.Service{Port: launcher.Of(launcher.PortNamed("api")), Metrics: "/metrics", Restarts: 3,
		Per: time.Hour}
	return s
}

// launched starts a job and returns once it is recorded.
func launched(t *testing.T, w *world, s launcher.Spec) *reign {
	t.Helper()
	r := w.ready()
	if err := r.leader.Launch(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	w.acked[s.ID] = true
	w.mu.Unlock()
	return r
}

// generationAt is which generation a job is at after so long; 0: it has ended.
func generationAt(t *testing.T, w *world, id launcher.JobID, after time.Duration) launcher.Generation {
	t.Helper()
	time.Sleep(after)
	j, known := w.record.Job(id)
	if !known {
		t.Fatalf("job %s is not known", id)
	}
	if j.Outcome != nil {
		return 0
	}
	return j.Plan.Generation
}

// stopped ends a service, as nothing else does.
func stopped(t *testing.T, w *world, id launcher.JobID) {
	t.Helper()
	w.mu.Lock()
	r := w.reign
	w.mu.Unlock()
	if err := r.leader.Stop(t.Context(), id, time.Second, "stopped by alice"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Minute)
	if out := mustOutcome(t, w, id); out.End != rendezvous.Stopped {
		t.Errorf("outcome %+v", out)
	}
	w.settle()
}

// A server that fails is tried again as often as --restart says, counted by the record,
// under whichever leader.
func TestServiceRestarts(t *testing.T) {
	for _, change := range []bool{false, true} {
		t.Run(fmt.Sprintf("new leaders %v", change), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 2)
				w.each(exitAfter(10*time.Minute, 7))
				r := launched(t, w, servingJob("aaaa", 2))
				for want := launcher.Generation(1); want <= 4; want++ {
					if got := generationAt(t, w, "aaaa", 5*time.Minute); got != want {
						t.Errorf("generation %d, want %d", got, want)
					}
					if change {
						r.kill()
						r = w.ready()
					}
					time.Sleep(5*time.Minute + 10*time.Second)
				}
				j := mustJob(t, w, "aaaa")
				if !strings.HasSuffix(j.Outcome.Cause, "exit 7 (3 restarts in 1h used up)") {
					t.Errorf("cause %q", j.Outcome.Cause)
				}
				if o := j.Outcome; o.End != rendezvous.Failed || o.ExitCode != 7 || len(j.Faults) != 3 || j.Plan.Restarts != 3 {
					t.Errorf("outcome %+v, faults %v", o, j.Faults)
				}
				w.settle()
			})
		})
	}
}

// As long as it fails no more often than that it goes on for ever.
func TestServiceRestartsForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.each(exitAfter(25*time.Minute, 0)) // an end with 0 is one, too
		launched(t, w, servingJob("aaaa", 2))
		if got := generationAt(t, w, "aaaa", 8*time.Hour); got < 18 {
			t.Errorf("generation %d after eight hours", got)
		}
		j, _ := w.record.Job("aaaa")
		if len(j.Faults) > 3 || !strings.HasSuffix(j.Attempts[0].Cause, ": exit 0; the server ended by itself") {
			t.Errorf("faults %v, cause %q", j.Faults, j.Attempts[0].Cause)
		}
		stopped(t, w, "aaaa")
	})
}

// A server that leaves with 0 is the cause, with what its node has found out, and not one that
// fails because of it.
func TestServiceRankLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		const words = "Worker proc VllmWorker-1 died unexpectedly (exit code: -9)"
		w.nodes[1].life = exitAs(10*time.Minute, launcher.Exit{Words: words, Last: "shutting down executor."})
		w.nodes[0].life = exitAs(10*time.Minute+time.Nanosecond, launcher.Exit{Code: 1, Words: "EngineDeadError"})
		s := servingJob("aaaa", 2)
		s.Service.Restarts, s.Service.Per = 0, 0
		launched(t, w, s)
		time.Sleep(11 * time.Minute)
		o := mustOutcome(t, w, "aaaa")
		if want := "stage main, rank 1 on spark2: exit 0: " + words + "; the server ended by itself (--restart no)"; o.Cause != want || o.ExitCode != launcher.ExitOwnFailure {
			t.Errorf("%d, %q, want %q", o.ExitCode, o.Cause, want)
		}
		if o.Root == nil || o.Root.Rank != 1 || o.Root.Exit.Last == "" || o.AllLost {
			t.Errorf("outcome %+v", o)
		}
		w.settle()
	})
}

// A server that leaves as it has lost another one waits for that one's word. vLLM's other half
// may be long on its way out: what its log says counts though it was ended by us.
func TestServiceLostPeer(t *testing.T) {
	const (
		gloo  = "RuntimeError: [gloo/transport/tcp/pair.cc:538] Connection closed by peer [192.168.100.13]:4711"
		words = "Worker proc VllmWorker-1 died unexpectedly (exit code: -9)"
	)
	noticed := "stage main, rank 0 on spark1: exit 0: " + gloo + "; the server ended by itself"
	for name, tt := range map[string]struct {
		other launcher.Exit
		after time.Duration
		byUs  string // the words that are found then
		want  string
	}{
		"it says so half a second later": {launcher.Exit{Words: words}, 500 * time.Millisecond, "",
			"stage main, rank 1 on spark2: exit 0: " + words + "; the server ended by itself (--restart no)"},
		"it fails": {launcher.Exit{Signal: 9}, 500 * time.Millisecond, "",
			"stage main, rank 1 on spark2: killed by SIGKILL (9) (--restart no)"},
		"it has to be ended": {launcher.Exit{}, time.Hour, words,
			"stage main, rank 1 on spark2: " + words + "; seen as: " + noticed + " (--restart no)"},
		"nothing is known of it": {launcher.Exit{}, time.Hour, "", noticed + " (--restart no)"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 2)
				w.nodes[0].life = exitAs(10*time.Minute, launcher.Exit{Words: gloo, LostPeer: true})
				w.nodes[1].life = exitAs(10*time.Minute+tt.after, tt.other)
				w.nodes[1].late = tt.byUs
				s := servingJob("aaaa", 2)
				s.Service.Restarts, s.Service.Per = 0, 0
				launched(t, w, s)
				time.Sleep(11 * time.Minute)
				if o := mustOutcome(t, w, "aaaa"); o.Cause != tt.want || o.Root == nil {
					t.Errorf("%+v, want %q", o, tt.want)
				}
				w.settle()
			})
		})
	}
}

// Between two attempts a service is said to start again, and when; where a machine is waited for, which.
func TestServiceComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.nodes[1].life = func(k launcher.Key, _ int) (time.Duration, *launcher.Exit) {
			if k.Generation > 1 {
				return 0, nil
			}
			return time.Minute, &launcher.Exit{Signal: 9}
		}
		w.nodes[0].lingers = 8 * time.Second
		s := servingJob("aaaa", 2)
		s.Service.Autostart = true
		r := launched(t, w, s)
		time.Sleep(time.Minute + 5*time.Second)
		if st := r.leader.Jobs()[0]; st.State != rendezvous.StateAgain || st.AgainAt != nil {
			t.Errorf("while its other rank ends: %s, %v", st.State, st.AgainAt)
		}
		time.Sleep(3*time.Second + 500*time.Millisecond)
		if st := r.leader.Jobs()[0]; st.State != rendezvous.StateAgain || st.AgainAt == nil ||
			time.Until(*st.AgainAt) > time.Second || time.Until(*st.AgainAt) <= 0 {
			t.Errorf("in the pause: %s, %v", st.State, st.AgainAt)
		}
		w.nodes[0].lingers = 0
		time.Sleep(time.Minute)
		if st := r.leader.Jobs()[0]; st.State != rendezvous.StateRuns || st.AgainAt != nil {
			t.Errorf("after it: %s, %v", st.State, st.AgainAt)
		}
		r.kill()
		w.nodes[0].crash()
		w.nodes[1].crash()
		time.Sleep(time.Minute)
		w.nodes[0].heal()
		r = w.ready()
		time.Sleep(15 * time.Second)
		for range 2 { // before the machine is given up, and after
			st := r.leader.Jobs()[0]
			if want := "it waits for spark2, then starts again"; st.State != rendezvous.StateWaits ||
				!strings.HasPrefix(st.Waits, want) || !strings.Contains(st.Waits, "mark-dead spark2`") {
				t.Errorf("while a machine is off: %s, %q", st.State, st.Waits)
			}
			time.Sleep(time.Hour)
		}
		w.nodes[1].heal()
		time.Sleep(time.Minute)
		stopped(t, w, "aaaa")
	})
}

// Open MPI's daemon leaves with 0 when mpirun has told it to, and is no cause, however early it is seen.
func TestServiceDaemonLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.nodes[1].life = exitAfter(10*time.Minute, 0)
		w.nodes[0].life = exitAs(10*time.Minute+5*time.Second, launcher.Exit{Code: 9, Words: "MPI rank 1 on spark2: exit 9"})
		s := servingJob("aaaa", 2)
		s.Stages[0].MPI = &launcher.MPI{Family: launcher.OpenMPI, Program: "serve", Forced: true}
		s.Service.Restarts, s.Service.Per = 0, 0
		launched(t, w, s)
		time.Sleep(11 * time.Minute)
		o := mustOutcome(t, w, "aaaa")
		if want := "stage main, mpirun on spark1: exit 9: MPI rank 1 on spark2: exit 9 (--restart no)"; o.Cause != want || o.ExitCode != 9 {
			t.Errorf("%d, %q, want %q", o.ExitCode, o.Cause, want)
		}
		w.settle()
	})
}

// What never answered would not the next time: a wrong flag is told at once.
func TestServiceThatNeverCameUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.nodes[0].mute = true
		s := servingJob("aaaa", 2)
		s.Stages[0].Ready = []launcher.Probe{{Kind: launcher.ProbeTCP, Head: true, What: "its port", Port: s.Service.Port}}
		w.nodes[0].waits = func(int) string { return "its port" }
		w.each(exitAfter(2*time.Minute, 2))
		launched(t, w, s)
		if got := generationAt(t, w, "aaaa", 3*time.Minute); got != 0 {
			t.Errorf("it is at generation %d", got)
		}
		if o := mustOutcome(t, w, "aaaa"); o.End != rendezvous.Failed || o.ExitCode != 2 {
			t.Errorf("outcome %+v", o)
		}
		w.settle()
	})
}

// Nobody's silence ends a service, nor does a new leader.
func TestServiceIgnoresSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		r := launched(t, w, servingJob("aaaa", 2))
		time.Sleep(time.Minute)
		w.nodes[1].cutOff()
		time.Sleep(3 * time.Hour)
		r.kill()
		r = w.ready()
		time.Sleep(3 * time.Hour)
		st := r.leader.Jobs()[0]
		if d := cmp.Diff([]string{"spark2"}, st.Away); d != "" || st.Outcome != nil || st.Plan.Generation != 1 {
			t.Errorf("away %v, outcome %+v", st.Away, st.Outcome)
		}
		if state, _ := st.ServiceState(); state != "ready" || st.ServiceAddr() != "10.0.0.1:8000" {
			t.Errorf("%s at %s", state, st.ServiceAddr())
		}
		w.nodes[1].heal()
		if got := generationAt(t, w, "aaaa", time.Minute); got != 1 {
			t.Errorf("generation %d", got)
		}
		stopped(t, w, "aaaa")
	})
}

// All machines lose their power, the leader among them, and come back one after the other,
// the last one after an hour; one has its disk a while later.
func TestServiceAfterPowerCut(t *testing.T) {
	tests := map[string]struct {
		change func(*launcher.Spec)
		enable bool // by hand, later
		back   bool
	}{
		"autostart": {func(s *launcher.Spec) { s.Service.Autostart = true }, false, true},
		"autostart, no restart": {func(s *launcher.Spec) {
			s.Service.Autostart, s.Service.Restarts,
				s.Service.Per = true, 0, 0
		}, false, true},
		"enabled later": {func(*launcher.Spec) {}, true, true},
		"not":           {func(*launcher.Spec) {}, false, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 2)
				s := servingJob("aaaa", 2)
				tt.change(&s)
				r := launched(t, w, s)
				time.Sleep(time.Minute)
				if tt.enable {
					err := r.leader.Autostart(t.Context(), "aaaa", true,
						func(_ context.Context, e rendezvous.JobService) error { return w.commit(e.Entry()) })
					if err != nil {
						t.Fatal(err)
					}
				}
				r.kill()
				w.nodes[0].crash()
				w.nodes[1].crash()
				time.Sleep(time.Minute)
				w.nodes[0].heal()
				w.nodes[1].refuses = "no such folder"
				w.ready()
				if got := generationAt(t, w, "aaaa", time.Hour); got != 1 && tt.back {
					t.Errorf("generation %d before all are back", got)
				}
				w.nodes[1].heal()
				time.Sleep(5 * time.Minute)
				w.nodes[1].mu.Lock()
				w.nodes[1].refuses = ""
				w.nodes[1].mu.Unlock()
				time.Sleep(5 * time.Minute)
				j, _ := w.record.Job("aaaa")
				if !tt.back {
					if j.Outcome == nil || j.Outcome.End != rendezvous.Failed || j.Plan.Generation != 1 {
						t.Errorf("outcome %+v of generation %d", j.Outcome, j.Plan.Generation)
					}
					w.settle()
					return
				}
				w.mu.Lock()
				ranks := len(w.running)
				w.mu.Unlock()
				if j.Outcome != nil || j.Plan.Restarts != 0 || len(j.Faults) != 0 || j.Plan.Generation < 3 || ranks != 2 {
					t.Errorf("outcome %+v, restarts %d, faults %v, generation %d, %d ranks", j.Outcome,
						j.Plan.Restarts, j.Faults, j.Plan.Generation, ranks)
				}
				stopped(t, w, "aaaa")
			})
		})
	}
}

// One machine of several is lost for good: a person says so, and the service waits for
// nodes for as long as it takes.
func TestServiceWaitsForNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		r := launched(t, w, servingJob("aaaa", 2))
		time.Sleep(time.Minute)
		w.nodes[1].crash()
		time.Sleep(time.Hour)
		if err := r.leader.MarkDead("id2"); err != nil {
			t.Fatal(err)
		}
		if got := generationAt(t, w, "aaaa", 10*time.Hour); got != 1 {
			t.Errorf("generation %d on one node of two", got)
		}
		w.nodes[1].heal()
		if got := generationAt(t, w, "aaaa", time.Minute); got != 2 {
			t.Errorf("generation %d", got)
		}
		stopped(t, w, "aaaa")
	})
}

// A service stays where it is as long as its machines are ready, whatever else has become free
// meanwhile; where its head is lost, and its URL with it, that is told.
func TestServiceStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4)
		r := launched(t, w, gpuJob("bbbb", 1))
		s := servingJob("aaaa", 2)
		s.GPUs = launcher.AllGPUs
		w.nodes[2].life = func(k launcher.Key, _ int) (time.Duration, *launcher.Exit) {
			if k.Generation > 1 {
				return 0, nil
			}
			return 150 * time.Second, &launcher.Exit{Signal: 9}
		}
		if err := r.leader.Launch(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if got := hostsOf(w, "aaaa"); got != "spark2,spark3" {
			t.Fatalf("it began on %s", got)
		}
		var told []string
		watch, cancel := context.WithCancel(t.Context())
		go r.leader.Watch(watch, "aaaa", func(p rendezvous.Progress) error {
			if p.Step == rendezvous.StepServes {
				told = append(told, p.Text)
			}
			return nil
		})
		time.Sleep(time.Minute)
		if err := r.leader.Stop(t.Context(), "bbbb", 0, "stopped by alice"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if got := generationAt(t, w, "aaaa", time.Minute); got != 2 || hostsOf(w, "aaaa") != "spark2,spark3" {
			t.Errorf("after a worker's death: generation %d on %s", got, hostsOf(w, "aaaa"))
		}
		w.nodes[1].crash()
		time.Sleep(time.Minute)
		if err := r.leader.MarkDead("id2"); err != nil {
			t.Fatal(err)
		}
		if got := generationAt(t, w, "aaaa", time.Minute); got != 3 || hostsOf(w, "aaaa") != "spark1,spark3" {
			t.Errorf("after the head's death: generation %d on %s", got, hostsOf(w, "aaaa"))
		}
		cancel()
		synctest.Wait()
		want := []string{"the service answers at http://10.0.0.2:8000", "the service answers at http://10.0.0.2:8000",
			"the service answers at http://10.0.0.1:8000; it was on spark2 before: its URL has changed"}
		if d := cmp.Diff(want, told); d != "" {
			t.Error(d)
		}
		w.nodes[1].heal()
		stopped(t, w, "aaaa")
	})
}

// A person restarts a service as often as --restart allows, once it has answered.
func TestServiceRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		kept, again := servingJob("aaaa", 1), servingJob("bbbb", 1)
		again.Service.Restarts = 1
		r := launched(t, w, kept)
		if err := r.leader.Launch(t.Context(), again); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		for id, want := range map[launcher.JobID]string{"bbbb": "", "none": "the job has ended"} {
			err := r.leader.Restart(t.Context(), id, "restarted by alice")
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s: %v, want %q", id, err, want)
			}
		}
		time.Sleep(time.Minute)
		if err := r.leader.Restart(t.Context(), "bbbb", "restarted by alice"); !errors.Is(err, rendezvous.ErrNoRestart) {
			t.Errorf("used up: %v", err)
		}
		if a, b := generationAt(t, w, "aaaa", 0), generationAt(t, w, "bbbb", 0); a != 1 || b != 2 {
			t.Errorf("generations %d and %d", a, b)
		}
		for _, st := range r.leader.Jobs() {
			if state, text := st.ServiceState(); state != "ready" {
				t.Errorf("%s is %s: %s", st.Spec.ID, state, text)
			}
		}
		if err := r.leader.Stop(t.Context(), "bbbb", 0, "stopped by alice"); err != nil {
			t.Fatal(err)
		}
		stopped(t, w, "aaaa")
	})
}

// A wedge is told, and with --on-wedge restart there is another attempt while there is one left.
func TestServiceWedge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		kept, again := servingJob("aaaa", 1), servingJob("bbbb", 1)
		again.Service.OnWedge, again.Service.Restarts = launcher.WedgeRestart, 1
		r := launched(t, w, kept)
		if err := r.leader.Launch(t.Context(), again); err != nil {
			t.Fatal(err)
		}
		stick := func() {
			time.Sleep(time.Minute)
			n := w.nodes[0]
			n.mu.Lock()
			defer n.mu.Unlock()
			for _, tr := range n.ledger {
				n.sees(tr, launcher.ServiceWedged, "2 requests are running, and no token has come for 50s")
			}
		}
		var told []string
		watch, cancel := context.WithCancel(t.Context())
		go r.leader.Watch(watch, "bbbb", func(p rendezvous.Progress) error {
			if p.Step == rendezvous.StepServes || p.Step == rendezvous.StepAgain {
				told = append(told, p.Text)
			}
			return nil
		})
		stick()
		stick()
		time.Sleep(time.Minute)
		cancel()
		synctest.Wait()
		if a, b := generationAt(t, w, "aaaa", 0), generationAt(t, w, "bbbb", 0); a != 1 || b != 2 {
			t.Errorf("generations %d and %d", a, b)
		}
		for _, st := range r.leader.Jobs() {
			if state, text := st.ServiceState(); state != "wedged" || !strings.HasPrefix(text, "2 requests") {
				t.Errorf("%s is %s: %s", st.Spec.ID, state, text)
			}
		}
		wedge := "2 requests are running, and no token has come for 50s"
		want := []string{"the service answers at http://10.0.0.1:8000", "the service is wedged: " + wedge,
			"the service was wedged: " + wedge + "; restart 1 of 1/hour in 1s",
			"the service answers at http://10.0.0.1:8000", "the service is wedged: " + wedge}
		if d := cmp.Diff(want, told); d != "" {
			t.Error(d)
		}
		if err := r.leader.Stop(t.Context(), "bbbb", 0, "stopped by alice"); err != nil {
			t.Fatal(err)
		}
		stopped(t, w, "aaaa")
	})
}
