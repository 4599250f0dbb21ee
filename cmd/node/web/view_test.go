package web

import (
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// A processor's share is not told as the GPU's, nor one rank's end as another's.
func TestRowsTellWhatIsTheirs(t *testing.T) {
	var u wire.NodeUsage
	u.GPUs, u.CPU = []usage.GPU{{Name: "NVIDIA GB10"}}, &usage.CPU{Cores: 20, Used: new(10.0)}
	p := &page{seen: &seen{Usage: map[launcher.NodeID]wire.NodeUsage{"n0": u}}}
	if m := p.machineOf(wire.NodeStatus{ID: "n0"}); m.Busy == nil || *m.Busy != 0.5 || m.BusyOf != "CPU" {
		t.Errorf("a GPU that does not tell how busy it is: %v of %q", m.Busy, m.BusyOf)
	}
	var j rendezvous.JobStatus
	j.Spec.ID = "j"
	j.Plan.Nodes = []rendezvous.Place{{Node: "n0", Ranks: 2}}
	j.Outcome = &rendezvous.Outcome{End: "failed", Exits: []launcher.RankExit{{Rank: 0, Exit: launcher.Exit{Code: 1}}}}
	if rows := p.ranksOf(j); len(rows) != 2 || rows[0].State != "failed" || rows[1].State != "ended" || rows[1].Text != "" || rows[1].JobName != "j" {
		t.Errorf("ranks of which one has told of its end: %+v", rows)
	}
}
