package lead

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

func gpuJob(id launcher.JobID, nodes int) launcher.Spec {
	s := spec(id, nodes, 1)
	s.GPUs = launcher.AllGPUs
	return s
}

// hostsOf names where a job's plan put it.
func hostsOf(w *world, id launcher.JobID) string {
	j, _ := w.record.Job(id)
	var hosts []string
	for _, p := range j.Plan.Nodes {
		hosts = append(hosts, p.Host)
	}
	return strings.Join(hosts, ",")
}

func TestAJobHoldsItsGPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.each(exitAfter(time.Minute, 0))
		r := w.ready()
		first := gpuJob("aaaa", 2)
		first.Name, first.User = "train", "ada"
		if err := r.leader.Launch(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		// Who fits beside it goes where it is not.
		if err := r.leader.Launch(t.Context(), gpuJob("bbbb", 1)); err != nil || hostsOf(w, "bbbb") != "spark3" {
			t.Errorf("a job that fits beside is on %s: %v", hostsOf(w, "bbbb"), err)
		}
		err := r.leader.Launch(t.Context(), gpuJob("cccc", 1))
		for _, want := range []string{"spark1 by job aaaa (train) of ada", "spark3 by job bbbb", "--wait", "--share"} {
			if !errors.Is(err, rendezvous.ErrCannotPlace) || !strings.Contains(err.Error(), want) {
				t.Errorf("a third is answered %v, want %q in it", err, want)
			}
		}
		// Jobs without GPUs do not count, nor do those that share, nor those that
		// take what a node has where it has none.
		sharing, any := gpuJob("dddd", 3), gpuJob("eeee", 3)
		sharing.Share, any.GPUs = true, launcher.AnyGPUs
		for _, s := range []launcher.Spec{sharing, any, spec("ffff", 3, 1)} {
			if err := r.leader.Launch(t.Context(), s); err != nil {
				t.Errorf("%s: %v", s.ID, err)
			}
		}
		// What is wrong beside the GPUs is said first.
		if err := r.leader.Launch(t.Context(), gpuJob("gggg", 4)); err == nil || strings.Contains(err.Error(), "taken") ||
			strings.Contains(err.Error(), "away") {
			t.Errorf("more nodes than there are: %v", err)
		}
		time.Sleep(2 * time.Minute)
		if err := r.leader.Launch(t.Context(), gpuJob("hhhh", 3)); err != nil {
			t.Errorf("after their end: %v", err)
		}
		time.Sleep(2 * time.Minute)
		w.settle()
	})
}

// Who waits is placed in the order of coming, through a change of leader, and
// nobody who comes later is put before a wide job.
func TestWaitingForGPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.each(exitAfter(time.Minute, 0))
		r := w.ready()
		waiting := func(id launcher.JobID, nodes int) launcher.Spec {
			s := gpuJob(id, nodes)
			s.Wait = true
			return s
		}
		began := time.Now()
		specs := []launcher.Spec{gpuJob("aaaa", 1), waiting("dddd", 2), waiting("bbbb", 1), waiting("cccc", 1)}
		for _, s := range specs {
			if err := r.leader.Launch(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if err := r.leader.Launch(t.Context(), gpuJob("zzzz", 1)); err == nil ||
			!strings.Contains(err.Error(), "job dddd is before it in the queue") {
			t.Errorf("who does not wait: %v", err)
		}
		status := func(r *reign) []string {
			var out []string
			for _, j := range r.leader.Jobs() {
				out = append(out, fmt.Sprintf("%s %s %d", j.Spec.ID, j.State, j.Line))
			}
			return out
		}
		want := []string{"aaaa running 0", "dddd waiting 1", "bbbb waiting 2", "cccc waiting 3"}
		if d := cmp.Diff(want, status(r)); d != "" {
			t.Error(d)
		}
		if err := r.leader.Stop(t.Context(), "bbbb", 0, "changed my mind"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		r.kill()
		r = w.ready()
		time.Sleep(time.Second)
		want = []string{"aaaa running 0", "dddd waiting 1", "bbbb stopped 0", "cccc waiting 2"}
		if d := cmp.Diff(want, status(r)); d != "" {
			t.Error(d)
		}
		for _, s := range specs {
			if _, err := w.client(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		for id, want := range map[launcher.JobID]rendezvous.End{"aaaa": rendezvous.Completed,
			"bbbb": rendezvous.Stopped, "cccc": rendezvous.Completed, "dddd": rendezvous.Completed} {
			if out := mustOutcome(t, w, id); out.End != want {
				t.Errorf("%s: %+v", id, out)
			}
		}
		if took := time.Since(began); took < 3*time.Minute || took > 190*time.Second {
			t.Errorf("three minutes' work one after the other took %s", took)
		}
		w.settle()
	})
}

// Between two attempts a job keeps its nodes.
func TestGPUsAreHeldBetweenTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.each(perTry(time.Second, 1, 0))
		r := w.ready()
		s := gpuJob("aaaa", 1)
		s.MaxRestarts = 1
		if err := r.leader.Launch(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1500 * time.Millisecond) // in the pause
		if err := r.leader.Launch(t.Context(), gpuJob("bbbb", 1)); err == nil || !strings.Contains(err.Error(), "job aaaa") {
			t.Errorf("launched between two attempts: %v", err)
		}
		if _, err := w.client(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if out := mustOutcome(t, w, "aaaa"); out.End != rendezvous.Completed {
			t.Errorf("outcome %+v", out)
		}
		w.settle()
	})
}

// A refusal for want of GPUs names the machines that were asked for, and those that are free;
// a dry run goes on, and says whose they are now.
func TestTakenGPUsAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4)
		r := w.ready()
		first := gpuJob("aaaa", 2)
		first.Name = "tiny"
		for _, s := range []launcher.Spec{first, gpuJob("bbbb", 1)} {
			if err := r.leader.Launch(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		on := gpuJob("cccc", 1)
		on.On = []string{"spark2"}
		err := r.leader.Launch(t.Context(), on)
		if want := "GPUs are taken: spark2 by job aaaa (tiny); free: spark4 (not asked for); use --wait"; err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		wide := gpuJob("dddd", 2)
		err = r.leader.Launch(t.Context(), wide)
		if want := "spark1 by job aaaa (tiny), spark2 by job aaaa (tiny), spark3 by job bbbb; free: spark4; use --wait"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		plan, findings, err := r.leader.Place(wide)
		if err != nil || len(plan.Nodes) != 2 || len(findings) != 2 || findings[0].Host != "spark1" ||
			findings[0].Severity != envgen.SeverityWarning ||
			findings[0].Text != "its GPUs are taken now by job aaaa (tiny): a launch would be refused" {
			t.Errorf("planned on %v with %v: %v", plan.Nodes, findings, err)
		}
		if plan, findings, err := r.leader.Place(gpuJob("eeee", 1)); err != nil || plan.Nodes[0].Host != "spark4" ||
			len(findings) != 0 {
			t.Errorf("what fits is planned on %v with %v: %v", plan.Nodes, findings, err)
		}
		for _, id := range []launcher.JobID{"aaaa", "bbbb"} {
			if err := r.leader.Stop(t.Context(), id, 0, "enough"); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Minute)
		w.settle()
	})
}
