package topology

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/sparkrun/sparkrun/envgen"
)

// join works out links and lanes. Roles and live ports are decided before, only from the inventories, and cables
// only merge sets of ports: that is why no path appears when a cable is removed.
func (w *world) join(cables []envgen.Cable) {
	seen, via := w.resolve(cables)
	live, dead := newSets(len(w.ports)), newSets(len(w.ports))
	wires := newSets(len(w.ports)) // with the ports that have no link now
	bySight := map[int]bool{}      // ports at which a live cable was seen
	for _, e := range seen {
		a, b := w.ports[e[0]], w.ports[e[1]]
		wires.union(a.id, b.id)
		switch {
		case !a.live || !b.live:
			dead.union(a.id, b.id)
			for _, p := range []*port{a, b} {
				w.dead[p.id] = w.dead[p.id] || !p.live
			}
		default:
			live.union(a.id, b.id)
			bySight[a.id], bySight[b.id] = true, true
		}
	}
	for _, ids := range w.joinedByAddress() {
		for _, id := range ids[1:] {
			live.union(ids[0], id)
		}
	}
	for _, s := range []sets{live, dead} {
		for _, ids := range s.groups() {
			w.links = append(w.links, w.link(ids, bySight, via))
		}
	}
	for _, ids := range wires.groups() {
		if len(ids) < 3 {
			continue
		}
		for i, l := range w.links { // a cable has two ends: what is left of a switch is one still
			if l.Seen && slices.Contains(ids, w.portAt(l.Ends[0]).id) {
				w.links[i].Switched = true
			}
		}
	}
	slices.SortStableFunc(w.links, w.compareLinks)
	w.linkOf = slices.Repeat([]int{-1}, len(w.ports))
	for i, l := range w.links {
		if !l.Up {
			continue
		}
		for _, e := range l.Ends {
			w.linkOf[w.portAt(e).id] = i
		}
	}
	for i, l := range w.links {
		if l.Up && l.Role == envgen.RoleFabric {
			w.lanes = append(w.lanes, w.lanesOf(i, l)...)
		}
	}
}

// resolve turns reports into pairs of ports, each once, sorted. The switch's name is that of the pair.
func (w *world) resolve(cables []envgen.Cable) (pairs [][2]int, via map[[2]int]string) {
	hosts := make(map[string]*host, len(w.hosts))
	for _, h := range w.hosts {
		hosts[h.ID] = h
	}
	find := func(e envgen.CableEnd) (*port, bool) {
		h := hosts[e.Node]
		if h == nil {
			return nil, false
		}
		i, ok := h.byName[e.Port]
		if !ok {
			return nil, false
		}
		return h.ports[i], true
	}
	via = map[[2]int]string{}
	for _, c := range cables {
		a, okA := find(c.A)
		b, okB := find(c.B)
		switch {
		case !okA || !okB:
			w.lost = append(w.lost, c)
		case a != b: // a port that hears itself shows nothing
			pair := [2]int{min(a.id, b.id), max(a.id, b.id)}
			known, again := via[pair]
			if !again || known == "" || c.Via != "" && c.Via < known {
				via[pair] = c.Via
			}
		}
	}
	pairs = slices.SortedStableFunc(maps.Keys(via), func(a, b [2]int) int { return slices.Compare(a[:], b[:]) })
	return pairs, via
}

// joinedByAddress returns sets of fabric ports that must be on one link, since they have usable addresses in one
// subnet and no probe knows better. A subnet in which an address occurs twice shows nothing.
func (w *world) joinedByAddress() [][]int {
	type member struct {
		port int
		nic  string
		addr netip.Addr
	}
	members := map[netip.Prefix][]member{}
	for _, p := range w.ports {
		if p.role != envgen.RoleFabric {
			continue
		}
		for _, d := range p.devices {
			for _, path := range d.paths {
				members[path.Subnet] = append(members[path.Subnet], member{p.id, path.NIC, path.Addr})
			}
		}
	}
	var joined [][]int
	for _, subnet := range slices.SortedStableFunc(maps.Keys(members), comparePrefixes) {
		if subnet.Overlaps(linkLocal) {
			continue
		}
		holders := map[netip.Addr]member{}
		hosts := map[*host]bool{}
		var ids []int
		spoilt, unsure := false, false
		for _, m := range members[subnet] {
			p := w.ports[m.port]
			other, taken := holders[m.addr]
			spoilt = spoilt || taken && other != m
			holders[m.addr] = m
			hosts[p.host] = true
			unsure = unsure || !p.probed
			ids = append(ids, p.id)
		}
		if !spoilt && unsure && len(hosts) > 1 {
			joined = append(joined, ids)
		}
	}
	if len(joined) == 0 {
		if a, b, ok := w.linkLocalPair(); ok {
			joined = append(joined, []int{a, b})
		}
	}
	return joined
}

var linkLocal = netip.MustParsePrefix("169.254.0.0/16")

// linkLocalPair is the single cable with automatic addresses: two nodes, each with one such port. With more ports
// nothing says which cable leads where, since all are in the same subnet.
func (w *world) linkLocalPair() (a, b int, ok bool) {
	if len(w.hosts) != 2 {
		return 0, 0, false
	}
	var found [2]int
	addrs := map[netip.Addr]bool{}
	for i, h := range w.hosts {
		ports := linkLocalPorts(h)
		if len(ports) != 1 {
			return 0, 0, false
		}
		found[i] = ports[0].id
		for _, d := range ports[0].devices {
			for _, path := range d.paths {
				if addrs[path.Addr] {
					return 0, 0, false
				}
				addrs[path.Addr] = true
			}
		}
	}
	if w.ports[found[0]].probed && w.ports[found[1]].probed {
		return 0, 0, false
	}
	return found[0], found[1], true
}

// linkLocalPorts are the host's fabric ports with a usable link-local address.
func linkLocalPorts(h *host) []*port {
	var found []*port
	for _, p := range h.ports {
		if p.role == envgen.RoleFabric && slices.ContainsFunc(p.devices, func(d device) bool {
			return slices.ContainsFunc(d.paths, func(path envgen.Path) bool { return path.Subnet.Overlaps(linkLocal) })
		}) {
			found = append(found, p)
		}
	}
	return found
}

// link makes a link of ports that are joined.
func (w *world) link(ids []int, bySight map[int]bool, via map[[2]int]string) envgen.Link {
	l := envgen.Link{Role: envgen.RoleFabric, Up: true}
	hosts := map[*host]bool{}
	roles := map[envgen.Role]int{}
	for i, id := range ids {
		p := w.ports[id]
		hosts[p.host] = true
		roles[p.role]++
		l.Ends = append(l.Ends, envgen.PortEnd{Node: p.host.ID, Slot: p.Slot})
		l.Up = l.Up && p.live
		l.Seen = l.Seen || bySight[id] || !p.live
		if s := p.speed(); s != nil && (l.SpeedMbps == nil || *s < *l.SpeedMbps) {
			l.SpeedMbps = s
		}
		for _, other := range ids[i+1:] {
			if name := via[[2]int{id, other}]; name != "" && (l.Via == "" || name < l.Via) {
				l.Via = name
			}
		}
	}
	switch {
	case !l.Up || roles[envgen.RoleFabric] > 1:
	case roles[envgen.RoleLAN] > 0:
		l.Role = envgen.RoleLAN
	default:
		l.Role = envgen.RoleUnused
	}
	// A cable has two ends. Where only addresses show the link, two nodes with several ports may have several
	// cables.
	l.Switched = l.Via != "" || len(ids) > 2 && (l.Seen || len(hosts) > 2)
	return l
}

// lanesOf finds the subnets over one link in which two nodes or more have a usable address.
func (w *world) lanesOf(index int, l envgen.Link) []envgen.Lane {
	at := map[netip.Prefix]int{}
	var lanes []envgen.Lane
	for _, e := range l.Ends {
		p := w.portAt(e)
		if p.role != envgen.RoleFabric {
			continue // on the same switch, but not for jobs
		}
		for _, d := range p.devices {
			for _, path := range d.paths {
				i, ok := at[path.Subnet]
				if !ok {
					i = len(lanes)
					at[path.Subnet] = i
					lanes = append(lanes, envgen.Lane{Link: index, Subnet: path.Subnet})
				}
				lanes[i].Ends = append(lanes[i].Ends, envgen.LaneEnd{Node: e.Node, Path: path})
			}
		}
	}
	lanes = slices.DeleteFunc(lanes, func(l envgen.Lane) bool {
		return !slices.ContainsFunc(l.Ends, func(e envgen.LaneEnd) bool { return e.Node != l.Ends[0].Node })
	})
	for i := range lanes {
		type place struct{ node, nic string }
		holders := map[netip.Addr]place{}
		for _, e := range lanes[i].Ends {
			here := place{e.Node, e.Path.NIC}
			other, taken := holders[e.Path.Addr]
			lanes[i].Spoilt = lanes[i].Spoilt || taken && other != here
			holders[e.Path.Addr] = here
		}
	}
	return lanes
}

func (w *world) portAt(e envgen.PortEnd) *port { return w.byEnd[e] }

func (w *world) compareLinks(a, b envgen.Link) int {
	rank := func(l envgen.Link) int {
		switch {
		case !l.Up:
			return 2
		case l.Role != envgen.RoleFabric:
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), slices.CompareFunc(a.Ends, b.Ends, func(a, b envgen.PortEnd) int {
		return cmp.Compare(w.portAt(a).id, w.portAt(b).id)
	}))
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// sets is a disjoint-set forest over port ids. The root of a set is its lowest id, so that the order of unions does
// not matter.
type sets []int

func newSets(n int) sets {
	s := make(sets, n)
	for i := range s {
		s[i] = i
	}
	return s
}

func (s sets) root(i int) int {
	for s[i] != i {
		s[i] = s[s[i]]
		i = s[i]
	}
	return i
}

func (s sets) union(a, b int) {
	a, b = s.root(a), s.root(b)
	s[max(a, b)] = min(a, b)
}

// groups returns the sets with two members or more, each in order, by first member.
func (s sets) groups() [][]int {
	members := map[int][]int{}
	for i := range s {
		r := s.root(i)
		members[r] = append(members[r], i)
	}
	var groups [][]int
	for i := range s {
		if m := members[i]; len(m) > 1 {
			groups = append(groups, m)
		}
	}
	return groups
}
