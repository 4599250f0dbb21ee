package topology

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/envgen"
)

// checkCables evaluates what the probe saw, link by link.
func (c *checker) checkCables() {
	told := map[*port]bool{}
	for _, cable := range c.w.lost {
		c.lostCable(cable, told)
	}
	pairs := map[[2]*host]int{}
	for i, l := range c.w.links {
		if !l.Up || !l.Seen || l.Switched {
			continue
		}
		a, b := c.w.portAt(l.Ends[0]), c.w.portAt(l.Ends[1])
		if a.host == b.host {
			c.add(CodeCableLoop, envgen.SeverityWarning, a.host, b, b.devices[0].Name,
				fmt.Sprintf("a cable joins %s and %s of %s: it leads to no other node", a.word(), b.word(), a.host.Host),
				"the probe hears itself", showCabling)
			continue
		}
		if l.Role != envgen.RoleFabric {
			continue
		}
		pair := [2]*host{a.host, b.host}
		pairs[pair]++
		if pairs[pair] == 2 && len(a.Twins)+len(b.Twins) > 2 { // a server's cards do not share their PCIe links
			c.add(CodeSecondCable, envgen.SeverityInfo, b.host, b, b.devices[0].Name,
				fmt.Sprintf("%s and %s have a second cable: it adds nearly nothing (about 208 Gb/s in all), for both share the "+
					"machine's two PCIe links",
					a.host.Host, b.host.Host),
				fmt.Sprintf("link %d of %d", i+1, len(c.w.links)), showCabling)
		}
	}
	for _, p := range c.w.ports {
		if c.lonely(p) && !told[p] && !c.remembered(p) && c.othersProbe(p.host) {
			c.add(CodeNoNeighbour, c.cost(p.host), p.host, p, p.devices[0].Name,
				fmt.Sprintf("%s has a link, but the probe hears no member there: the far end is another machine, its agent "+
					"does not run, or a switch keeps the frames", p.full()),
				"no probe frame at "+deviceNames(p), showCabling)
		}
	}
}

// lonely reports whether a probe listens on a live fabric port and hears no member.
func (c *checker) lonely(p *port) bool {
	return p.role == envgen.RoleFabric && p.live && p.probed && c.w.linkOf[p.id] < 0
}

// remembered reports whether a cable was seen at the port whose far end has no link now: that end
// reports it.
func (c *checker) remembered(p *port) bool {
	return slices.ContainsFunc(c.w.links, func(l envgen.Link) bool {
		return !l.Up && slices.Contains(l.Ends, envgen.PortEnd{Node: p.host.ID, Slot: p.Slot})
	})
}

func (c *checker) othersProbe(h *host) bool {
	return slices.ContainsFunc(c.w.ports, func(p *port) bool { return p.host != h && p.probed })
}

// lostCable reports a cable to a node or a port that is not in the input.
func (c *checker) lostCable(cable envgen.Cable, told map[*port]bool) {
	for _, e := range [][2]envgen.CableEnd{{cable.A, cable.B}, {cable.B, cable.A}} {
		h := c.w.host(e[0].Node)
		if h == nil {
			continue
		}
		i, ok := h.byName[e[0].Port]
		if !ok {
			continue
		}
		what := fmt.Sprintf("node %s, whose inventory is not known", e[1].Node)
		if far := c.w.host(e[1].Node); far != nil {
			what = fmt.Sprintf("%s of %s, which its inventory does not have", e[1].Port, far.Host)
		}
		p := h.ports[i]
		told[p] = true
		c.add(CodeCableUnknownEnd, envgen.SeverityInfo, h, p, p.devices[0].Name,
			fmt.Sprintf("the cable at %s leads to %s", p.full(), what), "the probe hears "+e[1].Node+" "+e[1].Port,
			"sparkrun status")
		return
	}
}

// misled is a cable that leads from port p to another port than p's address needs. clear is true where both are
// ports of one node: then the finding says which plug goes where.
type misled struct {
	p, far, partner *port
	path            envgen.Path
	clear           bool
}

// swapped records a port whose address belongs with another port than its cable leads
// to.
func (c *checker) swapped(p *port, path envgen.Path, partner *port) {
	i := c.w.linkOf[p.id]
	if i < 0 || !c.w.links[i].Seen {
		return // the partner's cable is known, and reported from its side
	}
	m := misled{p: p, partner: partner, path: path}
	for _, e := range c.w.links[i].Ends {
		if q := c.w.portAt(e); q.host != p.host && m.far == nil {
			m.far = q
		}
	}
	if m.far == nil {
		return // a loop, which is reported as such
	}
	m.clear = !c.w.links[i].Switched && partner.host == m.far.host
	if told, ok := c.misled[i]; !ok || m.clear && !told.clear {
		c.misled[i] = m
	}
}

func (c *checker) tellMisled() {
	for i, m := range c.misled {
		at, text := m.p, fmt.Sprintf("the cable from %s leads to %s, but by its address in %s it belongs to %s",
			m.p.full(), m.far.full(), m.path.Subnet, m.partner.full())
		switch {
		case c.w.links[i].Switched:
			text = fmt.Sprintf("by its address in %s %s belongs with %s, but it is plugged into another switched "+
				"network", m.path.Subnet, m.p.full(), m.partner.full())
		case m.clear:
			at = m.far
			text += fmt.Sprintf(": at %s move the plug from %s to %s, or give the ports addresses for the cables as they "+
				"are", at.host.Host, at.word(), m.partner.word())
		default:
			text += fmt.Sprintf(": move the plug at %s, or give the ports addresses for the cables as they are", m.far.full())
		}
		c.add(CodeCableSwapped, envgen.SeverityError, at.host, at, at.devices[0].Name, text,
			fmt.Sprintf("%s/%d on %s; cable to %s", m.path.Addr, m.path.Subnet.Bits(), m.path.NIC, m.far.full()), giveAddress)
	}
}

// checkOrder compares the order in which the nodes of a group have their common lanes: NCCL joins the first device
// of one node with the first of the other, without checking that a cable does.
func (c *checker) checkOrder() {
	for _, g := range c.t.Groups {
		if len(g.Nodes) < 2 {
			continue
		}
		// A lane without one of the group's nodes is useless to a job on all of them; in a ring every lane
		// is such.
		var shared []envgen.Lane
		for _, l := range c.t.Lanes {
			if !l.Spoilt && !slices.ContainsFunc(g.Nodes, func(id string) bool {
				return !slices.ContainsFunc(l.Ends, func(e envgen.LaneEnd) bool { return e.Node == id })
			}) {
				shared = append(shared, l)
			}
		}
		var first []string
		for _, id := range g.Nodes {
			order := c.laneOrder(id, shared)
			if first == nil {
				first = order
				continue
			}
			if slices.Equal(order, first) {
				continue
			}
			h := c.w.host(id)
			c.add(CodeSubnetOrder, envgen.SeverityError, h, nil, "",
				fmt.Sprintf("%s has the subnets of the fabric on its devices in another order than %s: NCCL joins first with "+
					"first and times out (ibv_modify_qp)",
					h.Host, c.w.host(g.Nodes[0]).Host),
				fmt.Sprintf("%s: %s; %s: %s", c.w.host(g.Nodes[0]).Host, strings.Join(first, ", "), h.Host,
					strings.Join(order, ", ")), giveAddress)
		}
	}
}

// laneOrder names a node's lanes in the order of its devices.
func (c *checker) laneOrder(id string, lanes []envgen.Lane) []string {
	var order []string
	h := c.w.host(id)
	for _, p := range h.ports {
		for _, d := range p.devices {
			for _, path := range d.paths {
				for _, l := range lanes {
					name := l.Subnet.String()
					if l.Subnet.Overlaps(linkLocal) {
						name = fmt.Sprintf("link %d", l.Link+1) // all share this subnet; the cable tells the lanes apart
					}
					if !slices.Contains(order, name) && slices.Contains(l.Ends, envgen.LaneEnd{Node: id, Path: path}) {
						order = append(order, name)
					}
				}
			}
		}
	}
	return order
}

// checkShape evaluates the shape of the whole fabric.
func (c *checker) checkShape() {
	for _, g := range c.t.Groups {
		switch g.Shape {
		case envgen.ShapeRing:
			c.checkRing(g)
		case envgen.ShapeChain:
			first, last := c.w.host(g.Nodes[0]), c.w.host(g.Nodes[len(g.Nodes)-1])
			c.add(CodeChain, envgen.SeverityWarning, nil, nil, "",
				fmt.Sprintf("%s are a chain: a job on all of them cannot use RoCE; cable %s to %s and they are a ring",
					joinWords(c.hostsOf(g)), c.freePort(last), c.freePort(first)),
				strings.Join(c.hostsOf(g), " - "), showCabling)
		}
	}
	unsure := c.t.Shape == envgen.ShapeIslands || c.t.Shape == envgen.ShapeUnknown
	if looking := c.looking(); unsure && len(looking) > 0 {
		c.add(CodeStillLooking, envgen.SeverityInfo, nil, nil, "",
			"the cable probe is still looking, and has not found yet what joins all nodes: ask again in some seconds",
			"it has not listened long enough at "+joinWords(looking), showCabling)
		return
	}
	switch c.t.Shape {
	case envgen.ShapeIslands:
		c.add(CodeIslands, envgen.SeverityWarning, nil, nil, "",
			"the fabric joins not all nodes: a job across its parts runs over TCP", c.w.islandWords(c.t.Groups), showCabling)
	case envgen.ShapeUnknown:
		if slices.ContainsFunc(c.w.ports, func(p *port) bool { return p.RoCE() }) {
			c.add(CodeNotJoined, envgen.SeverityWarning, nil, nil, "",
				"the fabric joins no two nodes: jobs run over TCP", c.t.Why, showCabling)
		}
	}
}

// looking are the live fabric ports at which a probe works and has not listened long enough yet.
func (c *checker) looking() (ports []string) {
	for _, p := range c.w.ports {
		probe := p.host.Inventory.Cabling
		can := slices.ContainsFunc(envgen.CableNICs(p.host.Inventory), func(n envgen.CableNIC) bool { // no bond
			return slices.ContainsFunc(p.Twins, func(d envgen.HCA) bool { return d.Netdev == n.NIC.Name })
		})
		if p.role == envgen.RoleFabric && p.live && !p.probed && p.RoCE() && can && probe != nil && probe.Trouble == "" {
			ports = append(ports, p.full())
		}
	}
	return ports
}

// RoCE reports whether the port is Ethernet: InfiniBand needs neither probed cables nor
// subnets.
func (p *port) RoCE() bool { return p.devices[0].RoCE() }

func (c *checker) hostsOf(g envgen.Group) []string {
	var names []string
	for _, id := range g.Nodes {
		names = append(names, c.w.host(id).Host)
	}
	return names
}

// freePort names a port of the node without a link, as a suggestion where to plug in.
func (c *checker) freePort(h *host) string {
	for _, p := range h.ports {
		if c.w.linkOf[p.id] < 0 {
			return p.full()
		}
	}
	return h.Host
}

// checkRing requires port 0 of each node to be cabled to port 1 of the next. To find the wrong plugs: each node
// points in one direction of the ring with its port 0, and those that point against the majority have their two
// plugs swapped.
func (c *checker) checkRing(g envgen.Group) {
	type wiring struct {
		h        *host
		forward  bool
		prev, to *port // where port 0 and port 1 of h lead
	}
	var nodes []wiring
	forward := 0
	for i, id := range g.Nodes {
		h := c.w.host(id)
		next := c.w.host(g.Nodes[(i+1)%len(g.Nodes)])
		zero, one := c.numbered(h, 0), c.numbered(h, 1)
		if zero == nil || one == nil || c.far(zero) == nil || c.far(one) == nil {
			return // without two numbered ports nothing says which order is right
		}
		n := wiring{h: h, forward: c.far(zero).host == next, prev: c.far(zero), to: c.far(one)}
		if n.forward {
			forward++
		}
		nodes = append(nodes, n)
	}
	// In a tie the lowest host decides.
	right := forward*2 > len(nodes) || forward*2 == len(nodes) && nodes[0].forward
	for _, n := range nodes {
		if n.forward == right {
			continue
		}
		p := c.numbered(n.h, 0)
		c.add(CodeRingMiswired, envgen.SeverityError, n.h, p, p.devices[0].Name,
			fmt.Sprintf("the plugs of %s are crossed: in a ring port 0 of each node leads to port 1 of the next; at %s swap "+
				"the two plugs",
				n.h.Host, n.h.Host),
			fmt.Sprintf("port 0 leads to %s, port 1 to %s", n.prev.full(), n.to.full()), showCabling)
	}
	lengths := map[int]bool{}
	for _, l := range c.t.Lanes {
		if slices.Contains(g.Nodes, l.Ends[0].Node) {
			lengths[l.Subnet.Bits()] = true
		}
	}
	if len(lengths) > 1 {
		c.add(CodeRingPrefixLengths, envgen.SeverityWarning, nil, nil, "",
			"the subnets of the ring have different prefix lengths: NCCL compares all of them by one "+
				"(NCCL_IB_SUBNET_PREFIX_LEN) and may take two for one",
			c.laneWords(), giveAddress)
	}
}

func (c *checker) laneWords() string {
	var words []string
	for _, l := range c.t.Lanes {
		words = append(words, l.Subnet.String())
	}
	return strings.Join(words, ", ")
}

// numbered is the host's only port of that number; nil where it has none or several.
func (c *checker) numbered(h *host, number int) *port {
	var found *port
	for _, p := range h.ports {
		if p.Number != nil && *p.Number == number {
			if found != nil {
				return nil
			}
			found = p
		}
	}
	return found
}

// far is the other end of a port's cable; nil where there is none, or a switch.
func (c *checker) far(p *port) *port {
	i := c.w.linkOf[p.id]
	if i < 0 || len(c.w.links[i].Ends) != 2 {
		return nil
	}
	for _, e := range c.w.links[i].Ends {
		if q := c.w.portAt(e); q != p {
			return q
		}
	}
	return nil
}
