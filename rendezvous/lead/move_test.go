package lead

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// A machine that an administrator has drained gets no ranks, under the next leader neither; its services go on
// elsewhere, which is no failure, or stay where there is no room.
func TestDrainedByAnAdministrator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		r := w.ready()
		moves, stays := servingJob("aaaa", 1), servingJob("bbbb", 1)
		moves.On, moves.Service.Restarts, moves.Service.Per = nil, 0, 0 // --restart no
		stays.On = []string{"spark1"}
		for _, s := range []launcher.Spec{moves, stays} {
			if err := r.leader.Launch(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		if at := hostsOf(w, "aaaa"); at != "spark1" {
			t.Fatalf("it began on %s", at)
		}
		drain := rendezvous.NodeDrain{Node: "id1", By: "ada", Reason: "new firmware"}
		set := func(over bool) {
			drain.Over = over
			if err := w.commit(drain.Entry()); err != nil {
				t.Fatal(err)
			}
			r.leader.DrainsChanged()
		}
		set(false)
		named := spec("cccc", 1, 1)
		named.On = []string{"spark1"}
		refused := func() {
			t.Helper()
			err := r.leader.Launch(t.Context(), named)
			if want := "host spark1 gets no ranks: ada has drained it: new firmware"; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("a job on it: %v, want %q", err, want)
			}
		}
		refused()
		if err := r.leader.Move(t.Context(), "bbbb", "moved"); !errors.Is(err, ErrNoMove) {
			t.Errorf("a service that is to be on it: %v", err)
		}
		if err := r.leader.Move(t.Context(), "aaaa", "moved"); err != nil {
			t.Error(err)
		}
		time.Sleep(30 * time.Second)
		j, _ := w.record.Job("aaaa")
		if at := hostsOf(w, "aaaa"); at != "spark2" || len(j.Faults) != 0 || len(j.Attempts) != 1 || j.Attempts[0].Cause != "moved" {
			t.Errorf("it is on %s, faults %v, attempts %+v", at, j.Faults, j.Attempts)
		}
		if b, _ := w.record.Job("bbbb"); b.Plan.Generation != 1 {
			t.Errorf("the other is at generation %d", b.Plan.Generation)
		}
		r.kill()
		r = w.ready()
		refused()
		set(true)
		if err := r.leader.Launch(t.Context(), named); err != nil {
			t.Errorf("once it is over: %v", err)
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
