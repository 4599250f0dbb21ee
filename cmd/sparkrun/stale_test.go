package main

import (
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Without a leader the answer says how old it is, on a screen and for scripts.
func TestReadsWithoutALeaderSayTheirAge(t *testing.T) {
	const problem = "no leader: spark1, the only voter of this cluster, does not answer"
	heard := time.Now().Add(-3 * time.Minute)
	jobs := apptest.SomeJobs()
	jobs.Jobs[1] = rendezvous.StatusOf(jobs.Jobs[1].Job)
	jobs.Problem, jobs.Heard = problem, heard
	st := wire.Status{Cluster: "3f2a", Self: "spark2", Problem: problem, Heard: heard, Nodes: []wire.NodeStatus{
		{Host: "spark1", State: "away", Since: heard}, {Host: "spark2", State: "unknown"}, {Host: "spark3", State: "unknown"},
	}}
	b := func() *wire.Client {
		return apptest.Agent(&apptest.FakeCluster{Has: jobs,
			OnStatus: func(wire.StatusRequest) (wire.Status, error) { return st, nil }})
	}
	for line, want := range map[string][]string{
		"status": {"no leader for 3m\n", "spark1   -         away 3m   ", "spark2   -         answers ",
			"spark3   -         unknown "},
		"ps":      {"torchrun   spark1,spark2   unknown "},
		"ps bbbb": {"torchrun of ada, unknown\n"},
	} {
		code, out, errs := cli(t, b(), strings.Fields(line)...)
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("%s: no %q in\n%s", line, w, out)
			}
		}
		if code != 0 || !strings.Contains(errs, problem+"\n") || line != "status" &&
			!strings.Contains(errs, "what is shown is 3m old") {
			t.Errorf("%s: code %d, stderr %q", line, code, errs)
		}
	}
	for _, line := range []string{"ps --json", "ps --json bbbb"} {
		_, out, _ := cli(t, b(), strings.Fields(line)...)
		if !strings.Contains(out, `"no_leader": true`) ||
			!strings.Contains(out, `"as_of": "`+heard.Format("2006-01-02T15:04")) ||
			!strings.Contains(out, `"state": "planned"`) {
			t.Errorf("%s:\n%s", line, out)
		}
	}
	jobs.Heard = time.Time{}
	if _, _, errs := cli(t, b(), "ps"); !strings.Contains(errs, "is of before this machine's agent was started") {
		t.Errorf("nobody was ever heard: %q", errs)
	}
}
