package lead

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
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

// waits has requests for a service wait so long.
func (d *demandWorld) waits(id launcher.JobID, during time.Duration) {
	d.t.Helper()
	for range during / (10 * time.Second) {
		d.wake(id)
		time.Sleep(10 * time.Second)
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
		d.waits("bbbb", 2*time.Minute)
		d.is("two that have run before", 0, "aaaa running", "bbbb waiting")
		d.waits("bbbb", 5*time.Minute)
		d.is("after --min-up", 0, "aaaa asleep", "bbbb running")
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
		d.is("the other", 30*time.Second, "aaaa running", "bbbb waiting")
		if err := d.leader.Stop(t.Context(), "aaaa", time.Second, "enough"); err != nil {
			t.Error(err)
		}
		d.is("once the first was stopped", 20*time.Second, "bbbb running")
		d.end()
	})
}

// Those that are asked for all the time have their turns: none waits while two others follow each other, or for so long
// that it goes back to sleep.
func TestTurnsOnDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ids := []launcher.JobID{"aaaa", "bbbb", "cccc", "dddd"}
		d := newDemandWorld(t, onDemand(ids[0], 60), onDemand(ids[1], 60), onDemand(ids[2], 60), onDemand(ids[3], 60))
		ran := map[launcher.JobID]int{}
		for range 60 * 60 {
			for _, j := range d.leader.Jobs() {
				switch j.State {
				case rendezvous.StateAsleep, rendezvous.StateWaits:
					d.wake(j.Spec.ID)
				case rendezvous.StateRuns:
					ran[j.Spec.ID]++
				}
			}
			time.Sleep(time.Second)
		}
		for _, id := range ids {
			if ran[id] < 10*60 {
				t.Errorf("in an hour %s ran for %d s", id, ran[id])
			}
		}
		d.end()
	})
}

// What nobody waits for any more does not start, and ends no other.
func TestNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDemandWorld(t, onDemand("aaaa", 60), onDemand("bbbb", 60))
		d.wake("aaaa")
		d.is("one", time.Minute, "aaaa running", "bbbb asleep")
		d.wake("bbbb")
		d.is("another", 30*time.Second, "aaaa running", "bbbb waiting")
		d.is("once its client is gone", 6*time.Minute, "aaaa running", "bbbb asleep")
		d.end()
	})
}

// A person who stops a service that is being ended, to sleep, has stopped it.
func TestStopWhileItGoesToSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDemandWorld(t, onDemand("aaaa", 60))
		d.nodes[0].lingers = 5 * time.Second
		d.wake("aaaa")
		d.is("asked for", time.Minute, "aaaa running")
		for d.leader.Jobs()[0].State == rendezvous.StateRuns {
			time.Sleep(time.Second)
		}
		if err := d.leader.Stop(t.Context(), "aaaa", time.Second, "stopped by ada"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if j, _ := d.record.Job("aaaa"); j.Outcome == nil || j.Outcome.End != rendezvous.Stopped {
			t.Errorf("its outcome is %+v", j.Outcome)
		}
		d.end()
	})
}

// A service that crashes while its requests are to end sleeps all the same: nobody needs it, and that is no failure.
func TestCrashWhileItGoesToSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDemandWorld(t, onDemand("aaaa", 60))
		d.nodes[0].life = func(launcher.Key, int) (time.Duration, *launcher.Exit) {
			return 20*time.Minute + 13*time.Second, &launcher.Exit{Code: 1}
		}
		d.wake("aaaa")
		d.is("asked for", time.Minute, "aaaa running")
		d.is("idle, when it crashes", 20*time.Minute, "aaaa asleep")
		if j, _ := d.record.Job("aaaa"); len(j.Faults) > 0 || j.Plan.Generation != 1 {
			t.Errorf("failures %v, generation %d", j.Faults, j.Plan.Generation)
		}
		d.end()
	})
}

// What cannot start where it was asked for does not hold the machine until it can.
func TestRefusedWhenWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDemandWorld(t, onDemand("aaaa", 60), onDemand("bbbb", 60))
		d.wake("aaaa")
		d.is("once", time.Minute, "aaaa running", "bbbb asleep")
		d.is("idle", 30*time.Minute, "aaaa asleep", "bbbb asleep")
		d.nodes[0].refuses = "port 8001 is taken"
		d.wake("aaaa")
		d.is("refused", 5*time.Minute, "aaaa asleep", "bbbb asleep")
		d.wake("aaaa")
		time.Sleep(time.Second)
		err := d.leader.Use(t.Context(), "id1", asks("aaaa", true))
		if !errors.Is(err, rendezvous.ErrAsleep) || !strings.Contains(err.Error(), "spark1: port 8001 is taken") {
			t.Errorf("asked for again at once: %v", err)
		}
		d.nodes[0].refuses = ""
		d.is("some time later", 5*time.Minute, "aaaa asleep", "bbbb asleep")
		d.wake("aaaa")
		d.is("once it is not", time.Minute, "aaaa running", "bbbb asleep")
		d.end()
	})
}

// A person is not told that what sleeps starts again.
func TestRestartWhileAsleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDemandWorld(t, onDemand("aaaa", 60))
		if err := d.leader.Restart(t.Context(), "aaaa", "ada wants it"); err == nil || !strings.Contains(err.Error(), "asleep") {
			t.Errorf("restart while it sleeps: %v", err)
		}
		d.is("afterwards", time.Minute, "aaaa asleep")
		d.end()
	})
}

// A job that waits in the queue for what it cannot have yet keeps no service on demand from starting, and none of those
// keeps the job from starting once it can.
func TestDemandBesideTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDemandWorld(t, onDemand("aaaa", 30))
		d.launch(sizedService("keep", 60, 0))
		wide := sizedService("wide", 90, 0)
		wide.Wait = true
		d.launch(wide)
		d.is("at first", time.Minute, "aaaa asleep", "keep running", "wide waiting")
		d.wake("aaaa")
		d.is("asked for", time.Minute, "aaaa running", "keep running", "wide waiting")
		if err := d.leader.Stop(t.Context(), "keep", time.Second, "enough"); err != nil {
			t.Error(err)
		}
		d.is("once the job can begin", 5*time.Minute, "aaaa asleep", "wide running")
		d.end()
	})
}
