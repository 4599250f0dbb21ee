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

func onDemand(id launcher.JobID, bytes int64) launcher.Spec {
	s := sizedService(id, bytes, 0)
	s.Service.Autostart = false
	s.Service.OnDemand = &launcher.OnDemand{Idle: 20 * time.Minute, MinUp: 5 * time.Minute}
	return s
}

// asks is a request that has just come; wake: it waits for the service to start.
func asks(id launcher.JobID, wake bool) rendezvous.ServiceUse {
	return rendezvous.ServiceUse{Job: id, Ago: new(time.Duration), Wake: wake}
}

// A service on demand runs while it is used, holds nothing while it sleeps, and goes for another that was asked for once
// its time is over: under a later leader, too, and after a power cut.
func TestOnDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.nodes[0].memory = 100 * gib
		r := w.ready()
		launch := func(s launcher.Spec) {
			t.Helper()
			if err := r.leader.Launch(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		use := func(id launcher.JobID, wake bool) {
			t.Helper()
			if err := r.leader.Use(t.Context(), "id1", asks(id, wake)); err != nil {
				t.Error(err)
			}
		}
		check := func(when string, after time.Duration, want ...string) {
			t.Helper()
			time.Sleep(after)
			var got []string
			for _, j := range r.leader.Jobs() {
				got = append(got, string(j.Spec.ID)+" "+string(j.State))
			}
			slices.Sort(got)
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s: %s", when, d)
			}
		}
		launch(onDemand("aaaa", 60))
		time.Sleep(time.Second)
		launch(onDemand("bbbb", 60))
		time.Sleep(time.Second)
		launch(sizedService("keep", 30, 0))
		check("at first", time.Minute, "aaaa asleep", "bbbb asleep", "keep running")
		use("aaaa", false)
		check("used without being asked for", time.Minute, "aaaa asleep", "bbbb asleep", "keep running")
		use("aaaa", true)
		check("asked for", time.Minute, "aaaa running", "bbbb asleep", "keep running")
		use("bbbb", true)
		check("another within --min-up", 30*time.Second, "aaaa running", "bbbb waiting", "keep running")
		for range 9 {
			use("bbbb", true)
			time.Sleep(30 * time.Second)
		}
		check("after it", 0, "aaaa asleep", "bbbb running", "keep running")
		for range 3 {
			time.Sleep(15 * time.Minute)
			use("bbbb", false)
		}
		check("while it is used", 19*time.Minute, "aaaa asleep", "bbbb running", "keep running")
		check("once it is not", 2*time.Minute, "aaaa asleep", "bbbb asleep", "keep running")
		r.kill()
		r = w.ready()
		check("under a new leader", time.Minute, "aaaa asleep", "bbbb asleep", "keep running")
		if j, _ := w.record.Job("aaaa"); j.Plan.Generation != 1 || len(j.Faults) > 0 {
			t.Errorf("aaaa: generation %d, failures %v; want 1, none", j.Plan.Generation, j.Faults)
		}
		use("aaaa", true)
		check("asked for again", time.Minute, "aaaa running", "bbbb asleep", "keep running")
		w.nodes[0].crash()
		time.Sleep(time.Minute)
		w.nodes[0].heal()
		check("after a power cut", 2*time.Minute, "aaaa asleep", "bbbb asleep", "keep running")

		launch(sizedService("more", 50, 0))
		time.Sleep(time.Minute)
		err := r.leader.Use(t.Context(), "id1", asks("aaaa", true))
		if want := "spark1 by job keep (30 GiB), job more (50 GiB)"; !errors.Is(err, rendezvous.ErrAsleep) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("without room: %v, want %q", err, want)
		}
		check("without room", time.Minute, "aaaa asleep", "bbbb asleep", "keep running", "more running")
		for _, id := range []launcher.JobID{"more", "keep", "bbbb", "aaaa"} {
			if err := r.leader.Stop(t.Context(), id, time.Second, "stopped by ada"); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Minute)
		if j, _ := w.record.Job("bbbb"); j.Outcome == nil || j.Outcome.End != rendezvous.Stopped ||
			j.Outcome.Cause != "stopped by ada" {
			t.Errorf("stopped while it slept: %+v", j.Outcome)
		}
		w.settle()
	})
}

// Of those that may go only as many go as are in the way, the least recently used first.
func TestRoomIsMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		for _, n := range w.nodes {
			n.memory = 100 * gib
		}
		r := w.ready()
		wide := onDemand("wide", 50)
		for _, s := range []launcher.Spec{onDemand("aaaa", 60), onDemand("bbbb", 30), onDemand("cccc", 30), wide} {
			s.On = []string{"spark1"}
			if err := r.leader.Launch(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		other := onDemand("dddd", 90)
		other.On = []string{"spark2"}
		if err := r.leader.Launch(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		for _, id := range []launcher.JobID{"dddd", "bbbb", "aaaa"} { // dddd was used longest ago, but elsewhere
			if err := r.leader.Use(t.Context(), "id1", asks(id, true)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		time.Sleep(5 * time.Minute)
		if err := r.leader.Use(t.Context(), "id1", asks("cccc", true)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		is := func(want string) {
			t.Helper()
			var up []string
			for _, j := range r.leader.Jobs() {
				if j.State == rendezvous.StateRuns {
					up = append(up, string(j.Spec.ID))
				}
			}
			slices.Sort(up)
			if got := strings.Join(up, " "); got != want {
				t.Errorf("%s run, want %s", got, want)
			}
		}
		is("aaaa cccc dddd")
		if err := r.leader.Use(t.Context(), "id1", asks("wide", true)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		is("cccc dddd wide")
		for _, id := range []launcher.JobID{"aaaa", "bbbb", "cccc", "dddd", "wide"} {
			if err := r.leader.Stop(t.Context(), id, time.Second, "enough"); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Minute)
		w.settle()
	})
}
