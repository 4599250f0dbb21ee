package lead

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// A service gets another image: it is sent nothing new until its requests have ended, starts anew with it, and goes back
// by itself if it does not become ready.
func TestServiceUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		running := 3
		w.nodes[0].running = &running
		var began time.Time // of the last start
		hangs := false
		w.nodes[0].waits = func(int) string {
			if hangs || time.Since(began) < 5*time.Second {
				return "loads"
			}
			return ""
		}
		w.nodes[0].life = func(k launcher.Key, _ int) (time.Duration, *launcher.Exit) {
			began, hangs = time.Now(), k.Generation == 5 || k.Generation == 7
			w.nodes[0].mute = hangs
			if k.Generation == 3 { // the second update
				return 3 * time.Second, &launcher.Exit{Code: 1}
			}
			return 0, nil
		}
		s := servingJob("aaaa", 1)
		s.Stages[0].Argv, s.Stages[0].Container = nil, &launcher.Container{Image: "old", Argv: launcher.Lits("serve")}
		s.Stages[0].Ready = []launcher.Probe{{Kind: launcher.ProbeTCP, Head: true, What: "its port", Port: s.Service.Port}}
		r := launched(t, w, s)
		time.Sleep(time.Minute)
		update := func(image string) {
			t.Helper()
			record := func(_ context.Context, u rendezvous.JobUpdate) error { return w.commit(u.Entry()) }
			if err := r.leader.Update(t.Context(), rendezvous.JobUpdate{Job: "aaaa", Image: image, By: "ada"}, record); err != nil {
				t.Fatal(err)
			}
		}
		is := func(when string, generation launcher.Generation, image string, ready bool) {
			t.Helper()
			j, _ := w.record.Job("aaaa")
			backends, _ := r.leader.Backends()
			if j.Plan.Generation != generation || j.Image() != image || backends[0].Ready != ready || !ready && !backends[0].Comes {
				t.Errorf("%s: generation %d, image %s, %+v; want %d, %s, ready %v", when, j.Plan.Generation, j.Image(),
					backends[0], generation, image, ready)
			}
		}
		is("at first", 1, "old", true)
		update("new")
		time.Sleep(time.Minute)
		is("while requests are under way", 1, "new", false)
		r.kill()
		r = w.ready()
		time.Sleep(time.Minute)
		is("under a new leader", 1, "new", false)
		running = 0
		w.nodes[0].report("aaaa")
		time.Sleep(20 * time.Second)
		is("once they have ended", 2, "new", true)

		update("broken")
		time.Sleep(time.Minute)
		is("after an update that does not become ready", 4, "new", true)
		j, _ := w.record.Job("aaaa")
		if len(j.Faults) != 0 || j.Update != nil {
			t.Errorf("faults %v, update %+v", j.Faults, j.Update)
		}

		update("hung")
		time.Sleep(launcher.DefaultPatience)
		is("while it makes no progress", 5, "hung", false)
		time.Sleep(time.Minute)
		is("after that lasted too long", 6, "new", true)

		update("hung")
		time.Sleep(time.Minute)
		update("newer")
		time.Sleep(20 * time.Second)
		is("after another update in place of a hung one", 8, "newer", true)
		stopped(t, w, "aaaa")
	})
}

// Where a server's metrics do not say what is under way, the gateways do.
func TestGatewaysRequestsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		s := servingJob("aaaa", 1)
		s.Stages[0].Argv, s.Stages[0].Container = nil, &launcher.Container{Image: "old", Argv: launcher.Lits("serve")}
		r := launched(t, w, s)
		time.Sleep(time.Minute)
		record := func(_ context.Context, u rendezvous.JobUpdate) error { return w.commit(u.Entry()) }
		update := rendezvous.JobUpdate{Job: "aaaa", Image: "new", By: "ada"}
		if err := r.leader.Update(t.Context(), update, record); err != nil {
			t.Fatal(err)
		}
		underWay := func(n int64) {
			t.Helper()
			if err := r.leader.Use(t.Context(), "id1", rendezvous.ServiceUse{Job: "aaaa", UnderWay: &n}); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Second)
		underWay(3)
		if g := generationAt(t, w, "aaaa", time.Minute); g != 1 {
			t.Errorf("while requests are under way: generation %d", g)
		}
		underWay(0)
		if g := generationAt(t, w, "aaaa", 10*time.Second); g != 2 {
			t.Errorf("once they have ended: generation %d", g)
		}
		stopped(t, w, "aaaa")
	})
}
