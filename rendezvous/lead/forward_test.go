package lead

import (
	"cmp"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// How far a state is in the life of a generation; 0 is not known. A job that
// waits for its next one may be found ending the present one.
var howFar = map[rendezvous.State]int{
	rendezvous.StatePlanned: 0, rendezvous.StateStarts: 1, rendezvous.StateRuns: 2, rendezvous.StateEnds: 3, rendezvous.StateWaits: 3,
	rendezvous.State(rendezvous.Completed): 4, rendezvous.State(rendezvous.Failed): 4, rendezvous.State(rendezvous.Stopped): 4, rendezvous.State(rendezvous.Rejected): 4,
}

// told is the furthest that users were told of a job.
type told struct {
	generation launcher.Generation
	state      rendezvous.State
	by         launcher.Fence
}

// asks is a user who asks for the jobs' states again and again, whoever leads:
// none may go back.
func (r *reign) asks() {
	for began := time.Now(); ; {
		r.mu.Lock()
		dead := r.dead
		r.mu.Unlock()
		if dead {
			return
		}
		jobs := r.leader.Jobs()
		r.w.mu.Lock()
		for _, j := range jobs {
			now := told{j.Plan.Generation, j.State, r.fence}
			before := r.w.told[j.Spec.ID]
			if howFar[now.state] == 0 {
				continue
			}
			sameRecord := before.by.Epoch == now.by.Epoch // one that was restored is older
			if sameRecord && cmp.Or(cmp.Compare(now.generation, before.generation), cmp.Compare(howFar[now.state], howFar[before.state])) < 0 {
				r.w.t.Errorf("job %s was told to be %s in generation %d by leader %d, and to be %s in generation %d by leader %d after it",
					j.Spec.ID, before.state, before.generation, before.by.Term, now.state, now.generation, now.by.Term)
			}
			r.w.told[j.Spec.ID] = now
		}
		r.w.mu.Unlock()
		select {
		case <-time.After(max(10*time.Millisecond, time.Since(began)/1000)): // some stories last for days
		case <-r.ctx.Done():
			return
		}
	}
}

// A node is silent until it is given up, the leader dies, and the node comes back
// with its ranks running: what was said to end is not said to run again, and is tried
// again as was said.
func TestSilenceIsNotTakenBack(t *testing.T) {
	for name, nodes := range map[string]int{"alone": 1, "one of two": 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 3)
				w.each(theFirstHangs)
				r := w.ready()
				s := spec("jjjj", nodes, 1)
				s.On = []string{"spark2", "spark3"}[:nodes]
				s.MaxRestarts, s.NodeTimeout = 1, 5*time.Second
				if err := r.leader.Launch(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				w.nodes[1].cutOff()
				time.Sleep(time.Minute)
				if js := r.leader.Jobs()[0]; js.State != rendezvous.StateWaits {
					t.Fatalf("with a node that is silent, the job is said to be %s", js.State)
				}
				r.kill()
				w.nodes[1].heal()
				w.ready()
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				if _, err := w.client(ctx, s); err != nil {
					t.Error(err)
				}
				if j, _ := w.record.Job("jjjj"); j.Outcome == nil || j.Outcome.End != rendezvous.Completed || j.Plan.Generation != 2 || j.Tries[0].Cause != "spark2 has not answered for 5s" {
					t.Errorf("generation %d, outcome %+v, tries %+v", j.Plan.Generation, j.Outcome, j.Tries)
				}
				w.settle()
			})
		})
	}
}
