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

// port is the one of a's that leads to b; empty: no cable is known to.
func port(a, b wire.NodeStatus) string {
	if c := a.Inventory.Cabling; c != nil {
		for _, s := range c.Sightings {
			if s.Peer.Node == string(b.ID) && !s.Clone {
				return s.Slot
			}
		}
	}
	if c := b.Inventory.Cabling; c != nil {
		for _, s := range c.Sightings {
			if s.Peer.Node == string(a.ID) && !s.Clone {
				return s.Peer.Slot
			}
		}
	}
	return ""
}

// upstreams says from whom each node of a chain takes at best: from the one before it. If no cable leads there it is
// one further up that has a cable to it, at a port by which nobody else takes: not on a switch, of which only some is
// known yet, for there the same bytes would go over one link twice.
func upstreams(chain []launcher.NodeID, all []wire.NodeStatus) map[launcher.NodeID]launcher.NodeID {
	of := map[launcher.NodeID]wire.NodeStatus{}
	for _, n := range all {
		of[n.ID] = n
	}
	out, used := map[launcher.NodeID]launcher.NodeID{}, map[launcher.NodeID][]string{}
	for i := 1; i < len(chain); i++ {
		up := chain[i-1]
		for j := i - 1; j >= 0; j-- {
			at, by := chain[j], port(of[chain[j]], of[chain[i]])
			if by != "" && (j == i-1 || !slices.Contains(used[at], by) && !slices.Contains(used[at], "")) {
				up = at
				break
			}
		}
		out[chain[i]] = up
		used[up] = append(used[up], port(of[up], of[chain[i]]))
	}
	return out
}

// seenBy is the chain as a node has it: the one from which it takes at best is the last before it. Who goes before it
// stays the same, so that none waits for one that waits for it.
func seenBy(id launcher.NodeID, chain []launcher.NodeID, all []wire.NodeStatus) []launcher.NodeID {
	at := slices.Index(chain, id)
	if at < 1 {
		return chain
	}
	up := upstreams(chain, all)[id]
	out := slices.DeleteFunc(slices.Clone(chain[:at]), func(o launcher.NodeID) bool { return o == up })
	return slices.Concat(out, []launcher.NodeID{up}, chain[at:])
}
