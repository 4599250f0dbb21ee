package models

import (
	"cmp"
	"slices"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// inOrder is the chain: first who has most of it, else who reaches the Hub, then each time one that a cable joins to
// the last, where there is one.
func inOrder(nodes []wire.NodeStatus, reaches launcher.NodeID, have map[launcher.NodeID]int64) []wire.NodeStatus {
	rest := slices.Clone(nodes)
	slices.SortStableFunc(rest, func(a, b wire.NodeStatus) int {
		return cmp.Or(cmp.Compare(have[b.ID], have[a.ID]), cmp.Compare(first(b.ID == reaches), first(a.ID == reaches)))
	})
	var out []wire.NodeStatus
	for len(rest) > 0 {
		next := 0
		if len(out) > 0 {
			last := out[len(out)-1]
			next = max(0, slices.IndexFunc(rest, func(n wire.NodeStatus) bool { return cabled(last, n) || cabled(n, last) }))
		}
		out = append(out, rest[next])
		rest = slices.Delete(rest, next, next+1)
	}
	return out
}

// cabled tells whether a sees b at the other end of a cable.
func cabled(a, b wire.NodeStatus) bool {
	return a.Inventory.Cabling != nil && slices.ContainsFunc(a.Inventory.Cabling.Sightings,
		func(s envgen.Sighting) bool { return s.Peer.Node == string(b.ID) && !s.Clone })
}

// seenBy is the chain as a node has it: it takes from the nearest one before it, and that is one at the other end of a
// cable of its own, where there is one. Who goes before it stays the same, so that none waits for one that waits for it.
func seenBy(n wire.NodeStatus, chain []launcher.NodeID, all []wire.NodeStatus) []launcher.NodeID {
	at := slices.Index(chain, n.ID)
	out := slices.Clone(chain)
	slices.SortStableFunc(out[:at], func(a, b launcher.NodeID) int {
		return cmp.Compare(first(reaches(n, a, all)), first(reaches(n, b, all)))
	})
	return out
}

func reaches(n wire.NodeStatus, id launcher.NodeID, all []wire.NodeStatus) bool {
	return slices.ContainsFunc(all, func(o wire.NodeStatus) bool { return o.ID == id && (cabled(n, o) || cabled(o, n)) })
}
