package web

import (
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// A processor's share is not told as the GPU's, nor one rank's end as another's.
func TestRowsTellWhatIsTheirs(t *testing.T) {
	var u wire.NodeUsage
	u.GPUs, u.CPU = []usage.GPU{{Name: "NVIDIA GB10"}}, &usage.CPU{Cores: 20, Used: new(10.0)}
	p := &page{seen: &seen{Known: func() known { return known{} }, Usage: map[launcher.NodeID]wire.NodeUsage{"n0": u}}}
	if m := p.machineOf(wire.NodeStatus{ID: "n0"}); m.Busy == nil || *m.Busy != 0.5 || m.BusyOf != "CPU" {
		t.Errorf("a GPU that does not tell how busy it is: %v of %q", m.Busy, m.BusyOf)
	}
	var j rendezvous.JobStatus
	j.Spec.ID = "j"
	j.Plan.Nodes = []rendezvous.Place{{Node: "n0", Ranks: 2}}
	j.Outcome = &rendezvous.Outcome{End: "failed", Exits: []launcher.RankExit{{Rank: 0, Exit: launcher.Exit{Code: 1}}}}
	j.FabricLost = []string{"spark2"}
	if r := p.jobOf(j); r.Text != "fabric of spark2 lost" {
		t.Errorf("a job whose cable was cut: %q", r.Text)
	}
	j.Outcome.Cause = "of it"
	for end, class := range map[rendezvous.End]string{"failed": "why", "stopped": "grow"} {
		j.Outcome.End = end
		if html := draw("j", "job", p.jobOf(j)).html; !strings.Contains(html, `<span class="`+class+`">of it<`) {
			t.Errorf("a job that is %s: %s", end, html)
		}
	}
	j.Outcome.End = "failed"
	open := j
	open.Outcome, open.State, open.Started, open.AwaySince = nil, rendezvous.StatePlanned, new(time.Now().Add(-time.Hour)),
		map[string]time.Time{"": time.Now().Add(-9 * time.Minute)}
	if rows := p.ranksOf(open); len(rows) != 1 || rows[0].State != "unknown" || rows[0].Text != " has not answered for 9m" {
		t.Errorf("ranks of a lost machine: %+v", rows)
	}
	p.Jobs, p.q = []rendezvous.JobStatus{open}, url.Values{"id": {"j"}}
	p.visit = visit{(&session{Of: alice}).live(), ""}
	if html := p.job().html; !strings.Contains(html, "stopped answering <small>9m ago") {
		t.Errorf("what has happened since it began: %s", html)
	}
	serves := open
	serves.Spec.Service, serves.Service, serves.State = &launcher.Service{}, &launcher.ServiceSeen{State: launcher.ServiceReady}, rendezvous.StateRuns
	if job, service := p.jobOf(serves).State, serviceOf(serves).State; job != "ready" || service != job {
		t.Errorf("a service is %s as a job, %s among services", job, service)
	}
	if rows := p.ranksOf(j); len(rows) != 2 || rows[0].State != "failed" || rows[1].State != "unknown" || rows[1].Text == "" || rows[1].JobName != "j" {
		t.Errorf("ranks of which one has told of its end: %+v", rows)
	}
}

// A machine with an error has the word of `sparkrun status`, and its view what to do; one that is slowed down is
// marked, one that is busy is not. What is away is said once.
func TestMachinesTellWhatIsWrong(t *testing.T) {
	c := &cluster{n: 4}
	st := c.status()
	st.Nodes[0].Inventory.NICs = slices.Clone(st.Nodes[0].Inventory.NICs)
	for i := range st.Nodes[0].Inventory.NICs {
		st.Nodes[0].Inventory.NICs[i].Addresses = nil
	}
	var slow, hot wire.NodeUsage
	slow.GPUs = []usage.GPU{{Busy: new(1.0), Throttle: []string{"sw_power_cap", "hw_slowdown"}}}
	hot.GPUs = []usage.GPU{{Busy: new(1.0), Celsius: new(93.0), Throttle: []string{"sw_power_cap"}}}
	p := &page{seen: &seen{Status: st, Known: sync.OnceValue(func() known { return knownOf(st) }), Usage: map[launcher.NodeID]wire.NodeUsage{
		"n1": slow, "n2": hot, "n3": {Error: "read tcp: connection reset by peer"}}}}
	all := p.machines()
	for i, want := range []string{`class="bad">2 errors: sparkrun doctor<`, "GPU slowed down: it is too hot, or lacks power", `class="low">93 °C`, `"state away"`} {
		if !strings.Contains(all.items[i].html, want) {
			t.Errorf("no %q: %s", want, all.items[i].html)
		}
	}
	if html := all.items[2].html + all.items[3].html; strings.Contains(html, `"bar full"`) || strings.Contains(html, "slowed") || strings.Contains(html, "tcp") {
		t.Error(html)
	}
	p.q = url.Values{"host": {"spark1"}}
	if html := p.machine().html; !strings.Contains(html, "no-ipv4") || !strings.Contains(html, "<code>") {
		t.Errorf("the machine's view: %s", html)
	}
	st.Nodes[2].State = "away"
	if put := changes([]part{all}, []part{p.machines()}); len(put) != 1 || !strings.Contains(put[0][1], "1 of 4 ready") {
		t.Errorf("one more is away: %q", put)
	}
}

// A list that is cut says so.
func TestManyJobs(t *testing.T) {
	p := &page{seen: &seen{Jobs: make([]rendezvous.JobStatus, jobsMost+1)}}
	got := p.jobs("Jobs", func(rendezvous.JobStatus) bool { return true })
	if len(got.items) != jobsMost || !strings.Contains(got.open, "201, the newest 200") {
		t.Errorf("%d jobs of %d: %s", len(got.items), len(p.Jobs), got.open)
	}
}

// What is drawn once for all has nothing that is one visitor's.
func TestSharedViewsAreTheSameForAll(t *testing.T) {
	s := newSite(t, 4)
	s.enter(alice).get("")
	now := s.seen.now.Load()
	at := func(c wire.Caller, q string) *page {
		values, err := url.ParseQuery(q)
		if err != nil {
			t.Fatal(err)
		}
		return &page{seen: now, web: s.Web, visit: visit{(&session{Of: c}).live(), c.User.Name}, q: values}
	}
	for name, v := range views {
		one := whole(v.parts(at(alice, "id=11111111-aaaa-4aaa-8aaa-000000000001&host=spark1&q=x"))...)
		if other := whole(v.parts(at(mallory, ""))...); !v.own && one != other {
			t.Errorf("%s is not the same for all:\n%s\n%s", name, one, other)
		}
	}
	if one, other := s.parts("overview", at(alice, "")), s.parts("overview", at(mallory, "")); &one[0] != &other[0] {
		t.Error("it is drawn for each page")
	}
}
