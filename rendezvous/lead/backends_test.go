package lead

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

// offers are the services as the gateway sees them, in a line.
func (r *reign) offers() string {
	all, _ := r.leader.Backends()
	var texts []string
	for _, b := range all {
		text := fmt.Sprintf("%s %d %s", b.Job, b.Generation, b.State)
		if b.Ready {
			text += " at " + b.Addr.String()
		}
		if b.Comes {
			text += " comes"
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

// within gives what is offered so much later.
func (r *reign) within(t *testing.T, d time.Duration, want string) {
	t.Helper()
	time.Sleep(d)
	if got := r.offers(); got != want {
		t.Errorf("offered %q, want %q", got, want)
	}
}

// The gateway is told how a service goes, from its launch to its end, through its restarts and a change of leaders.
func TestBackendsFollowTheService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.each(exitAfter(10*time.Minute, 7))
		s := servingJob("aaaa", 1)
		s.Service.Model = "qwen"
		r := launched(t, w, s)
		const addr = "10.0.0.1:8000"
		r.within(t, 5*time.Second, "aaaa 1 running comes")
		r.within(t, 10*time.Second, "aaaa 1 ready at "+addr)
		r.kill()
		r = w.crown(0)
		if got := r.offers(); got != "aaaa 1 planned comes" {
			t.Errorf("a new leader offers %q", got)
		}
		r.within(t, 5*time.Second, "aaaa 1 ready at "+addr)
		r.within(t, 9*time.Minute+41*time.Second, "aaaa 1 restarting comes")
		r.within(t, 30*time.Second, "aaaa 2 ready at "+addr)
		w.nodes[0].mu.Lock()
		for _, tr := range w.nodes[0].ledger {
			w.nodes[0].sees(tr, launcher.ServiceUnhealthy, "503")
		}
		w.nodes[0].mu.Unlock()
		r.within(t, time.Second, "aaaa 2 unhealthy comes")
		stopped(t, w, "aaaa")
		r.within(t, 0, "")
	})
}

// What is no service, or says what the gateway has no use for, wakes nobody.
func TestBackendsAreQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.each(exitAfter(time.Minute, 0))
		r := launched(t, w, servingJob("aaaa", 1))
		time.Sleep(30 * time.Second)
		_, changed := r.leader.Backends()
		if err := r.leader.Launch(t.Context(), spec("bbbb", 1, 1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		select {
		case <-changed:
			t.Error("a job that is no service wakes the gateways")
		default:
		}
		stopped(t, w, "aaaa")
		select {
		case <-changed:
		default:
			t.Error("nobody is told of the end of a service")
		}
	})
}

// A service that has failed stays there with its cause for who asks for its model, under the next leader too, until
// another one serves that. One that was stopped does not.
func TestFailedServiceSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.nodes[0].life = func(k launcher.Key, _ int) (time.Duration, *launcher.Exit) {
			if k.Job == "aaaa" {
				return time.Second, &launcher.Exit{Code: 3}
			}
			return 0, nil
		}
		serving := func(id launcher.JobID) launcher.Spec {
			s := servingJob(id, 1)
			s.Service.Restarts, s.Service.Per, s.Service.Model = 0, 0, "qwen"
			return s
		}
		r := launched(t, w, serving("aaaa"))
		is := func(when string, after time.Duration, want ...string) {
			t.Helper()
			time.Sleep(after)
			all, _ := r.leader.Backends()
			var got []string
			for _, b := range all {
				got = append(got, string(b.Job)+" "+b.State+" "+b.Text)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s: %s", when, d)
			}
		}
		is("failed", time.Minute, "aaaa failed stage main, rank 0 on spark1: exit 3 (--restart no)")
		r.kill()
		r = w.ready()
		is("under a new leader", time.Minute, "aaaa failed stage main, rank 0 on spark1: exit 3 (--restart no)")
		if err := r.leader.Launch(t.Context(), serving("bbbb")); err != nil {
			t.Fatal(err)
		}
		is("another one", time.Minute, "bbbb ready ")
		stopped(t, w, "bbbb")
		is("stopped", time.Minute)
	})
}
