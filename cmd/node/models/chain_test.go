package models

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// node is a machine that sees others at the other ends of its cables.
func node(host string, cabledTo ...string) wire.NodeStatus {
	n := wire.NodeStatus{ID: launcher.NodeID(host), Host: host, State: "ready"}
	for _, peer := range cabledTo {
		if n.Inventory.Cabling == nil {
			n.Inventory.Cabling = &envgen.Cabling{}
		}
		n.Inventory.Cabling.Sightings = append(n.Inventory.Cabling.Sightings,
			envgen.Sighting{Peer: envgen.Neighbour{Node: peer, Host: peer}})
	}
	return n
}

func hosts(nodes []wire.NodeStatus) (out []string) {
	for _, n := range nodes {
		out = append(out, n.Host)
	}
	return out
}

// A model goes along the cables, and begins where most of it is.
func TestInOrder(t *testing.T) {
	ring := []wire.NodeStatus{node("a", "b", "d"), node("c", "b", "d"), node("b", "a", "c"), node("d", "c", "a")}
	for _, tt := range []struct {
		what  string
		nodes []wire.NodeStatus
		have  map[launcher.NodeID]int64
		want  []string
	}{
		{"a ring, from the caller's own", ring, nil, []string{"c", "b", "a", "d"}},
		{"a ring, from who has some", ring, map[launcher.NodeID]int64{"d": 9, "a": 3}, []string{"d", "a", "b", "c"}},
		{"a switch", []wire.NodeStatus{node("a"), node("b"), node("c")}, nil, []string{"c", "a", "b"}},
		{"a cable that one side sees", []wire.NodeStatus{node("c"), node("a"), node("b", "c")}, nil, []string{"c", "b", "a"}},
	} {
		if d := cmp.Diff(tt.want, hosts(inOrder(tt.nodes, "c", tt.have))); d != "" {
			t.Errorf("%s: %s", tt.what, d)
		}
	}
}

// In a row of machines of which one in the middle is asked, both its neighbours take it from that one, over their
// cables: none sends it to a machine that only the management network leads to.
func TestSeenBy(t *testing.T) {
	row := []wire.NodeStatus{node("a", "b"), node("b", "a", "c"), node("c", "b", "d"), node("d", "c")}
	var chain []launcher.NodeID
	for _, n := range inOrder(row, "b", nil) {
		chain = append(chain, n.ID)
	}
	from := map[launcher.NodeID]launcher.NodeID{}
	for _, n := range row {
		seen := seenBy(n, chain, row)
		before := seen[:slices.Index(seen, n.ID)]
		if d := cmp.Diff(slices.Sorted(slices.Values(chain[:len(before)])), slices.Sorted(slices.Values(before))); d != "" {
			t.Errorf("before %s are others than in the chain: %s", n.ID, d)
		}
		if len(before) > 0 {
			from[n.ID] = before[len(before)-1]
		}
	}
	if d := cmp.Diff(map[launcher.NodeID]launcher.NodeID{"a": "b", "c": "b", "d": "c"}, from); d != "" {
		t.Errorf("who takes from whom: %s", d)
	}
}

func TestChoose(t *testing.T) {
	away, witness := node("away"), node("witness")
	away.State, witness.Witness = "away", true
	all := []wire.NodeStatus{node("a"), node("b"), away, witness, node("c")}
	have := map[launcher.NodeID]int64{"c": 5}
	for _, tt := range []struct {
		r        wire.ModelPullRequest
		to, away []string
		refused  bool
	}{
		{wire.ModelPullRequest{}, []string{"b"}, nil, false},
		{wire.ModelPullRequest{All: true}, []string{"a", "b", "c"}, []string{"away"}, false},
		{wire.ModelPullRequest{Nodes: 2}, []string{"c", "b"}, nil, false},
		{wire.ModelPullRequest{Nodes: 4}, nil, nil, true},
		{wire.ModelPullRequest{On: []string{"c", "a", "c"}}, []string{"c", "a"}, nil, false},
		{wire.ModelPullRequest{On: []string{"witness"}}, []string{"witness"}, nil, false},
		{wire.ModelPullRequest{On: []string{"away"}}, nil, nil, true},
		{wire.ModelPullRequest{On: []string{"none"}}, nil, nil, true},
	} {
		to, out, err := choose(all, tt.r, "b", have)
		if d := cmp.Diff([][]string{tt.to, tt.away}, [][]string{hosts(to), hosts(out)}); d != "" || (err != nil) != tt.refused {
			t.Errorf("%+v: %v %s", tt.r, err, d)
		}
	}
}
