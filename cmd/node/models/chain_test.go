package models

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
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
// cables: none sends it to a machine that only the management network leads to. On a switch each port sends it once,
// also while not all have heard each other.
func TestSeenBy(t *testing.T) {
	onSwitch := func(host string, sees ...string) wire.NodeStatus {
		n := node(host, sees...)
		for i := range sees {
			s := &n.Inventory.Cabling.Sightings[i]
			s.Slot, s.Peer.Slot = "0", "0"
		}
		return n
	}
	inRow := func(host, left, right string) wire.NodeStatus {
		n := node(host, left, right)
		n.Inventory.Cabling.Sightings[0].Slot, n.Inventory.Cabling.Sightings[0].Peer.Slot = "1", "0"
		n.Inventory.Cabling.Sightings[1].Slot, n.Inventory.Cabling.Sightings[1].Peer.Slot = "0", "1"
		return n
	}
	for what, tt := range map[string]struct {
		nodes []wire.NodeStatus
		want  map[launcher.NodeID]launcher.NodeID
	}{
		"a row": {[]wire.NodeStatus{inRow("a", "", "b"), inRow("b", "a", "c"), inRow("c", "b", "d"), inRow("d", "c", "")},
			map[launcher.NodeID]launcher.NodeID{"a": "b", "c": "b", "d": "c"}},
		"a switch, half heard": {[]wire.NodeStatus{onSwitch("a", "b"), onSwitch("b", "a", "c"), onSwitch("c", "b", "d"),
			onSwitch("d", "c")}, map[launcher.NodeID]launcher.NodeID{"a": "b", "c": "a", "d": "c"}},
		"a switch, of which one has heard": {[]wire.NodeStatus{node("a"), node("b"), onSwitch("c", "b"), node("d")},
			map[launcher.NodeID]launcher.NodeID{"c": "b", "a": "c", "d": "a"}},
		"nothing heard": {[]wire.NodeStatus{node("a"), node("b"), node("c"), node("d")},
			map[launcher.NodeID]launcher.NodeID{"a": "b", "c": "a", "d": "c"}},
	} {
		var chain []launcher.NodeID
		for _, n := range inOrder(tt.nodes, "b", nil) {
			chain = append(chain, n.ID)
		}
		from := map[launcher.NodeID]launcher.NodeID{}
		for i, id := range chain {
			seen := seenBy(id, chain, tt.nodes)
			if d := cmp.Diff(slices.Sorted(slices.Values(chain[:i])), slices.Sorted(slices.Values(seen[:i]))); d != "" {
				t.Errorf("%s: before %s are others than in the chain: %s", what, id, d)
			}
			if i > 0 {
				from[id] = seen[i-1]
			}
		}
		if d := cmp.Diff(tt.want, from); d != "" {
			t.Errorf("%s: who takes from whom: %s", what, d)
		}
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

// Who has all of it comes first, then who fetches it already, in the chain and where --nodes takes some.
func TestWhoHasComesFirst(t *testing.T) {
	const commit = "0123456789012345678901234567890123456789"
	has := func(host string, have int64, comes string) wire.NodeModels {
		h := wire.HeldModel{Held: modelcache.Held{Commits: []modelcache.Commit{{Commit: commit, Bytes: 9, Have: have}}}}
		if h.Commits[0].Files = 1; have < 9 {
			h.Commits[0].Missing = []string{"x"}
		}
		if comes != "" {
			h.Pulling, h.Comes = "id", comes
		}
		return wire.NodeModels{ID: launcher.NodeID(host), Host: host, Held: []wire.HeldModel{h}}
	}
	have := []wire.NodeModels{has("a", 1, ""), has("b", 8, ""), has("c", 0, commit), has("d", 9, ""), has("e", 8, "other")}
	f := finding{manifest: modelcache.Manifest{Commit: commit, Files: []modelcache.File{{Path: "x"}}}}
	if d := cmp.Diff([]launcher.NodeID{"d", "c", "b", "a"}, f.chain(have, []wire.NodeStatus{node("b"), node("a")})); d != "" {
		t.Error(d)
	}
	all := []wire.NodeStatus{node("a"), node("b"), node("c"), node("d")}
	if d := cmp.Diff([]string{"d", "c", "b", "a"}, hosts(inOrder(all, "a", f.held(have)))); d != "" {
		t.Error(d)
	}
}
