package rendezvous

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
)

// A job's command line is cut where it would fill the screen.
func TestCommandLineIsBounded(t *testing.T) {
	got := Job{Spec: launcher.Spec{Stages: []launcher.Stage{{Main: true,
		Argv: launcher.Lits("sh", "-c", strings.Repeat("ä", 10_000))}}}}.CommandLine()
	if len(got) > commandBytes+len("…") || !strings.HasPrefix(got, "sh -c 'ä") || !strings.HasSuffix(got, "ä…") {
		t.Errorf("%d bytes: %.40q", len(got), got)
	}
}

// Addresses in a command line are those of the machines that the job was placed on; before that, and where each rank
// has its own, they are words.
func TestCommandLineOfAPlacedJob(t *testing.T) {
	addr := netip.MustParseAddr
	place := func(host, fabric, management string) Place {
		return Place{Host: host, Ranks: 1, Entry: envgen.Entry{Addr: addr(fabric)},
			Addrs: []netip.Addr{addr(management)}}
	}
	plan := Plan{Head: addr("192.168.1.1"), World: 2, Nodes: []Place{
		place("spark1", "192.168.1.1", "10.0.0.1"), place("spark2", "192.168.1.2", "10.0.0.2")}}
	serve := launcher.Stage{Name: "serve", Main: true, RanksPerNode: 1, Argv: []launcher.Value{
		launcher.Lit("serve"), launcher.Of(launcher.RestAt(50052)), launcher.Of(launcher.Management),
		launcher.Of(launcher.Head), launcher.Of(launcher.NodeRank), launcher.Of(launcher.Port), launcher.Lit("")}}
	each := []launcher.Stage{serve}
	serve.Where = launcher.OnHead
	first := []launcher.Stage{{Name: "workers", Where: launcher.OnRest, RanksPerNode: 1}, serve}
	const words = "serve '<other machines>:50052' '<management address>' '<first machine>' '<node rank>' '<free port>' ''"
	for name, tc := range map[string]struct {
		stages []launcher.Stage
		plan   Plan
		want   string
	}{
		"on the first machine": {first, plan, "serve 192.168.1.2:50052 10.0.0.1 192.168.1.1 0 '<free port>' ''"},
		"on all machines":      {each, plan, "serve 192.168.1.2:50052 '<management address>' 192.168.1.1 '<node rank>' '<free port>' ''"},
		"waiting":              {first, Plan{}, words},
		"in a stage before":    {first, plan.Single("before", 1), words},
	} {
		got := Job{Spec: launcher.Spec{Stages: tc.stages}, Plan: tc.plan}.CommandLine()
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s:\n%s", name, d)
		}
	}
}
