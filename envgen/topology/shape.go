package topology

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/envgen"
)

// shape finds the groups of nodes that fabric links join, the shape of each, and the order of
// ranks.
func (w *world) shape(t *envgen.Topology) {
	s := newSets(len(w.hosts))
	joined := false
	for _, l := range w.links {
		if !l.Up || l.Role != envgen.RoleFabric {
			continue
		}
		on := w.fabricHosts(l)
		joined = joined || len(on) > 1
		for _, h := range on {
			s.union(on[0].at, h.at)
		}
	}
	members := map[int][]*host{}
	for i, h := range w.hosts {
		members[s.root(i)] = append(members[s.root(i)], h)
	}
	for i := range w.hosts {
		hosts := members[i] // of the set with the lowest member i; nil for the others
		if hosts == nil {
			continue
		}
		g := w.group(hosts)
		t.Groups = append(t.Groups, g)
		t.Order = append(t.Order, g.Nodes...)
	}
	switch {
	case len(w.hosts) == 1:
		t.Shape, t.Why = envgen.ShapeSingle, fmt.Sprintf("%s is alone and needs no fabric", w.hosts[0].Host)
	case !joined:
		t.Shape, t.Why = envgen.ShapeUnknown, w.whyUnknown()
	case len(t.Groups) > 1:
		t.Shape, t.Why = envgen.ShapeIslands, fmt.Sprintf("the fabric joins not all: %s", w.islandWords(t.Groups))
	default:
		t.Shape = t.Groups[0].Shape
		t.Why = w.why(t.Groups[0])
	}
}

// neighbours are the hosts joined directly by cables, with the numbers of cables and of switched links.
func (w *world) neighbours(hosts []*host) (direct map[*host][]*host, cables, switches int, allOnEach bool) {
	direct = map[*host][]*host{}
	allOnEach = true
	for _, l := range w.links {
		if !l.Up || l.Role != envgen.RoleFabric {
			continue
		}
		on := w.fabricHosts(l)
		if !slices.Contains(hosts, on[0]) || len(on) == 1 && !l.Switched {
			continue
		}
		if l.Switched {
			switches++
			allOnEach = allOnEach && len(on) == len(hosts)
			continue
		}
		cables += cablesOf(l, w)
		// A link that is not switched has two hosts, or it would have three ends.
		for i, h := range on {
			if other := on[1-i]; !slices.Contains(direct[h], other) {
				direct[h] = append(direct[h], other)
			}
		}
	}
	return direct, cables, switches, allOnEach
}

// fabricHosts are the hosts that have a fabric port on the link.
func (w *world) fabricHosts(l envgen.Link) []*host {
	var on []*host
	for _, e := range l.Ends {
		if p := w.portAt(e); p.role == envgen.RoleFabric && !slices.Contains(on, p.host) {
			on = append(on, p.host)
		}
	}
	return on
}

// cablesOf is one, except for a link that only addresses show: two ports of each of two nodes in one subnet are
// most likely two cables.
func cablesOf(l envgen.Link, w *world) int {
	ports := map[*host]int{}
	for _, e := range l.Ends {
		ports[w.portAt(e).host]++
	}
	least := len(l.Ends)
	for _, n := range ports {
		least = min(least, n)
	}
	return least
}

func (w *world) group(hosts []*host) envgen.Group {
	direct, cables, switches, allOnEach := w.neighbours(hosts)
	g := envgen.Group{Shape: envgen.ShapeMixed}
	order := hosts
	degrees := map[int]int{} // number of neighbours -> hosts with so many
	for _, h := range hosts {
		degrees[len(direct[h])]++
	}
	switch n := len(hosts); {
	case n == 1:
		g.Shape = envgen.ShapeSingle
	case switches > 0 && cables == 0 && allOnEach:
		g.Shape = envgen.ShapeSwitch
	case switches > 0:
	case n == 2 && !anyLAN(hosts):
		g.Shape = envgen.ShapePair
	case n == 2:
	case degrees[2] == n:
		g.Shape = envgen.ShapeRing
		order = walk(hosts[0], direct)
	case degrees[1] == 2 && degrees[2] == n-2:
		g.Shape = envgen.ShapeChain
		// Hosts are in order, so the first with one neighbour is the lower end.
		order = walk(hosts[slices.IndexFunc(hosts, func(h *host) bool { return len(direct[h]) == 1 })], direct)
	}
	for _, h := range order {
		g.Nodes = append(g.Nodes, h.ID)
	}
	return g
}

// walk follows the cables from one host, first to the lower neighbour, never back.
func walk(from *host, direct map[*host][]*host) []*host {
	order := []*host{from}
	for h := from; ; {
		var next *host
		for _, other := range direct[h] {
			if !slices.Contains(order, other) && (next == nil || other.at < next.at) {
				next = other
			}
		}
		if next == nil {
			return order
		}
		order = append(order, next)
		h = next
	}
}

func anyLAN(hosts []*host) bool {
	return slices.ContainsFunc(hosts, func(h *host) bool {
		return slices.ContainsFunc(h.ports, func(p *port) bool { return p.role == envgen.RoleLAN && p.live })
	})
}

func (w *world) why(g envgen.Group) string {
	hosts := make([]*host, len(g.Nodes))
	for i, id := range g.Nodes {
		hosts[i] = w.host(id)
	}
	_, cables, switches, _ := w.neighbours(hosts)
	seen := !slices.ContainsFunc(w.links,
		func(l envgen.Link) bool { return l.Up && l.Role == envgen.RoleFabric && !l.Seen })
	by := "as their addresses have it"
	if seen {
		by = "seen by the probe"
	}
	names := joinWords(hostNames(hosts))
	switch g.Shape {
	case envgen.ShapePair:
		return fmt.Sprintf("%s are joined by %s, %s", names, count(cables, "cable"), by)
	case envgen.ShapeSwitch:
		return fmt.Sprintf("%s are all on %s, %s", names, count(switches, "switched network"), by)
	case envgen.ShapeRing:
		return fmt.Sprintf("%s are a ring, each cabled to the next and the last to the first, %s", names, by)
	case envgen.ShapeChain:
		return fmt.Sprintf("%s are a chain, each cabled to the next, %s; the last lacks a cable to the first", names, by)
	}
	if switches == 0 && len(hosts) == 2 {
		return fmt.Sprintf("%s are joined by %s, %s, and have other ports in a LAN", names, count(cables, "cable"), by)
	}
	return fmt.Sprintf("%s are joined by %s and %s, %s", names, count(cables, "cable"),
		count(switches, "switched network"), by)
}

func (w *world) whyUnknown() string {
	rdma := slices.ContainsFunc(w.hosts, func(h *host) bool { return len(h.ports) > 0 })
	if !rdma {
		return "no node has an RDMA device"
	}
	if !slices.ContainsFunc(w.ports, (*port).RoCE) {
		return "the nodes have InfiniBand, which finds its way by itself"
	}
	return "no cable and no common subnet joins any two nodes"
}

func (w *world) islandWords(groups []envgen.Group) string {
	var words []string
	for _, g := range groups {
		var names []string
		for _, id := range g.Nodes {
			names = append(names, w.host(id).Host)
		}
		words = append(words, strings.Join(names, " - "))
	}
	return strings.Join(words, "; ")
}

func (w *world) host(id string) *host {
	for _, h := range w.hosts {
		if h.ID == id {
			return h
		}
	}
	return nil
}

func hostNames(hosts []*host) []string {
	var names []string
	for _, h := range hosts {
		names = append(names, h.Host)
	}
	return names
}

// joinWords writes a list as prose, a, b and c; of a long one only the beginning.
func joinWords(words []string) string {
	if len(words) > 6 {
		words = append(slices.Clone(words[:5]), fmt.Sprintf("%d more", len(words)-5))
	}
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}

func count(n int, thing string) string {
	if n == 1 {
		return "one " + thing
	}
	return number(n) + " " + thing + "s"
}

func number(n int) string {
	if words := []string{"no", "one", "two", "three", "four"}; n >= 0 && n < len(words) {
		return words[n]
	}
	return fmt.Sprint(n)
}

// word names a port of the host as people do: port 0, or by its slot where the host has several cards.
func (p *port) word() string { return "port " + p.arg() }

// arg is the shortest name that tells the host's ports apart.
func (p *port) arg() string {
	if p.Number == nil {
		return p.Slot
	}
	name := fmt.Sprint(*p.Number)
	if i, ok := p.host.byName[name]; ok && p.host.ports[i] == p {
		return name
	}
	return p.Slot
}

// full names a port of the cluster: spark1 port 0.
func (p *port) full() string { return p.host.Host + " " + p.word() }

func compareFindings(a, b envgen.Finding) int {
	return cmp.Or(cmp.Compare(a.Severity.Rank(), b.Severity.Rank()), cmp.Compare(a.Code, b.Code),
		cmp.Compare(a.Host, b.Host), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Port, b.Port),
		cmp.Compare(a.Device, b.Device), cmp.Compare(a.Text, b.Text), cmp.Compare(a.Evidence, b.Evidence),
		cmp.Compare(a.Remedy, b.Remedy))
}
