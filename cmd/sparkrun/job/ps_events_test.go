package job

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// What has happened to a job's machines and links since it began is told by our clock, whatever theirs is; what was
// before, or on a port by which it does not meet, is not.
func TestSinceItBegan(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	skew := 3 * time.Hour // of every machine's clock
	began := now.Add(-time.Minute)
	ago := func(s int) time.Time { return now.Add(skew - time.Duration(s)*time.Second) }
	change := func(s int, slot string, up *bool, text string) envgen.LinkChange {
		return envgen.LinkChange{At: ago(s), Slot: "01:00." + slot, Port: "port " + slot, Up: up, Text: text}
	}
	lost := func(s int, slot string) envgen.LinkChange { return change(s, slot, new(false), "lost its link") }
	back := func(s int, slot string) envgen.LinkChange {
		return change(s, slot, new(true), "has a link of 200 Gb/s")
	}
	for name, c := range map[string]struct {
		slots string // of the ports by which it meets
		links []envgen.LinkChange
		agent time.Time
		want  string
	}{
		"nothing":                     {"0", nil, ago(500), ""},
		"pulled":                      {"0", []envgen.LinkChange{lost(4, "0")}, ago(500), "fabric of spark2 lost 4s ago"},
		"one of two":                  {"01", []envgen.LinkChange{lost(4, "1")}, ago(500), "port 1 of spark2 lost its link 4s ago"},
		"both":                        {"01", []envgen.LinkChange{lost(9, "1"), lost(4, "0")}, ago(500), "fabric of spark2 lost 4s ago"},
		"another port":                {"0", []envgen.LinkChange{lost(4, "1")}, ago(500), ""},
		"no port":                     {"", []envgen.LinkChange{lost(4, "0")}, ago(500), ""},
		"before it began, back since": {"0", []envgen.LinkChange{lost(90, "0"), back(80, "0")}, ago(500), ""},
		"came and went": {"0", []envgen.LinkChange{lost(50, "0"), back(40, "0"), lost(30, "0"), back(20, "0")}, ago(500),
			"port 0 of spark2 has a link again (20s without, lost 2 times) 20s ago"},
		"healed": {"0", []envgen.LinkChange{lost(90, "0"), back(80, "0"), lost(50, "0"), back(3, "0")}, ago(500),
			"port 0 of spark2 has a link again (47s without) 3s ago"},
		"slower, and the agent anew": {"0", []envgen.LinkChange{change(3, "0", nil, "runs at 100 Gb/s")}, ago(50),
			"spark2's agent was restarted 50s ago\nport 0 of spark2 runs at 100 Gb/s 3s ago"},
	} {
		var e envgen.Entry
		for _, slot := range c.slots {
			e.Paths = append(e.Paths, envgen.Path{Slot: "01:00." + string(slot)}, envgen.Path{Slot: "01:00." + string(slot)})
		}
		j := rendezvous.JobStatus{Started: &began, Job: rendezvous.Job{Plan: rendezvous.Plan{Nodes: []rendezvous.Place{
			{Node: "n1", Host: "spark1", Entry: e}, {Node: "n2", Host: "spark2", Entry: e}}}}}
		got := eventsText(wire.JobEvents(j, []wire.NodeUsage{{ID: "n1", Error: "spark1 is away"},
			{ID: "n2", Machine: usage.Machine{At: now.Add(skew)}, Began: c.agent, Links: c.links}}, now), now)
		got = strings.TrimSpace(strings.ReplaceAll(strings.TrimPrefix(got, "since it began:\n"), "\n  ", "\n"))
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s:\n%s", name, d)
		}
	}
}

// Each rank has its own figures and its machine's GPU and fabric; of one whose machine is away nothing is told.
func TestRanksOfAJob(t *testing.T) {
	j := rendezvous.JobStatus{Away: []string{"spark2"}, Job: rendezvous.Job{Spec: launcher.Spec{ID: "k3x"},
		Plan: rendezvous.Plan{Generation: 1, World: 3, Nodes: []rendezvous.Place{{Node: "n1", Host: "spark1", Ranks: 2},
			{Node: "n2", Host: "spark2", FirstRank: 2, Ranks: 1}}}}}
	nodes := []wire.NodeUsage{{ID: "n1", Machine: usage.Machine{GPUs: []usage.GPU{{Busy: new(0.5)}},
		Ports: []usage.Port{{RDMAIn: new(1e9), RDMAOut: new(2e9)}, {RDMAIn: new(1e9), RDMAOut: new(2e9)}},
		Ranks: []usage.Rank{{Job: "k3x", Generation: 1, Rank: 0, CPU: new(1.25), Memory: 3 << 30, GPUMemory: new(int64(9 << 30)), State: "R"},
			{Job: "other", Generation: 1, Rank: 1, Memory: 1 << 40}}}}, {ID: "n2", Error: "spark2 is away"}}
	want := `RANK   HOST     CPU   MEMORY   GPU MEM   GPU   RDMA GB/S   ETHERNET GB/S   STATE
0      spark1   1.2   3 GiB    9 GiB     50%   2.00/4.00   -               running
1      spark1   -     -        -         50%   2.00/4.00   -               -
2      spark2   -     -        -         -     -           -               away
`
	if d := cmp.Diff(want, app.TableText(rankRows(j, nodes))); d != "" {
		t.Error(d)
	}
	if rows := rankRows(j, nil); rows != nil {
		t.Errorf("nobody has told of anything, and it shows %q", rows)
	}
}
