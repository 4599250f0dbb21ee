package ibtest

import (
	"cmp"
	"slices"

	"github.com/sparkrun/sparkrun/envgen"
)

// lane is two devices that reach each other.
type lane struct {
	a, b         Way
	twinA, twinB int // 0: the port's primary
}

// way is what two ports have between them.
type way struct {
	link         int
	slotA, slotB string
	lanes        []lane
}

// cables finds the cables of all pairs.
func (p *Plan) cables(t envgen.Topology, nodes []string) {
	for i := range nodes {
		for j := i + 1; j < len(nodes); j++ {
			for _, w := range portPairs(between(t, nodes[i], nodes[j])) {
				c := Cable{A: i, B: j, Link: w.link, SlotA: w.slotA, SlotB: w.slotB}
				for _, l := range w.lanes {
					c.Lanes = append(c.Lanes, [2]int{p.way(i, l.a), p.way(j, l.b)})
				}
				p.Cables = append(p.Cables, c)
			}
		}
	}
}

// way gives a device's number among its node's.
func (p *Plan) way(node int, w Way) int {
	n := &p.Nodes[node]
	if i := slices.Index(n.Ways, w); i >= 0 {
		return i
	}
	n.Ways = append(n.Ways, w)
	return len(n.Ways) - 1
}

// between are all pairs of ports of two nodes with a lane between them.
func between(t envgen.Topology, a, b string) []way {
	na, _ := t.Node(a)
	nb, _ := t.Node(b)
	var all []way
	for _, l := range t.Lanes {
		if l.Spoilt {
			continue
		}
		for _, x := range l.Ends {
			for _, y := range l.Ends {
				if x.Node != a || y.Node != b || x.Path.Addr == y.Path.Addr {
					continue
				}
				slotA, twinA := placeOf(na, x.Path.HCA)
				slotB, twinB := placeOf(nb, y.Path.HCA)
				found := lane{Way{x.Path.HCA, x.Path.Addr}, Way{y.Path.HCA, y.Path.Addr}, twinA, twinB}
				i := slices.IndexFunc(all, func(w way) bool { return w.link == l.Link && w.slotA == slotA && w.slotB == slotB })
				if i < 0 {
					i, all = len(all), append(all, way{link: l.Link, slotA: slotA, slotB: slotB})
				}
				all[i].lanes = append(all[i].lanes, found)
			}
		}
	}
	for i := range all {
		all[i].lanes = oneEach(all[i].lanes)
	}
	return all
}

// placeOf is a device's port, and its number among the port's.
func placeOf(n envgen.TopologyNode, hca string) (slot string, twin int) {
	for _, p := range n.Ports {
		if i := slices.IndexFunc(p.Devices, func(d envgen.DeviceState) bool { return d.HCA == hca }); i >= 0 {
			return p.Slot, i
		}
	}
	return "", 0
}

// oneEach leaves each device in one lane, first with first where that can be: twins that
// share a subnet reach both of the other side's.
func oneEach(lanes []lane) []lane {
	slices.SortStableFunc(lanes, func(x, y lane) int {
		return cmp.Or(cmp.Compare(crossed(x), crossed(y)), cmp.Compare(x.twinA, y.twinA))
	})
	var kept []lane
	for _, l := range lanes {
		if !slices.ContainsFunc(kept, func(k lane) bool { return k.a.Device == l.a.Device || k.b.Device == l.b.Device }) {
			kept = append(kept, l)
		}
	}
	return kept
}

func crossed(l lane) int {
	if l.twinA == l.twinB {
		return 0
	}
	return 1
}

// portPairs leaves each port in one pair of a link, for on a switch each of a node's may
// reach each of the other's; the one with more lanes wins.
func portPairs(all []way) []way {
	slices.SortStableFunc(all, func(x, y way) int { return cmp.Compare(len(y.lanes), len(x.lanes)) })
	var kept []way
	for _, w := range all {
		if !slices.ContainsFunc(kept,
			func(k way) bool { return k.link == w.link && (k.slotA == w.slotA || k.slotB == w.slotB) }) {
			kept = append(kept, w)
		}
	}
	slices.SortStableFunc(kept,
		func(x, y way) int { return cmp.Or(cmp.Compare(x.link, y.link), cmp.Compare(x.slotA, y.slotA)) })
	return kept
}
