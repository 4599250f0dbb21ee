package lead

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// How far a state is in the life of a generation; 0 is not known. A job that
// waits for its next one may be found ending the present one.
var howFar = map[rendezvous.State]int{
	rendezvous.StatePlanned: 0, rendezvous.StateStarts: 1, rendezvous.StateRuns: 2, rendezvous.StateEnds: 3,
	rendezvous.StateWaits: 3, rendezvous.StateAgain: 3,
	rendezvous.State(rendezvous.Completed): 4, rendezvous.State(rendezvous.Failed): 4,
	rendezvous.State(rendezvous.Stopped): 4, rendezvous.State(rendezvous.Rejected): 4,
}

// told is the furthest that users were told of a job.
type told struct {
	generation launcher.Generation
	state      rendezvous.State
	by         launcher.Fence
}

// before tells whether a job that got as far as other would have gone back; a record that was
// restored is older.
func (t told) before(other told) bool {
	return t.by.Epoch == other.by.Epoch &&
		cmp.Or(cmp.Compare(t.generation, other.generation), cmp.Compare(howFar[t.state], howFar[other.state])) < 0
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
		// An answer is held against what was told before the question: another may overtake it.
		r.w.mu.Lock()
		asked := maps.Clone(r.w.told)
		r.w.mu.Unlock()
		jobs := r.leader.Jobs()
		r.w.mu.Lock()
		for _, j := range jobs {
			now := told{j.Plan.Generation, j.State, r.fence}
			before := asked[j.Spec.ID]
			if howFar[now.state] == 0 {
				continue
			}
			if now.before(before) {
				r.w.t.Errorf("job %s was told to be %s in generation %d by leader %d, and to be %s in generation %d by leader %d after it",
					j.Spec.ID, before.state, before.generation, before.by.Term, now.state, now.generation, now.by.Term)
			}
			if !now.before(r.w.told[j.Spec.ID]) {
				r.w.told[j.Spec.ID] = now
			}
		}
		r.w.mu.Unlock()
		select {
		case <-time.After(max(10*time.Millisecond, time.Since(began)/1000)): // some scenarios last for days
		case <-r.ctx.Done():
			return
		}
	}
}

// A node is silent until it is given up, the leader dies as soon as that is on
// record or a little later, and the node comes back with its ranks running. What
// was said to end is not said to run again, and is tried again as was said.
func TestSilenceIsNotTakenBack(t *testing.T) {
	for nodes := 1; nodes <= 2; nodes++ {
		for points := range 8 {
			t.Run(fmt.Sprintf("on %d nodes, %d points later", nodes, points), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { silenceIsNotTakenBack(t, nodes, points) })
			})
		}
	}
}

func silenceIsNotTakenBack(t *testing.T, nodes, points int) {
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
	r.onCommit(func(_ rendezvous.Kind, done bool) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.dieAt == 0 && !done {
			r.dieAt = r.points + 2 + points // the second is the commit
		}
		return nil
	})
	w.nodes[1].cutOff()
	select {
	case <-r.ctx.Done():
	case <-time.After(time.Minute):
		if js := r.leader.Jobs()[0]; js.State != rendezvous.StateWaits {
			t.Errorf("with a node that is silent, the job is said to be %s", js.State)
		}
	}
	r.kill()
	w.nodes[1].heal()
	w.ready()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if _, err := w.client(ctx, s); err != nil {
		t.Error(err)
	}
	if j, _ := w.record.Job("jjjj"); j.Outcome == nil || j.Outcome.End != rendezvous.Completed ||
		j.Plan.Generation != 2 || j.Attempts[0].Cause != "spark2 has not answered for 5s" {
		t.Errorf("generation %d, outcome %+v, attempts %+v", j.Plan.Generation, j.Outcome, j.Attempts)
	}
	w.settle()
}

// A leader that cannot record what it has decided tells nobody, ends nobody and
// begins nothing.
func TestVerdictThatIsNotRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.each(theFirstHangs)
		r := w.ready()
		s := spec("jjjj", 2, 1)
		s.MaxRestarts, s.NodeTimeout = 1, 5*time.Second
		if err := r.leader.Launch(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		var tried atomic.Int32
		r.onCommit(func(rendezvous.Kind, bool) error { tried.Add(1); return errUnknown })
		w.nodes[1].cutOff()
		time.Sleep(time.Minute)
		if js := r.leader.Jobs()[0]; js.State != rendezvous.StateRuns || r.sent("end") > 0 {
			t.Errorf("the job is said to be %s; orders %v", js.State, r.orders)
		}
		if n := tried.Load(); n < 10 || n > 60 {
			t.Errorf("%d attempts to record it in a minute", n)
		}
		r.onCommit(nil)
		w.nodes[1].heal()
		if _, err := w.client(t.Context(), s); err != nil {
			t.Error(err)
		}
		if j := mustJob(t, w, "jjjj"); j.Outcome.End != rendezvous.Completed || j.Plan.Generation != 2 {
			t.Errorf("generation %d, outcome %+v", j.Plan.Generation, j.Outcome)
		}
		w.settle()
	})
}

// What else only one leader knows: that a node was lost before the start, that
// time was up. The one after it finds everything well, and goes by the record.
func TestVerdictOutlivesItsLeader(t *testing.T) {
	tests := map[string]struct {
		change func(*launcher.Spec, *world)
		cut    bool // a node is lost before the start
		end    rendezvous.End
		cause  string
		code   int
	}{
		"lost before the start": {func(_ *launcher.Spec, w *world) { w.nodes[1].slow = 30 * time.Second }, true,
			rendezvous.Rejected, "spark1 was lost before the start: no rank was started", 125},
		"slow to start": {func(s *launcher.Spec, w *world) {
			s.StartTimeout, w.nodes[1].slow = 5*time.Second,
				8*time.Second
		}, false, rendezvous.Failed, "not started within 5s: spark1 is prepared and waiting, spark2 is still preparing", 125},
		"out of its time": {func(s *launcher.Spec, _ *world) { s.Timeout = 5 * time.Second }, false,
			rendezvous.Failed, "the time limit of 5s has passed (--timeout)", 124},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 2)
				r := w.ready()
				s := spec("jjjj", 2, 1)
				s.OnFailure = launcher.ContinueOnFailure
				tt.change(&s, w)
				r.onCommit(func(_ rendezvous.Kind, done bool) error {
					if j, _ := w.record.Job("jjjj"); done && j.Verdict != nil { // it dies before it gives an order
						r.mu.Lock()
						defer r.mu.Unlock()
						r.dead = true
						r.stop()
					}
					return nil
				})
				if err := r.leader.Launch(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				if tt.cut {
					w.nodes[0].cutOff()
				}
				<-r.ctx.Done()
				r.kill()
				w.nodes[0].heal()
				w.ready()
				if _, err := w.client(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				if o := mustOutcome(t, w, "jjjj"); o.End != tt.end || o.Cause != tt.cause || o.ExitCode != tt.code {
					t.Errorf("outcome %+v", o)
				}
				w.settle()
			})
		})
	}
}

// Who asks at the moment in which the next generation is recorded is not told of
// it that it waits, as the one before did.
func TestNextGenerationDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.each(perTry(5*time.Second, 7, 0))
		r := w.ready()
		r.onCommit(func(_ rendezvous.Kind, done bool) error {
			if js := r.leader.Jobs(); done && len(js) > 0 && js[0].Plan.Generation == 2 && js[0].State == rendezvous.StateWaits {
				w.fault("the next generation was recorded and is said to be %s", js[0].State)
			}
			return nil
		})
		s := spec("jjjj", 2, 1)
		s.MaxRestarts = 1
		if _, err := w.client(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if j := mustJob(t, w, "jjjj"); j.Plan.Generation != 2 || j.Outcome.End != rendezvous.Completed {
			t.Errorf("generation %d, outcome %+v", j.Plan.Generation, j.Outcome)
		}
		w.settle()
	})
}
