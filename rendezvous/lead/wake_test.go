package lead

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

// demandWorld is one machine with 100 GiB for jobs, and services on demand.
type demandWorld struct {
	*world
	*reign
}

func newDemandWorld(t *testing.T, services ...launcher.Spec) *demandWorld {
	t.Helper()
	w := newWorld(t, 1)
	w.nodes[0].memory = 100 * gib
	d := &demandWorld{w, w.ready()}
	for _, s := range services {
		d.launch(s)
	}
	return d
}

func (d *demandWorld) launch(s launcher.Spec) {
	d.t.Helper()
	if err := d.leader.Launch(d.t.Context(), s); err != nil {
		d.t.Fatal(err)
	}
	time.Sleep(time.Second) // the order in which they came is known
}

// wake has requests come for services that wait for them.
func (d *demandWorld) wake(ids ...launcher.JobID) {
	d.t.Helper()
	for _, id := range ids {
		if err := d.leader.Use(d.t.Context(), "id1", asks(id, true)); err != nil {
			d.t.Error(err)
		}
	}
}

// is checks the states of all jobs.
func (d *demandWorld) is(when string, after time.Duration, want ...string) {
	d.t.Helper()
	time.Sleep(after)
	var got []string
	for _, j := range d.leader.Jobs() {
		if j.Outcome == nil {
			got = append(got, string(j.Spec.ID)+" "+string(j.State))
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		d.t.Errorf("%s: %s", when, diff)
	}
}

func (d *demandWorld) end() {
	d.t.Helper()
	for _, j := range d.leader.Jobs() {
		if j.Outcome == nil {
			if err := d.leader.Stop(d.t.Context(), j.Spec.ID, time.Second, "enough"); err != nil {
				d.t.Error(err)
			}
		}
	}
	time.Sleep(time.Minute)
	d.settle()
}

// Services that wait hold nothing: where they ran before is no one's.
func TestWokenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDemandWorld(t, onDemand("aaaa", 60), onDemand("bbbb", 60), onDemand("cccc", 60))
		for _, id := range []launcher.JobID{"aaaa", "bbbb", "cccc"} {
			d.wake(id)
			time.Sleep(6 * time.Minute)
		}
		d.wake("cccc")
		d.is("the last one", time.Minute, "aaaa asleep", "bbbb asleep", "cccc running")
		if err := d.leader.Stop(t.Context(), "cccc", time.Minute, "enough"); err != nil {
			t.Error(err)
		}
		d.wake("aaaa", "bbbb")
		d.is("two that have run before", 2*time.Minute, "aaaa running", "bbbb waiting")
		d.is("after --min-up", 5*time.Minute, "aaaa asleep", "bbbb running")
		d.end()
	})
}

// Who waits for another's --min-up takes the place that becomes free earlier.
func TestRoomBecomesFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := onDemand("aaaa", 60)
		long.Service.OnDemand.MinUp = time.Hour
		d := newDemandWorld(t, long, onDemand("bbbb", 60))
		d.wake("aaaa")
		d.is("one", time.Minute, "aaaa running", "bbbb asleep")
		d.wake("bbbb")
		d.is("the other", time.Minute, "aaaa running", "bbbb waiting")
		if err := d.leader.Stop(t.Context(), "aaaa", time.Second, "enough"); err != nil {
			t.Error(err)
		}
		d.is("once the first was stopped", time.Minute, "bbbb running")
		d.end()
	})
}
