package notify

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// Machines: what is short is no news, each loss and return is told once under any leader, and flapping is damped.
func TestNodesAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		l, end := c.lead()
		if err := c.add(l, hook); err != nil {
			t.Fatal(err)
		}
		goes := func(state string, stays time.Duration) string {
			c.now(func() { c.nodes[1].State, c.nodes[1].Since = state, time.Now() })
			time.Sleep(stays)
			return c.events()
		}
		change := func() string {
			end()
			_, end = c.lead()
			time.Sleep(2 * time.Minute)
			return c.events()
		}
		for i, step := range []struct{ got, want string }{
			{goes("away", 50*time.Second), ""},
			{goes("ready", time.Minute), ""},
			{goes("away", 61*time.Second), "node-lost"},
			{change(), ""},
			{goes("ready", time.Minute), "node-back"},
			{change(), ""},
			{goes("away", 61*time.Second), "node-lost"},
			{goes("ready", time.Minute), "node-back"},
			{goes("away", 5*time.Minute), ""}, // the fifth within an hour
			{goes("ready", time.Minute), ""},
			{goes("away", 11*time.Minute), "node-lost"},
			{goes("ready", time.Minute), "node-back"}, // who was told of the loss does not wait for that
		} {
			if step.got != step.want {
				t.Errorf("step %d: %q, want %q", i, step.got, step.want)
			}
		}
		end()
	})
}

// An error of doctor's has to be there twice, and is told again only after it was gone for a while.
func TestFindingsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		l, end := c.lead()
		defer func() { end() }()
		if err := c.add(l, hook); err != nil {
			t.Fatal(err)
		}
		bad := []envgen.Finding{{Code: "no-ipv4", Severity: envgen.SeverityError, Node: "n2", Host: "spark2", Text: "no address"},
			{Code: "no-ipv4", Severity: envgen.SeverityError, Node: "n2", Host: "spark2", Device: "other", Text: "no address"},
			{Code: "slow", Severity: envgen.SeverityWarning, Node: "n2", Host: "spark2"}}
		finds := func(f []envgen.Finding, stays time.Duration) string {
			c.now(func() { c.finds = f })
			time.Sleep(stays)
			return c.events()
		}
		time.Sleep(time.Minute)
		for i, step := range []struct{ got, want string }{
			{finds(bad, 45*time.Second), ""},
			{finds(nil, 10*time.Minute), ""},
			{finds(bad, 45*time.Second), ""}, // two moments are no minute
			{finds(nil, 10*time.Minute), ""},
			{finds(bad, 30*time.Minute), "doctor-error"},
			{finds(nil, 10*time.Minute), ""},
			{finds(bad, 30*time.Minute), ""},
			{finds(nil, 50*time.Minute), ""},
			{finds(bad, 30*time.Minute), "doctor-error"},
		} {
			if step.got != step.want {
				t.Errorf("step %d: %q, want %q", i, step.got, step.want)
			}
		}
		end()
		_, end = c.lead()
		time.Sleep(time.Hour)
		if got := c.events(); got != "" {
			t.Errorf("under the next leader: %q", got)
		}
	})
}

// A service is down where it answered and its generation failed, and not while it is moved, asleep or starts.
func TestServicesAreTold(t *testing.T) {
	service := func(state rendezvous.State, seen launcher.ServiceState, change ...func(*rendezvous.JobStatus)) rendezvous.JobStatus {
		j := rendezvous.JobStatus{State: state, Job: rendezvous.Job{Spec: launcher.Spec{ID: "ssss", Name: "llm",
			Service: &launcher.Service{}}}}
		if seen != "" {
			j.Service = &launcher.ServiceSeen{State: seen, Text: "it says " + string(seen), Since: time.Now()}
		}
		for _, fn := range change {
			fn(&j)
		}
		return j
	}
	last := func(out rendezvous.Outcome) func(*rendezvous.JobStatus) {
		return func(j *rendezvous.JobStatus) { j.Last = &out }
	}
	runs := rendezvous.StateRuns
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		l, end := c.lead()
		defer func() { end() }()
		if err := c.add(l, hook); err != nil {
			t.Fatal(err)
		}
		is := func(j rendezvous.JobStatus, stays time.Duration) string {
			c.now(func() { c.jobs = []rendezvous.JobStatus{j} })
			time.Sleep(stays)
			synctest.Wait()
			var texts []string
			for _, m := range c.got {
				texts = append(texts, m.Text)
			}
			return strings.TrimSpace(c.events() + " " + strings.Join(texts, " "))
		}
		again := rendezvous.StateAgain
		for i, step := range []struct{ got, want string }{
			{is(service(rendezvous.StateStarts, ""), time.Hour), ""},
			{is(service(again, "", last(failure)), time.Hour), ""}, // it has never answered
			{is(service(runs, "ready"), time.Minute), "service-up sparkrun: job ssss answers"},
			{is(service(runs, "unhealthy"), 5*time.Second), ""},
			{is(service(runs, "ready"), time.Hour), ""},
			{is(service(runs, "ready", func(j *rendezvous.JobStatus) { j.Moves = true }), time.Hour), ""},
			{is(service(again, "", last(rendezvous.Outcome{End: rendezvous.Failed, Moved: true})), time.Minute), ""},
			{is(service(rendezvous.StateStarts, ""), time.Hour), ""},
			{is(service(runs, "ready"), time.Hour), ""},
			{is(service(rendezvous.StateAsleep, "", last(rendezvous.Outcome{End: rendezvous.Failed, Asleep: true})), time.Hour), ""},
			{is(service(runs, "ready"), time.Hour), ""},
			{is(service(again, "", last(failure)), time.Second), "service-down sparkrun: job ssss is down (restarting): rank 3 on " +
				"spark2: exit 1 (its last line: boom ‹!channel› @\u200bhere)"},
			{is(service(rendezvous.StateStarts, ""), time.Hour), ""},
			{is(service(runs, "ready"), time.Hour), "service-up sparkrun: job ssss answers"},
			{is(service(runs, "wedged"), time.Hour), "service-wedged sparkrun: job ssss is wedged: it says wedged"},
			{is(service(again, "", last(failure)), time.Hour), ""},
			{is(service(runs, "ready"), time.Hour), "service-up sparkrun: job ssss answers"},
			{is(service(runs, "ready", func(j *rendezvous.JobStatus) {
				j.Away, j.AwaySince = []string{"spark2"}, map[string]time.Time{"spark2": time.Now()}
			}), 61*time.Second), "service-down sparkrun: job ssss is down (away): spark2 does not answer"},
		} {
			if step.got != step.want {
				t.Errorf("step %d: %q, want %q", i, step.got, step.want)
			}
		}
		end()
		_, end = c.lead()
		time.Sleep(time.Hour)
		if got := c.events(); got != "" {
			t.Errorf("under the next leader: %q", got)
		}
		c.now(func() { c.jobs = nil })
		time.Sleep(time.Minute)
		if now, _ := c.record.Notify(); len(now.Told) > 0 {
			t.Errorf("kept of a service that has ended: %v", now.Told)
		}
	})
}
