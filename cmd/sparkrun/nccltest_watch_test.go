package main

import (
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// plannedOn is a plan of one rank on each host.
func plannedOn(hosts ...string) rendezvous.Progress {
	p := apptest.Planned(len(hosts))
	for i, host := range hosts {
		p.Plan.Nodes = append(p.Plan.Nodes, rendezvous.Place{Node: launcher.NodeID(host), Host: host, FirstRank: i, Ranks: 1})
	}
	return p
}

// noPath is what a link that is dead leaves: ranks that found each other, and no row.
const noPath = "# Using devices\nspark1:605:611 [0] NCCL INFO NCCL version 2.28.3+cuda13.0\n\n" +
	"[2026-03-01 12:00:00] spark1:605:611 [0] misc/ibvwrap.cc:302 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev rocep1s0f0:1\n"

const smallOnly = apptest.SweepHead + `        8192           2048     float    none      -1       50.00    0.164    0.082       0
# Out of bounds values : 0 OK
`

// Messages of which nothing is expected pass no gate, however fast they were.
func TestNCCLTestGateOfSmallMessages(t *testing.T) {
	code, out, errs, _ := ncclTestRun(t, t.TempDir(), smallOnly, apptest.Completed, "launch", "nccl-test", "--min",
		"8K", "--max", "8K", "--gate", "0.9")
	if code != 1 || !strings.Contains(errs, "nothing is known of what to expect, so it does not pass") ||
		!strings.HasPrefix(lastLine(out), "verdict: unjudged: ") {
		t.Errorf("code %d, %s: %s", code, errs, out)
	}
}

// A machine may have another name in the cluster than it has itself, which is what nccl-tests prints.
func TestNCCLTestKnowsItsMachines(t *testing.T) {
	for written, want := range map[string]string{
		strings.NewReplacer("on spark1", "on promax-4c75", "on spark2",
			"on promax-9fe1").Replace(apptest.SweepGood): "verdict: good: ",
		strings.NewReplacer("#  Rank  1 on spark2 device 0 NVIDIA GB10\n", "", "23.041", "0.000", "22.968",
			"0.000").Replace(apptest.SweepGood): "verdict: failed: each rank ran a test by itself",
	} {
		st := pairStatus(t)
		after := plannedOn("spark1")
		after.Plan.Stage = "after"
		g := &apptest.FakeRunner{OnLaunch: apptest.Tells(plannedOn("spark1", "spark2"), apptest.Started("a"), after,
			apptest.Ended(apptest.Completed)), OnLogs: apptest.Prints(apptest.Out(0, 0, written))}
		b := apptest.Agent(g, &counting{}, apptest.StatusIs(st, nil))
		_, shown, errs := cliIn(t, b, []string{"PATH=/bin", "HOME=/home/ada", "XDG_STATE_HOME=" + t.TempDir()},
			"launch", "nccl-test", "--via", "torch")
		if !strings.HasPrefix(lastLine(shown), want) {
			t.Errorf("%s%s", shown, errs)
		}
	}
}
