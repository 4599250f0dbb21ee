package lead

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// Whenever a leader dies, services on demand that are asked for have their turns, never two on one machine at a time,
// and what ends to sleep counts as no failure.
func TestLeaderChangesOnDemand(t *testing.T) {
	for k := 1; k <= 200; k += 9 {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1)
				w.nodes[0].memory = 100 * gib
				w.succession(200*time.Millisecond, k, 40, 25)
				leads := func() *Leader {
					for {
						w.mu.Lock()
						r := w.reign
						w.mu.Unlock()
						if r != nil && r.ctx.Err() == nil {
							return r.leader
						}
						time.Sleep(50 * time.Millisecond)
					}
				}
				for _, id := range []launcher.JobID{"aaaa", "bbbb"} {
					s := onDemand(id, 60)
					s.Service.OnDemand.Idle, s.Service.OnDemand.MinUp = time.Minute, time.Second
					for leads().Launch(t.Context(), s) != nil {
						time.Sleep(time.Second)
					}
				}
				ran := map[launcher.JobID]int{}
				for range 10 * 60 {
					both := 0
					l := leads()
					for _, j := range l.Jobs() {
						switch j.State {
						case rendezvous.StateAsleep, rendezvous.StateWaits:
							_ = l.Use(t.Context(), "id1", asks(j.Spec.ID, true))
						case rendezvous.StateRuns:
							ran[j.Spec.ID]++
							both++
						}
					}
					if both > 1 {
						t.Error("both run")
					}
					time.Sleep(time.Second)
				}
				for _, id := range []launcher.JobID{"aaaa", "bbbb"} {
					j, _ := w.record.Job(id)
					if ran[id] < 60 || len(j.Faults) > 0 || j.Outcome != nil {
						t.Errorf("in 10 minutes %s ran for %d s; failures %v, outcome %+v", id, ran[id], j.Faults, j.Outcome)
					}
					if err := leads().Stop(t.Context(), id, time.Second, "enough"); err != nil {
						t.Error(err)
					}
				}
				time.Sleep(time.Minute)
				w.settle()
			})
		})
	}
}
