package rendezvous

import (
	"slices"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
)

// Whoever can stay stays, with its ranks; others come for those that cannot.
func TestReplan(t *testing.T) {
	four := Roster{member(1), member(2), member(3), member(4)}
	without := func(n int) Roster {
		r := slices.Clone(four)
		r[n-1] = away(r[n-1])
		return r
	}
	tests := map[string]struct {
		former string // by rank
		spare  string
		change func(*launcher.Spec)
		roster Roster
		want   string
	}{
		"the same, in the same order": {"3 2", "", nil, four, "spark3 spark2"},
		"the user is on another one": {"3 2", "", func(s *launcher.Spec) { s.Near = "spark1" }, four,
			"spark3 spark2"},
		"one is lost":      {"3 2", "", nil, without(2), "spark3 spark1"},
		"the head is lost": {"3 2", "", nil, without(3), "spark1 spark2"},
		"one is drained": {"4 3", "", nil,
			Roster{member(1), member(2), drained(member(3)), member(4)}, "spark4 spark1"},
		"its spare one takes the place": {"3 2", "4", nil, without(2), "spark3 spark4"},
		"one node":                      {"4", "", nil, four, "spark4"},
		"one node that is lost":         {"4", "", nil, without(4), "spark1"},
		"all are lost":                  {"4", "", func(s *launcher.Spec) { s.Near = "spark3" }, without(4), "spark3"},
		"more nodes than before": {"4 3", "", func(s *launcher.Spec) { s.Nodes = 3 }, four,
			"spark4 spark3 spark1"},
		"fewer nodes than before": {"4 3 2", "", func(s *launcher.Spec) { s.Nodes = 2 }, without(3),
			"spark4 spark2"},
		"--on, of which a spare one ran": {"2 4", "",
			func(s *launcher.Spec) { s.On = []string{"spark2", "spark3", "spark4"} }, four, "spark2 spark4"},
		"--on, of which one is excluded since": {"2 4", "",
			func(s *launcher.Spec) { s.On = []string{"spark2", "spark3"} }, four, "spark2 spark3"},
	}
	ids := func(text string) (out []launcher.NodeID) {
		for _, n := range strings.Fields(text) {
			out = append(out, member(int(n[0]-'0')).ID)
		}
		return out
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			spec := specFor("jjjj", 2)
			spec.Nodes = len(strings.Fields(tt.former))
			if tt.change != nil {
				tt.change(&spec)
			}
			former := Former{Nodes: ids(tt.former), Spare: ids(tt.spare), Network: "management"}
			plan, err := Replan(spec, tt.roster, derive(tt.roster), 2, former)
			if err != nil || hosts(plan) != tt.want {
				t.Errorf("on %s (%v), want %s", hosts(plan), err, tt.want)
			}
			if f := (Job{Spec: spec, Plan: plan}).Former(); len(f.Nodes) != len(plan.Nodes) || f.Nodes[0] != plan.Nodes[0].Node {
				t.Errorf("%+v of %s", f, hosts(plan))
			}
		})
	}
}

// The fabric counts for more than the place: what it joins no longer is placed anew, and a
// lost node's place goes to one that it joins with those that stay.
func TestReplanOnTheFabric(t *testing.T) {
	spec := specFor("jjjj", 2)
	spec.Nodes = 2
	former := func(nodes ...int) Former {
		f := Former{Network: string(envgen.NetworkFabric)}
		for _, n := range nodes {
			f.Nodes = append(f.Nodes, member(n).ID)
		}
		return f
	}
	roster, topo := shaped(t, 4, "1.0=2.0", "3.0=4.0")
	if plan, err := Replan(spec, roster, topo, 2, former(4, 3)); err != nil || hosts(plan) != "spark4 spark3" {
		t.Errorf("the same pair: %s, %v", hosts(plan), err)
	}
	if plan, err := Replan(spec, roster, topo, 2, former(1, 4)); err != nil || hosts(plan) != "spark1 spark2" {
		t.Errorf("a pair that is joined no longer: %s, %v", hosts(plan), err)
	}
	roster, _ = shaped(t, 4, "1.0=2.0=3.0=4.0")
	roster[0].Inventory.Devices = nil // its NIC is broken
	if plan, err := Replan(spec, roster, derive(roster), 2,
		Former{Nodes: []launcher.NodeID{"gone", member(4).ID}, Network: string(envgen.NetworkFabric)}); err != nil ||
		hosts(plan) != "spark2 spark4" {
		t.Errorf("in the place of a lost head: %s, %v", hosts(plan), err)
	}
}
