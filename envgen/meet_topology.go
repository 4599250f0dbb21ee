package envgen

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Meet finds where the given nodes of the topology meet, as the function Meet does, but knowing which cable leads
// where: addresses count only where a link joins them. Nodes that form a whole ring meet on management, which
// reaches all of them, and keep the RDMA devices to both neighbours. The entries are in the order of the nodes,
// which should be the topology's RankOrder.
func (t Topology) Meet(nodes []NodeView) (Meeting, error) {
	if err := checkChosen(nodes); err != nil {
		return Meeting{}, err
	}
	if len(nodes) == 1 {
		m := meetAlone(nodes[0])
		m.Entries[0].Shape = ShapeSingle
		return m, nil
	}
	shape := t.shapeOf(nodes)
	lanes, whyNot := t.sharedLanes(nodes)
	if len(lanes) > 0 {
		return t.meetOnLanes(nodes, lanes, shape), nil
	}
	var ring [][]Path
	if shape == ShapeRing {
		ring, whyNot = t.ringPaths(nodes)
	}
	m, err := meetManagement(nodes, whyNot)
	if err != nil {
		return Meeting{}, err
	}
	for i := range m.Entries {
		m.Entries[i].Shape = shape
	}
	if ring == nil {
		return m, nil
	}
	m.Why = fmt.Sprintf("a ring of %d: neighbours reach each other over RoCE, and all reach all on management only",
		len(nodes))
	for i := range m.Entries {
		m.Entries[i].Paths = ring[i]
	}
	return m, nil
}

// shapeOf is the shape of the fabric among the nodes alone: two neighbours of a ring are a pair.
func (t Topology) shapeOf(nodes []NodeView) Shape {
	var groups []Group
	for _, g := range t.Groups {
		members := 0
		for _, n := range nodes {
			if slices.Contains(g.Nodes, n.ID) {
				members++
			}
		}
		switch {
		case members == len(nodes) && members == len(g.Nodes):
			return g.Shape
		case members > 0:
			groups = append(groups, g)
		}
	}
	if len(groups) != 1 {
		return ShapeIslands
	}
	// Part of a group: two are a pair where a cable joins them; on a switch any number forms a switch
	// again.
	g := groups[0]
	switch {
	case g.Shape == ShapeSwitch:
		return ShapeSwitch
	case len(nodes) == 2 && len(t.Between(nodes[0].ID, nodes[1].ID)) > 0:
		return ShapePair
	case len(nodes) == 2:
		return ShapeIslands
	}
	return ShapeMixed
}

// sharedLanes returns the lanes in which every node has an end, lowest port and primary twins first, and says
// what the nearest miss lacks.
func (t Topology) sharedLanes(nodes []NodeView) (shared []Lane, whyNot string) {
	between := "between "
	if len(nodes) > 2 {
		between += "any of "
	}
	whyNot = "the fabric has no subnet " + between + absent(nodes, nil)
	if !slices.ContainsFunc(nodes, func(n NodeView) bool { return len(n.Inventory.Devices) > 0 }) {
		whyNot = "no node has an RDMA device"
	}
	best := 0
	for _, l := range t.Lanes {
		members := map[int]bool{}
		for i := range nodes {
			if l.has(nodes[i].ID) {
				members[i] = true
			}
		}
		switch {
		case len(members) < 2:
		case len(members) < len(nodes):
			if len(members) > best {
				best = len(members)
				whyNot = fmt.Sprintf("no RoCE subnet joins all %d nodes: %s lacks %s", len(nodes), l.Subnet, absent(nodes, members))
			}
		case l.Spoilt:
			best, whyNot = len(nodes), fmt.Sprintf("an address occurs twice in %s", l.Subnet)
		default:
			shared = append(shared, l)
		}
	}
	slices.SortStableFunc(shared, func(a, b Lane) int {
		return cmp.Or(slices.CompareFunc(t.laneRanks(nodes, a), t.laneRanks(nodes, b), pathRank.compare),
			comparePrefixes(a.Subnet, b.Subnet), cmp.Compare(a.Link, b.Link))
	})
	return shared, whyNot
}

// laneRanks are the ranks of the nodes' first devices in a lane, sorted, so that the order of the nodes does not
// matter.
func (t Topology) laneRanks(nodes []NodeView, l Lane) []pathRank {
	var ranks []pathRank
	for _, n := range nodes {
		if first, ok := t.firstEnd(l, n.ID); ok {
			ranks = append(ranks, t.rankOf(first))
		}
	}
	slices.SortStableFunc(ranks, pathRank.compare)
	return ranks
}

func (t Topology) firstEnd(l Lane, node string) (first LaneEnd, found bool) {
	for _, e := range l.Ends {
		if e.Node == node && (!found || t.rankOf(e).compare(t.rankOf(first)) < 0) {
			first, found = e, true
		}
	}
	return first, found
}

// rankOf gives a lane's end its place among its node's devices.
func (t Topology) rankOf(e LaneEnd) pathRank {
	n, _ := t.Node(e.Node)
	p, _ := n.Port(e.Path.Slot)
	for _, d := range p.Devices {
		if d.HCA == e.Path.HCA && d.PCI != nil {
			return pathRank{function: d.PCI.Function, domain: d.PCI.Domain, bus: d.PCI.Bus, dev: d.PCI.Device}
		}
	}
	return pathRank{software: true}
}

func (t Topology) meetOnLanes(nodes []NodeView, lanes []Lane, shape Shape) Meeting {
	best := lanes[0]
	m := Meeting{Kind: NetworkFabric, Subnet: best.Subnet,
		Why: fmt.Sprintf("%s: all %d nodes have an address in %s over %s", shape.words(), len(nodes), best.Subnet,
			t.linkWords(best.Link))}
	for _, n := range nodes {
		first, _ := t.firstEnd(best, n.ID)
		e := Entry{ID: n.ID, Host: n.Host, Kind: m.Kind, Subnet: m.Subnet, Addr: first.Path.Addr, NIC: first.Path.NIC,
			Shape: shape}
		e.Paths = t.pathsOf(n.ID, lanes)
		m.Entries = append(m.Entries, e)
	}
	return m
}

// words completes the sentence "the nodes are": a pair, a switch.
func (s Shape) words() string {
	if s == ShapeMixed {
		return "a mixed fabric"
	}
	return "a " + string(s)
}

func (t Topology) linkWords(link int) string {
	switch l := t.Links[link]; {
	case l.Via != "":
		return "switch " + l.Via
	case l.Switched:
		return "a switch"
	case l.Seen:
		return "the cable seen by the probe"
	}
	return "what their addresses say is one link"
}

// pathsOf returns a node's devices in the lanes, lowest port and primary twin first.
func (t Topology) pathsOf(node string, lanes []Lane) []Path {
	var ends []LaneEnd
	for _, l := range lanes {
		for i := range l.Ends { // by index, without a copy: a ring of 64 has thousands, of 200 bytes each
			if l.Ends[i].Node == node {
				ends = append(ends, l.Ends[i])
			}
		}
	}
	slices.SortStableFunc(ends, func(a, b LaneEnd) int {
		return cmp.Or(t.rankOf(a).compare(t.rankOf(b)), cmp.Compare(a.Path.HCA, b.Path.HCA), a.Path.Addr.Compare(b.Path.Addr))
	})
	var paths []Path
	for _, e := range ends {
		if !slices.Contains(paths, e.Path) {
			paths = append(paths, e.Path)
		}
	}
	return paths
}

// ringPaths returns each node's devices towards its two neighbours; nil where a cable of the ring carries none.
func (t Topology) ringPaths(nodes []NodeView) (paths [][]Path, whyNot string) {
	var order []string
	for _, g := range t.Groups {
		if slices.Contains(g.Nodes, nodes[0].ID) {
			order = g.Nodes
		}
	}
	var lanes []Lane
	for i, id := range order {
		next := order[(i+1)%len(order)]
		found := false
		for _, l := range t.Lanes {
			if l.Spoilt || !l.joins(id, next) {
				continue
			}
			found = true
			lanes = append(lanes, l)
		}
		if !found {
			a, _ := t.Node(id)
			b, _ := t.Node(next)
			return nil, fmt.Sprintf("the ring's cable between %s and %s has no RoCE subnet", a.Host, b.Host)
		}
	}
	for _, n := range nodes {
		paths = append(paths, t.pathsOf(n.ID, lanes))
	}
	return paths, ""
}

func (l *Lane) joins(a, b string) bool { return l.has(a) && l.has(b) }

func (l *Lane) has(node string) bool {
	for i := range l.Ends {
		if l.Ends[i].Node == node {
			return true
		}
	}
	return false
}

// prefixLength is the shortest prefix of the paths' subnets: by that length NCCL can tell neighbours
// apart.
func prefixLength(paths []Path) int {
	bits := 32
	for _, p := range paths {
		bits = min(bits, prefixBits(p.Subnet))
	}
	return bits
}

func prefixBits(p netip.Prefix) int {
	if !p.IsValid() {
		return 32
	}
	return p.Bits()
}
