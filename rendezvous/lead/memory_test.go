package lead

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

const gib = int64(1 << 30)

// sized is a job that takes GPUs and says what memory it takes, in GiB.
func sized(id launcher.JobID, bytes, peak int64) launcher.Spec {
	s := gpuJob(id, 1)
	s.Memory = &launcher.Memory{Bytes: bytes * gib, Peak: peak * gib}
	return s
}

// Jobs that say what memory they take share a node as long as all of them fit, each at its most while it starts.
func TestMemoryIsShared(t *testing.T) {
	noGPU := sized("cccc", 30, 0) // on a CPU, or by hand
	noGPU.GPUs = launcher.NoGPUs
	tests := []struct {
		name string
		jobs []launcher.Spec // in this order, on one node with 100 GiB for jobs
		want string          // what the last one is refused with; empty: it fits
	}{
		{"all fit", []launcher.Spec{sized("aaaa", 40, 0), sized("bbbb", 60, 0)}, ""},
		{"one too many", []launcher.Spec{sized("aaaa", 40, 0), sized("bbbb", 50, 0), sized("cccc", 11, 0)},
			"memory is taken: spark1 by job aaaa (40 GiB), job bbbb (50 GiB), of 100 GiB for jobs; free: none; " +
				"use --wait to queue, or a smaller --memory"},
		{"a peak counts once", []launcher.Spec{sized("aaaa", 40, 60), sized("bbbb", 40, 60)}, ""},
		{"a peak counts", []launcher.Spec{sized("aaaa", 40, 60), sized("bbbb", 41, 0)},
			"spark1 by job aaaa (40 GiB, 60 GiB while it starts), of 100 GiB for jobs"},
		{"its own peak counts", []launcher.Spec{sized("aaaa", 40, 0), sized("bbbb", 41, 61)}, "spark1 by job aaaa (40 GiB)"},
		{"without GPUs it counts, too", []launcher.Spec{sized("aaaa", 80, 0), noGPU}, "spark1 by job aaaa (80 GiB)"},
		{"who does not say it has the GPUs whole", []launcher.Spec{gpuJob("aaaa", 1), sized("bbbb", 1, 0)},
			"spark1 by job aaaa"},
		{"and needs them whole", []launcher.Spec{sized("aaaa", 1, 0), gpuJob("bbbb", 1)},
			"GPUs are taken: spark1 by job aaaa; free: none; use --wait to queue, --memory SIZE to have a part"},
		{"without GPUs it is in the way of who needs them whole", []launcher.Spec{noGPU, gpuJob("bbbb", 1)},
			"GPUs are taken: spark1 by job cccc"},
		{"more than there is", []launcher.Spec{sized("aaaa", 90, 101)},
			"it has 100 GiB for jobs, and --memory wants 101 GiB"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1)
				w.nodes[0].memory = 100 * gib
				w.each(exitAfter(time.Minute, 0))
				r := w.ready()
				last := len(test.jobs) - 1
				for _, s := range test.jobs[:last] {
					if err := r.leader.Launch(t.Context(), s); err != nil {
						t.Fatal(err)
					}
				}
				_, findings, err := r.leader.Place(test.jobs[last])
				if last > 0 && (err != nil || len(findings) > 0 != (test.want != "")) {
					t.Errorf("a dry run says %v, %v", findings, err)
				}
				err = r.leader.Launch(t.Context(), test.jobs[last])
				switch {
				case test.want == "" && err != nil:
					t.Error(err)
				case test.want != "" && (!errors.Is(err, rendezvous.ErrCannotPlace) || !strings.Contains(err.Error(), test.want)):
					t.Errorf("%v, want %q", err, test.want)
				}
				time.Sleep(5 * time.Minute)
				w.settle()
			})
		})
	}
}

func sizedService(id launcher.JobID, bytes, peak int64) launcher.Spec {
	s := servingJob(id, 1)
	s.GPUs, s.Service.Autostart = launcher.AllGPUs, true
	s.Stages[0].Ready = []launcher.Probe{{Kind: launcher.ProbeTCP, Head: true, What: "its port", Port: s.Service.Port}}
	s.Memory = &launcher.Memory{Bytes: bytes * gib, Peak: peak * gib}
	return s
}

// Services with --memory load one after the other: when they are launched together, under a new leader, and when all
// come back after a power cut. A server here answers 10 s after its start.
func TestOneLoadsAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.nodes[0].memory = 100 * gib
		var began time.Time // of the last start
		w.nodes[0].life = func(launcher.Key, int) (time.Duration, *launcher.Exit) {
			began = time.Now()
			return 0, nil
		}
		w.nodes[0].waits = func(int) string {
			if time.Since(began) < 10*time.Second {
				return "loads"
			}
			return ""
		}
		r := w.ready()
		ids := []launcher.JobID{"aaaa", "bbbb", "cccc"}
		states := func() (out []string) {
			for _, j := range r.leader.Jobs() {
				waits := j.Waits
				if strings.Contains(waits, "loads (spark1)") {
					waits = "loads"
				}
				out = append(out, string(j.Spec.ID)+" "+string(j.State)+" "+waits)
			}
			return out
		}
		waits := func(id, first string) string {
			return id + " starting job " + first + " starts on spark1 first: jobs with --memory load one after the other"
		}
		for _, id := range ids {
			if err := r.leader.Launch(t.Context(), sizedService(id, 20, 60)); err != nil {
				t.Fatal(err)
			}
		}
		check := func(when string, after time.Duration, want ...string) {
			t.Helper()
			time.Sleep(after)
			if d := cmp.Diff(want, states()); d != "" {
				t.Errorf("%s: %s", when, d)
			}
		}
		check("at first", 5*time.Second, "aaaa starting loads", waits("bbbb", "aaaa"), waits("cccc", "aaaa"))
		r.kill()
		r = w.ready()
		check("under a new leader", 4*time.Second, "aaaa running loads", waits("bbbb", "aaaa"), waits("cccc", "aaaa"))
		check("once the first is ready", 6*time.Second, "aaaa running ", "bbbb running loads", waits("cccc", "bbbb"))
		check("the last waits longer than a start may take", 70*time.Second, "aaaa running ", "bbbb running ", "cccc running ")

		w.nodes[0].crash()
		time.Sleep(time.Minute)
		w.nodes[0].heal()
		for range 60 {
			time.Sleep(time.Second)
			if all := strings.Join(states(), "; "); strings.Count(all, " loads") > 1 {
				t.Fatalf("after a power cut: %s", all)
			}
		}
		check("long after it", 0, "aaaa running ", "bbbb running ", "cccc running ")
		for _, id := range ids {
			if err := r.leader.Stop(t.Context(), id, time.Second, "enough"); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Minute)
		w.settle()
	})
}

// A service that has waited long for its turn has all its time when that comes.
func TestTimeBeginsWithTheTurn(t *testing.T) {
	for _, load := range []time.Duration{50 * time.Second, 4 * time.Minute, 6 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 1)
			w.nodes[0].memory, w.nodes[0].mute = 100*gib, true
			began := time.Now()
			w.nodes[0].waits = func(int) string {
				if time.Since(began) < load {
					return "loads"
				}
				return ""
			}
			r := w.ready()
			first, second := sizedService("aaaa", 20, 0), sizedService("bbbb", 20, 0)
			first.Stages[0].Patience = time.Hour
			for _, s := range []launcher.Spec{first, second} {
				if err := r.leader.Launch(t.Context(), s); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(30 * time.Minute)
			for _, id := range []launcher.JobID{"aaaa", "bbbb"} {
				if j, _ := w.record.Job(id); j.Outcome != nil {
					t.Errorf("the first one loads for %s: %s has ended: %s", load, id, j.Outcome.Cause)
				}
				if err := r.leader.Stop(t.Context(), id, time.Second, "enough"); err != nil {
					t.Error(err)
				}
			}
			time.Sleep(time.Minute)
			w.settle()
		})
	}
}

// A service that has lost a machine keeps nobody waiting for its turn: neither while it loaded, nor, under a leader
// that has not heard that machine, when it had been ready.
func TestLostMachinePassesTheTurn(t *testing.T) {
	for _, loads := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 2)
			for _, n := range w.nodes {
				n.memory = 100 * gib
				if loads {
					n.waits = func(int) string { return "loads" }
				}
			}
			r := w.ready()
			s := sizedService("aaaa", 20, 0)
			s.Nodes, s.On = 2, []string{"spark2", "spark1"}
			if err := r.leader.Launch(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			time.Sleep(4 * time.Minute)
			w.nodes[1].crash()
			r.kill()
			r = w.ready()
			w.nodes[0].waits = nil
			next := sizedService("bbbb", 20, 0)
			next.On = []string{"spark1"}
			if err := r.leader.Launch(t.Context(), next); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Minute)
			for _, j := range r.leader.Jobs() {
				if j.Spec.ID == "bbbb" && j.State != rendezvous.StateRuns {
					t.Errorf("loading %v: it is %s: %s", loads, j.State, j.Waits)
				}
			}
			w.nodes[1].heal()
			time.Sleep(time.Minute)
			for _, id := range []launcher.JobID{"aaaa", "bbbb"} {
				if err := r.leader.Stop(t.Context(), id, time.Second, "enough"); err != nil {
					t.Error(err)
				}
			}
			time.Sleep(time.Minute)
			w.settle()
		})
	}
}

// Of two services on a drained machine only one moves where there is room for one.
func TestOneMovesIntoRoomForOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		for _, n := range w.nodes {
			n.memory = 100 * gib
		}
		r := w.ready()
		sized := func(id launcher.JobID, bytes int64, on ...string) {
			s := servingJob(id, 1)
			s.On, s.GPUs, s.Memory = on, launcher.AllGPUs, &launcher.Memory{Bytes: bytes * gib}
			if err := r.leader.Launch(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		sized("aaaa", 40)
		sized("bbbb", 40)
		sized("cccc", 50, "spark2")
		if a, b := hostsOf(w, "aaaa"), hostsOf(w, "bbbb"); a != "spark1" || b != "spark1" {
			t.Fatalf("they are on %s and %s", a, b)
		}
		if err := w.commit(rendezvous.NodeDrain{Node: "id1", By: "ada"}.Entry()); err != nil {
			t.Fatal(err)
		}
		r.leader.DrainsChanged()
		first, second := r.leader.Move(t.Context(), "aaaa", "moved"), r.leader.Move(t.Context(), "bbbb", "moved")
		if first != nil || !errors.Is(second, ErrNoMove) {
			t.Errorf("moved: %v, %v", first, second)
		}
		time.Sleep(5 * time.Minute)
		for _, j := range r.leader.Jobs() {
			if j.State != rendezvous.StateRuns {
				t.Errorf("%s is %s: %s", j.Spec.ID, j.State, j.Waits)
			}
		}
		for _, id := range []launcher.JobID{"aaaa", "bbbb", "cccc"} {
			if err := r.leader.Stop(t.Context(), id, time.Second, "enough"); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Minute)
		w.settle()
	})
}
