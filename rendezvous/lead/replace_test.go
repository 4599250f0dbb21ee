package lead

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// replacing is inSteps whose workers come again.
func replacing(id launcher.JobID) launcher.Spec {
	s := inSteps(id)
	s.Stages[1].Replace, s.MaxRestarts, s.NodeTimeout = true, 2, launcher.Never
	return s
}

// of keeps what is said of lost and returned ranks.
func of(events []rendezvous.Progress) (out []string) {
	for _, text := range seen(events) {
		if strings.Contains(text, "again") || strings.Contains(text, "without it") || strings.Contains(text, "goes on") {
			out = append(out, text)
		}
	}
	return out
}

// A worker that dies comes again while all else runs, as often as was allowed; then the job goes on
// without it.
func TestWorkerComesAgain(t *testing.T) {
	for _, heirs := range []bool{false, true} {
		t.Run(fmt.Sprint("new leaders ", heirs), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 3)
				w.each(lives(map[int]launcher.Exit{1: {}}, 5*time.Minute))
				w.nodes[2].life = func(launcher.Key, int) (time.Duration, *launcher.Exit) {
					return 30 * time.Second, &launcher.Exit{Code: 4}
				}
				first := w.ready()
				if heirs {
					w.wg.Go(func() {
						time.Sleep(31 * time.Second) // the rank has ended, and may come again already
						first.kill()
						time.Sleep(time.Second)
						w.crown(0)
					})
				}
				events, err := w.client(t.Context(), replacing("aaaa"))
				if err != nil {
					t.Fatal(err)
				}
				if j := mustJob(t, w, "aaaa"); j.Outcome.End != rendezvous.Completed || j.Plan.Generation != 1 {
					t.Errorf("generation %d, outcome %+v", j.Plan.Generation, j.Outcome)
				}
				if n := w.started("aaaa"); n != 6 {
					t.Errorf("%d lives of ranks, want 4 and 2 more", n)
				}
				want := []string{
					"stage workers, rank 3 on spark3: exit 4; the job goes on, and it starts again in 1s (1 of 2)",
					"stage workers, rank 3 on spark3 runs again (1 of 2)",
					"stage workers, rank 3 on spark3: exit 4; the job goes on, and it starts again in 2s (2 of 2)",
					"stage workers, rank 3 on spark3 runs again (2 of 2)",
					"stage workers, rank 3 on spark3: exit 4; the job goes on without it",
				}
				if d := cmp.Diff(want, of(events)); !heirs && d != "" {
					t.Error(d)
				}
				w.settle()
			})
		})
	}
}

// A worker's machine that is booted anew takes part again; its silence ends nothing.
func TestMachineComesAgain(t *testing.T) {
	for _, heirs := range []bool{false, true} {
		t.Run(fmt.Sprint("new leaders ", heirs), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 3)
				began := time.Now()
				w.each(func(_ launcher.Key, rank int) (time.Duration, *launcher.Exit) {
					if rank == 1 {
						return 20*time.Minute - time.Since(began), &launcher.Exit{}
					}
					return 0, nil
				})
				w.nodes[0].waits = func(step int) string {
					if step == 1 && time.Since(began) > 20*time.Second {
						return "2 of 3 nodes"
					}
					return ""
				}
				first := w.ready()
				w.wg.Go(func() {
					time.Sleep(time.Minute)
					w.nodes[2].crash()
					time.Sleep(5 * time.Minute)
					w.nodes[2].heal()
					if heirs {
						time.Sleep(time.Minute)
						first.kill()
						time.Sleep(time.Second)
						w.crown(0)
					}
				})
				events, err := w.client(t.Context(), replacing("bbbb"))
				if err != nil {
					t.Fatal(err)
				}
				if j := mustJob(t, w, "bbbb"); j.Outcome.End != rendezvous.Completed || j.Plan.Generation != 1 {
					t.Errorf("generation %d, outcome %+v", j.Plan.Generation, j.Outcome)
				}
				if n := w.started("bbbb"); n != 5 {
					t.Errorf("%d lives of ranks, want 4 and 1 more", n)
				}
				want := []string{
					"stage workers, spark3 does not answer; the job goes on, and it starts again there once the machine is back",
					"stage workers, spark3 was rebooted and takes part again (1 of 2)",
				}
				if d := cmp.Diff(want, of(events)); !heirs && d != "" {
					t.Error(d)
				}
				w.settle()
			})
		})
	}
}

// A head that dies takes the whole of it along, and the next attempt begins.
func TestHeadIsNotReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.each(func(k launcher.Key, rank int) (time.Duration, *launcher.Exit) {
			switch {
			case rank == 0 && k.Generation == 1:
				return time.Minute, &launcher.Exit{Code: 9}
			case rank == 1 && k.Generation == 2:
				return time.Minute, &launcher.Exit{}
			}
			return 0, nil
		})
		w.ready()
		events, err := w.client(t.Context(), replacing("cccc"))
		if err != nil {
			t.Fatal(err)
		}
		j := mustJob(t, w, "cccc")
		if j.Outcome.End != rendezvous.Completed || j.Plan.Generation != 2 || w.started("cccc") != 8 {
			t.Errorf("generation %d, %d ranks, outcome %+v", j.Plan.Generation, w.started("cccc"), j.Outcome)
		}
		if !slices.ContainsFunc(events, func(p rendezvous.Progress) bool {
			return p.Step == rendezvous.StepAgain && strings.Contains(p.Text, "stage head, rank 0 on spark1: exit 9")
		}) {
			t.Error("the next attempt was not told")
		}
		w.settle()
	})
}

// A machine that comes back and cannot take part is told, and ends nothing; a stop ends what came again.
func TestReplacedThatRefusesAndStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.each(lives(nil, 0))
		w.nodes[1].life = func(launcher.Key, int) (time.Duration, *launcher.Exit) {
			return 30 * time.Second, &launcher.Exit{Code: 4}
		}
		l := w.ready()
		w.wg.Go(func() {
			time.Sleep(10 * time.Second)
			w.nodes[2].crash()
			w.nodes[2].refuses = "no GPU"
			w.nodes[2].heal()
			time.Sleep(50 * time.Second) // the other has come again, and died again
			if err := l.leader.Stop(t.Context(), "dddd", time.Second, "stopped"); err != nil {
				t.Error(err)
			}
		})
		events, err := w.client(t.Context(), replacing("dddd"))
		if err != nil {
			t.Fatal(err)
		}
		if j := mustJob(t, w, "dddd"); j.Outcome.End != rendezvous.Stopped {
			t.Errorf("outcome %+v", j.Outcome)
		}
		if !slices.Contains(seen(events), "stage workers, spark3: no GPU; the job goes on without it") {
			t.Errorf("told %q", seen(events))
		}
		w.settle()
	})
}
