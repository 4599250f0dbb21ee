package overview

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sparkrun/sparkrun/cmd/node/checkup"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/envgen/doctor"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// some is a pair that serves and trains, of which one machine's fabric has lost its addresses, and a third that is
// away; what the second does not tell is absent.
func some() *seen {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	s := &seen{status: apptest.Pair(true), now: at.Add(time.Minute)}
	s.status.Nodes[0].Role, s.status.Nodes[1].Role = "leader", "voter"
	for i := range s.status.Nodes[1].Inventory.NICs[1:] {
		s.status.Nodes[1].Inventory.NICs[1+i].Addresses = nil
		s.status.Nodes[1].Inventory.Devices[i].GIDs = nil
	}
	away := apptest.Spark("spark3", "13", "")
	away.State, away.Role, away.Since = "away", "standby", at
	s.status.Nodes = append(s.status.Nodes, away)
	const gib = int64(1) << 30
	job := rendezvous.Job{Spec: launcher.Spec{ID: "k3x4bbbbbb", Name: "train", Workload: "torchrun"}, Planned: at,
		Plan: rendezvous.Plan{Generation: 2, World: 2, Nodes: []rendezvous.Place{
			{Host: "spark1", Ranks: 1}, {Host: "spark2", FirstRank: 1, Ranks: 1}}}}
	s.jobs = apptest.SomeServices()
	s.jobs.Jobs = append(slices.Clone(s.jobs.Jobs[2:4]),
		rendezvous.JobStatus{Job: job, State: rendezvous.StateRuns, FabricLost: []string{"spark2"}})
	one := usage.Machine{Memory: &usage.Memory{Total: 121 * gib, Available: 20 * gib, Swap: 16 * gib, SwapUsed: gib},
		CPU: &usage.CPU{Cores: 20, Used: new(3.25), Load1: new(4.0)},
		GPUs: []usage.GPU{{Busy: new(0.97), Celsius: new(64.0), Watts: new(41.5), MHz: new(2418.0),
			Throttle: []string{"hw_thermal_slowdown"}}},
		Disks: []usage.Disk{{Mount: "/", Free: 812 * gib}, {Mount: "/var", Free: 90 * gib}},
		Ports: []usage.Port{{RDMAIn: new(21.4e9), RDMAOut: new(21.5e9), EtherIn: new(1e6), EtherOut: new(0.0)}},
		Ranks: []usage.Rank{
			{Job: "k3x4bbbbbb", Generation: 1, Rank: 0, Memory: 99 * gib}, // of the attempt before: counts for nothing
			{Job: "k3x4bbbbbb", Generation: 2, Rank: 0, CPU: new(1.5), Memory: 12 * gib, GPUMemory: new(80 * gib), State: "R"}}}
	two := usage.Machine{Memory: &usage.Memory{Total: 121 * gib, Available: 121*gib - gib/2},
		Ranks: []usage.Rank{{Job: "k3x4bbbbbb", Generation: 2, Rank: 1, Memory: 12 * gib, State: "D"}}}
	s.usage = []wire.NodeUsage{{ID: "id-spark1", Machine: one}, {ID: "id-spark2", Machine: two},
		{ID: "id-spark3", Error: "spark3 is away"}}
	s.tallies = checkup.Seen(s.status).Counts()
	s.tallies["spark1"] = doctor.Tally{Warnings: 2}
	return s
}

// The picture is one that fits: 100 columns with all, and less where the terminal has less.
func TestPicture(t *testing.T) {
	var b strings.Builder
	for _, c := range []struct {
		o           options
		width, most int
	}{{options{}, 0, 100}, {options{}, 80, 80}, {options{wide: true}, 0, 220}, {options{wide: true, ranks: true, watch: true}, 80, 80},
		{options{wide: true, ranks: true, watch: true}, 132, 132}, {options{wide: true, ranks: true, watch: true}, 50, 50}} {
		text := some().text(c.o, c.width, 0)
		fmt.Fprintf(&b, "== %+v, %d columns\n%s", c.o, c.width, text)
		for line := range strings.Lines(text) {
			if n := utf8.RuneCountInString(line) - 1; n > c.most {
				t.Errorf("%+v at %d: a line of %d: %s", c.o, c.width, n, line)
			}
		}
	}
	b.WriteString("== notes\n" + strings.Join(some().notes(), "\n") + "\n")
	apptest.Golden(t, "status.txt", b.String())
}

// Of 64 machines a terminal shows as many as it has lines for, those first that something is wrong with.
func TestPictureOfMany(t *testing.T) {
	s := some()
	for i := range 64 {
		n := apptest.Spark(fmt.Sprintf("node%02d", i), "20", "")
		if i == 60 {
			n.State = "drained"
		}
		s.status.Nodes = append(s.status.Nodes, n)
	}
	s.tallies = checkup.Seen(s.status).Counts()
	for _, o := range []options{{}, {ranks: true, wide: true}} {
		text := s.text(o, 80, 24)
		if lines := strings.Count(text, "\n"); lines > 24 || lines < 20 {
			t.Errorf("%d lines:\n%s", lines, text)
		}
		for _, want := range []string{"\nnode60 ", "\nspark2 ", "\nspark3 ", "\ntrain ", " more\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
	}
}
