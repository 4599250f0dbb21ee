package lead

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// A sole voter that was off may have been taken over: until it has heard the
// other, or somebody calls that one dead, no generation begins of a job that it
// finds. Its own new jobs do all they may.
func TestWhoMayHaveBeenTakenOverBeginsNothingAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.each(perTry(5*time.Second, 7, 0))
		var mu sync.Mutex
		missing := []string{"spark9"}
		w.others = fakeOthers{unheard: func() []string {
			mu.Lock()
			defer mu.Unlock()
			return missing
		}}
		r := w.ready()
		old, fresh := spec("aaaa", 1, 1), spec("bbbb", 1, 1)
		old.MaxRestarts, fresh.MaxRestarts = 1, 1
		if err := r.leader.Launch(t.Context(), old); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		r.kill() // before its first attempt has ended
		r = w.ready()
		if _, err := w.client(t.Context(), fresh); err != nil {
			t.Fatal(err)
		}
		if out := mustOutcome(t, w, "bbbb"); out.End != rendezvous.Completed {
			t.Errorf("a job of its own: %+v", out)
		}
		time.Sleep(time.Hour / 20)
		job, _ := w.record.Job("aaaa")
		if job.Plan.Generation != 1 || job.Outcome != nil {
			t.Errorf("the job that it found is in generation %d, outcome %+v", job.Plan.Generation, job.Outcome)
		}
		for _, j := range r.leader.Jobs() {
			if j.Spec.ID == "aaaa" && !strings.Contains(j.Waits, "spark9 has not been heard") {
				t.Errorf("it waits for %q", j.Waits)
			}
		}
		mu.Lock()
		missing = nil
		mu.Unlock()
		if _, err := w.client(t.Context(), old); err != nil {
			t.Fatal(err)
		}
		if out := mustOutcome(t, w, "aaaa"); out.End != rendezvous.Completed {
			t.Errorf("once the other was heard: %+v", out)
		}
		w.settle()
	})
}

// Nor does it give such a job up for the silence of a host that may be led by
// another: whoever leads there goes on with it.
func TestWhoMayHaveBeenTakenOverGivesNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.each(exitAfter(2*time.Hour, 0))
		w.others = fakeOthers{unheard: func() []string { return []string{"spark2"} }}
		r := w.ready()
		s := spec("aaaa", 2, 1)
		s.NodeTimeout = 20 * time.Second
		if err := r.leader.Launch(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		r.kill()
		w.ready()
		w.nodes[1].cutOff()
		time.Sleep(time.Hour)
		if job, _ := w.record.Job("aaaa"); job.Outcome != nil {
			t.Errorf("it ended: %+v", job.Outcome)
		}
		w.nodes[1].heal()
		if _, err := w.client(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if out := mustOutcome(t, w, "aaaa"); out.End != rendezvous.Completed {
			t.Errorf("outcome %+v", out)
		}
		w.settle()
	})
}

// A retry belongs to the epoch in which its id was minted.
func TestRetriesAndEpochs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.epoch = 2
		w.each(exitAfter(time.Second, 0))
		r := w.ready()
		minted := func(id launcher.JobID, n uint64, by launcher.NodeID) launcher.Spec {
			s := spec(id, 1, 1)
			s.Epoch, s.EpochBy = n, by
			return s
		}
		if err := r.leader.Launch(t.Context(), minted("aaaa", 1, "")); !errors.Is(err, ErrUnknownRetry) {
			t.Errorf("minted before the take-over: %v", err)
		}
		for _, s := range []launcher.Spec{minted("bbbb", 2, "id9"), minted("cccc", 3, "")} {
			if err := r.leader.Launch(t.Context(), s); !errors.Is(err, ErrOver) {
				t.Errorf("minted in a later epoch, %d by %q: %v", s.Epoch, s.EpochBy, err)
			}
		}
		for _, id := range []launcher.JobID{"aaaa", "bbbb", "cccc"} {
			if _, known := w.record.Job(id); known {
				t.Errorf("%s was recorded", id)
			}
		}
		if _, err := w.client(context.Background(), minted("dddd", 2, "")); err != nil {
			t.Errorf("minted in this epoch: %v", err)
		}
		w.settle()
	})
}

// What the other side of a reunion has started goes on under this leader; what
// it has ended has ended.
func TestAdopt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.each(exitAfter(time.Minute, 0))
		r := w.ready()
		// Another leader's job runs on the node, and is not known here yet.
		foreign := newWorld(t, 1)
		foreign.each(exitAfter(time.Minute, 0))
		foreign.ready()
		if _, err := foreign.client(t.Context(), spec("aaaa", 1, 1)); err != nil {
			t.Fatal(err)
		}
		theirs, _ := foreign.record.Job("aaaa")
		foreign.settle()

		if err := w.commit(rendezvous.Entry{Kind: rendezvous.KindEpoch,
			Epoch: &launcher.Epoch{N: 2, By: "id1"}}); err != nil {
			t.Fatal(err)
		}
		from := launcher.Epoch{N: 1}
		theirs.Outcome = nil
		if err := w.commit(rendezvous.Reunited{From: from, Job: &theirs}.Entry()); err != nil {
			t.Fatal(err)
		}
		r.leader.Adopt("aaaa")
		w.nodes[0].cutOff() // its stream is opened anew, and it tells its ledger again
		w.nodes[0].heal()
		time.Sleep(5 * time.Second)
		if jobs := r.leader.Jobs(); len(jobs) != 1 || jobs[0].State == rendezvous.StatePlanned {
			t.Errorf("nobody drives it: %+v", jobs)
		}
		ended := theirs
		ended.Outcome = &rendezvous.Outcome{End: rendezvous.Completed, At: time.Now()}
		if err := w.commit(rendezvous.Reunited{From: from, Job: &ended}.Entry()); err != nil {
			t.Fatal(err)
		}
		r.leader.Adopt("aaaa")
		synctest.Wait()
		if out := mustOutcome(t, w, "aaaa"); out.End != rendezvous.Completed {
			t.Errorf("outcome %+v", out)
		}
		w.settle()
	})
}
