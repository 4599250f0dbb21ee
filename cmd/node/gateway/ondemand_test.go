package gateway

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

func sleeping(job, model string) rendezvous.Backend {
	b := coming(job, model)
	b.OnDemand, b.Comes, b.State = true, false, "asleep"
	return b
}

// A request for a service that sleeps has it started and waits for it; one whose key has no right to that is refused,
// and so is one for which there is no room.
func TestWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := viewOf(sleeping("j", "a"), sleeping("k", "b"))
		check := keyOf("check")
		check.NoWake = true
		v.Gateway.Keys = map[string]rendezvous.GatewayKey{"ada": keyOf("ada"), "check": check}
		w := newGateway(t, v)
		w.asleep = map[launcher.JobID]string{"k": "cannot be started: no room: spark1 by job keep"}
		w.g.transport = fake(func(*http.Request) (*http.Response, error) { return answers(200, "application/json", `{}`) })
		ask := func(model, key string) <-chan got {
			out := make(chan got, 1)
			rec, done := w.begin(t.Context(), chatPath, `{"model":"`+model+`"}`, "x-api-key: "+key)
			go func() {
				<-done
				out <- got{rec.Code, rec.Header(), rec.Body.String()}
			}()
			return out
		}
		no := <-ask("a", "check")
		wantHas(t, "a key without the right", no.body, "model a is asleep, and key check may not wake it")
		if no.status != 503 || len(w.uses.Load().Uses) > 0 {
			t.Errorf("it got %d, and the leader was told %+v", no.status, w.uses.Load())
		}
		no = <-ask("b", "ada")
		wantHas(t, "without room", no.body, "model b is asleep and cannot be started: no room: spark1 by job keep")
		if no.status != 503 || no.header.Get("Retry-After") == "" {
			t.Errorf("without room: %d, Retry-After %q", no.status, no.header.Get("Retry-After"))
		}

		one, two := ask("a", "ada"), ask("a", "ada")
		time.Sleep(time.Second)
		want := wire.UseServicesRequest{Uses: []rendezvous.ServiceUse{{Job: "j", Wake: true}}}
		if d := cmp.Diff(want, w.uses.Load()); d != "" {
			t.Errorf("the leader was told: %s", d)
		}
		v.Backends = []rendezvous.Backend{coming("j", "a"), sleeping("k", "b")}
		v.Backends[0].OnDemand = true
		w.view.Store(v)
		time.Sleep(time.Minute)
		v.Backends = []rendezvous.Backend{coming("j", "a"), sleeping("k", "b")}
		ready(&v)
		v.Backends[0].OnDemand = true
		w.view.Store(v)
		for _, c := range []<-chan got{one, two} {
			if g := <-c; g.status != 200 {
				t.Errorf("once it is up: %d %s", g.status, g.body)
			}
		}
	})
}

// Where several services of a model sleep, one for which there is no room keeps none of the others from starting.
func TestWakeAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := viewOf(sleeping("j", "a"), sleeping("k", "a"))
		w := newGateway(t, v)
		w.asleep = map[launcher.JobID]string{"j": "cannot be started: no room: spark1 by job keep"}
		w.g.transport = fake(func(*http.Request) (*http.Response, error) { return answers(200, "application/json", `{}`) })
		rec, done := w.begin(t.Context(), chatPath, `{"model":"a"}`)
		time.Sleep(9 * time.Second) // between two questions
		want := []rendezvous.ServiceUse{{Job: "k", Wake: true}}
		uses := w.uses.Load().Uses
		if d := cmp.Diff(want, slices.DeleteFunc(uses, func(u rendezvous.ServiceUse) bool { return u.Job == "j" })); d != "" {
			t.Errorf("the leader was told: %s", d)
		}
		w.becomes(func(v *View) { v.Backends[1] = coming("k", "a"); v.Backends[1].OnDemand = true })
		time.Sleep(time.Minute)
		w.becomes(func(v *View) { v.Backends[1].Ready, v.Backends[1].Comes = true, false })
		if <-done; rec.Code != 200 {
			t.Errorf("once the other is up: %d %s", rec.Code, rec.Body)
		}
	})
}

// A service that waits for a place is asked for as long as requests wait that may wake it, and no longer.
func TestWokenIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := coming("j", "a")
		b.OnDemand, b.State = true, "waiting"
		v := viewOf(b)
		check := keyOf("check")
		check.NoWake = true
		v.Gateway.Keys = map[string]rendezvous.GatewayKey{"ada": keyOf("ada"), "check": check}
		w := newGateway(t, v)
		for key, want := range map[string][]rendezvous.ServiceUse{"ada": {{Job: "j", Wake: true}}, "check": nil} {
			ctx, gone := context.WithCancel(t.Context())
			_, done := w.begin(ctx, chatPath, `{"model":"a"}`, "x-api-key: "+key)
			for range 5 {
				w.uses.Store(wire.UseServicesRequest{})
				time.Sleep(30 * time.Second)
				if d := cmp.Diff(want, w.uses.Load().Uses); d != "" {
					t.Errorf("while %s waits the leader was told: %s", key, d)
				}
			}
			gone()
			<-done
			time.Sleep(time.Second)
			w.uses.Store(wire.UseServicesRequest{})
			time.Sleep(time.Minute)
			if told := w.uses.Load().Uses; told != nil {
				t.Errorf("once %s is gone the leader was told %+v", key, told)
			}
		}
	})
}

func used(job launcher.JobID, ago time.Duration) rendezvous.ServiceUse {
	return rendezvous.ServiceUse{Job: job, Ago: &ago}
}

// The leader hears of use, each half minute as long as there is some, and never of a key's that keeps nothing up.
func TestUseIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := coming("j", "a")
		b.OnDemand = true
		v := viewOf(b)
		ready(&v)
		check := keyOf("check")
		check.NoWake = true
		v.Gateway.Keys = map[string]rendezvous.GatewayKey{"ada": keyOf("ada"), "check": check}
		w := newGateway(t, v)
		end := make(chan struct{})
		w.g.transport = fake(func(r *http.Request) (*http.Response, error) {
			if r.Header.Get("X-Long") != "" {
				<-end
			}
			return answers(200, "application/json", `{}`)
		})
		told := func(when string, after time.Duration, want ...rendezvous.ServiceUse) {
			t.Helper()
			time.Sleep(after)
			if d := cmp.Diff(want, w.uses.Load().Uses); d != "" {
				t.Errorf("%s the leader was told: %s", when, d)
			}
			w.uses.Store(wire.UseServicesRequest{})
		}
		time.Sleep(time.Hour)
		_, done := w.begin(t.Context(), chatPath, `{"model":"a"}`, "x-api-key: check")
		<-done
		told("after a health check", time.Second)
		_, done = w.begin(t.Context(), chatPath, `{"model":"a"}`, "x-api-key: ada", "X-Long: 1")
		told("at first", time.Second, used("j", 0))
		for range 3 {
			told("while it is under way", tellEach, used("j", 0))
		}
		close(end)
		<-done
		told("once it is not", tellEach, used("j", tellEach-time.Second))
		told("long after it", time.Hour)
	})
}

// underWayAt is a gateway with one request at a service, which is answered once end is closed.
func underWayAt(t *testing.T) (w *world, end chan struct{}, done <-chan struct{}) {
	v := viewOf(coming("j", "a"))
	ready(&v)
	w, end = newGateway(t, v), make(chan struct{})
	w.g.transport = fake(func(*http.Request) (*http.Response, error) {
		<-end
		return answers(200, "application/json", `{}`)
	})
	_, done = w.begin(t.Context(), chatPath, `{"model":"a"}`)
	return w, end, done
}

// moves has the service about to be ended.
func moves(v *View) {
	v.Backends[0].Ready, v.Backends[0].Comes, v.Backends[0].Moves = false, true, true
}

// The leader hears of what is under way at a service that it is about to end, and when the last of that has ended.
func TestMovingIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, end, done := underWayAt(t)
		told := func(when string, want ...rendezvous.ServiceUse) {
			t.Helper()
			time.Sleep(time.Minute)
			if d := cmp.Diff(want, w.uses.Load().Uses); d != "" {
				t.Errorf("%s the leader was told: %s", when, d)
			}
			w.uses.Store(wire.UseServicesRequest{})
		}
		told("before")
		w.becomes(moves)
		n := int64(1)
		told("once it is to end", rendezvous.ServiceUse{Job: "j", UnderWay: &n})
		close(end)
		<-done
		n = 0
		told("after the last one", rendezvous.ServiceUse{Job: "j", UnderWay: &n})
	})
}

// A new leader hears what is under way at a service that it, too, is about to end.
func TestMovingIsToldToEachLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, end, done := underWayAt(t)
		time.Sleep(time.Second)
		w.becomes(moves)
		time.Sleep(3 * time.Second)
		w.uses.Store(wire.UseServicesRequest{}) // what follows is heard by another leader
		time.Sleep(5 * time.Second)
		n := int64(1)
		want := []rendezvous.ServiceUse{{Job: "j", UnderWay: &n}}
		if d := cmp.Diff(want, w.uses.Load().Uses); d != "" {
			t.Errorf("another leader was told: %s", d)
		}
		close(end)
		<-done
	})
}
