package topology

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/envgen"
)

// checkAddresses evaluates the addresses of all fabric ports.
func (c *checker) checkAddresses() {
	c.checkDuplicates()
	for _, p := range c.w.ports {
		if p.role != envgen.RoleFabric {
			continue
		}
		for _, d := range p.devices {
			if p.live && d.hasNIC && d.nic.HasCarrier() && d.Active() && d.RoCE() {
				c.checkDeviceAddresses(p, d)
			}
			c.checkOverlaps(p, d)
		}
		c.checkTwinSubnets(p)
		c.checkPartners(p)
	}
	for _, h := range c.w.hosts {
		c.checkPortSubnets(h)
	}
	c.checkSubnetLinks()
	c.checkLinkLocal()
	c.checkLanes()
	c.checkGIDIndices()
}

// checkDeviceAddresses requires exactly one IPv4 address with a RoCE v2 row.
func (c *checker) checkDeviceAddresses(p *port, d device) {
	h := p.host
	switch len(d.addrs) {
	case 0:
		if p.addressed() { // where no twin has one, one finding about the primary is enough
			c.add(CodeNoIPv4, c.cost(h), h, p, d.Name,
				fmt.Sprintf("%s of %s has no IPv4 address, and %s no RoCE v2 GID that counts: jobs use the other twin alone, "+
					"at half of the port's bandwidth",
					d.nic.Name, p.full(), d.Name),
				d.nic.Name+" has no IPv4 address", giveAddress)
		} else if d.Name == p.devices[0].Name {
			c.add(CodeNoIPv4, c.cost(h), h, p, d.Name,
				fmt.Sprintf("%s has no IPv4 address, and no job can use it", p.full()),
				nicNames(p)+" without an IPv4 address", giveAddress)
		}
		return
	case 1:
	default:
		var words []string
		for _, a := range d.addrs {
			words = append(words, a.String())
		}
		c.add(CodeSeveralIPv4, envgen.SeverityWarning, h, p, d.nic.Name,
			fmt.Sprintf("%s of %s has %s IPv4 addresses: which GID a job gets is up to chance", d.nic.Name, p.full(),
				number(len(d.addrs))),
			d.nic.Name+" has "+joinWords(words), showNetplans)
	}
	if len(d.paths) == 0 {
		c.add(CodeNoRoCEv2GID, c.cost(h), h, p, d.Name,
			fmt.Sprintf("%s of %s cannot be used: %s", d.Name, p.full(), d.why),
			fmt.Sprintf("%s has %s", d.nic.Name, d.addrs[0]),
			fmt.Sprintf("sudo ip link set dev %[1]s down && sudo ip link set dev %[1]s up", d.nic.Name))
	}
}

// addressed reports whether a twin has an IPv4 address.
func (p *port) addressed() bool {
	return slices.ContainsFunc(p.devices, func(d device) bool { return len(d.addrs) > 0 })
}

func nicNames(p *port) string {
	var names []string
	for _, d := range p.devices {
		names = append(names, d.nic.Name)
	}
	return joinWords(names)
}

// checkOverlaps compares a device's subnets with those of the node's other interfaces.
func (c *checker) checkOverlaps(p *port, d device) {
	h := p.host
	mine := map[string]bool{}
	for _, q := range h.ports {
		for _, e := range q.devices {
			for _, name := range e.Netdevs() {
				mine[name] = true
			}
		}
	}
	for _, a := range d.addrs {
		for _, n := range h.Inventory.NICs {
			if mine[n.Name] || n.Loopback {
				continue
			}
			for _, b := range n.Addresses {
				if !b.Addr().Is4() || !a.Overlaps(b) || a.Masked().Overlaps(linkLocal) {
					continue
				}
				code, what, severity := CodeOverlapsOther, n.Name, envgen.SeverityWarning
				switch {
				case h.mgmt.IsValid() && h.mgmt.Overlaps(b):
					code, what, severity = CodeOverlapsManagement, "management's interface "+n.Name, envgen.SeverityError
				case !n.Physical:
					code, what, severity = CodeOverlapsBridge, n.Kind+" "+n.Name, envgen.SeverityError
				}
				c.add(code, severity, h, p, d.Name,
					fmt.Sprintf("%s of %s is in a subnet that %s has too: packets for the fabric go the wrong way",
						d.Name, p.full(), what),
					fmt.Sprintf("%s and %s on %s", a, b, n.Name), giveAddress)
			}
		}
	}
}

// checkDuplicates finds one address on two interfaces, of one node or of two. Bridges are left out: docker0 has the
// same address on every node, and it is not visible outside.
func (c *checker) checkDuplicates() {
	type holder struct {
		h   *host
		nic envgen.NIC
	}
	holders := map[netip.Addr]holder{}
	for _, h := range c.w.hosts {
		for _, n := range h.Inventory.NICs {
			if n.Loopback || !n.Physical && !h.Inventory.FabricNIC(n) {
				continue
			}
			for _, a := range n.Addresses {
				first, taken := holders[a.Addr()]
				if !taken {
					holders[a.Addr()] = holder{h, n}
					continue
				}
				if !a.Addr().Is4() || first.h == h && first.nic.Name == n.Name {
					continue // all may have the same IPv6 link-local address
				}
				c.add(CodeDuplicateAddress, envgen.SeverityError, h, c.portOf(h, n.Name), n.Name,
					fmt.Sprintf("%s has address %s on %s, which %s has on %s", h.Host, a.Addr(), n.Name, first.h.Host, first.nic.Name),
					fmt.Sprintf("%s on %s %s and on %s %s", a.Addr(), first.h.Host, first.nic.Name, h.Host, n.Name), showNetplans)
			}
		}
	}
}

// SameAddress reports whether a finding is that this host and another one have an address.
func SameAddress(f envgen.Finding, host string) bool {
	return f.Code == CodeDuplicateAddress && strings.Contains(f.Evidence, " on "+host+" ")
}

// portOf is the port of an interface; nil where it is not a fabric port's.
func (c *checker) portOf(h *host, nic string) *port {
	if i, ok := h.byName[nic]; ok {
		return h.ports[i]
	}
	return nil
}

// checkTwinSubnets finds twins in one subnet: the kernel then answers for both addresses
// on either.
func (c *checker) checkTwinSubnets(p *port) {
	for i, d := range p.devices {
		for _, e := range p.devices[i+1:] {
			for _, a := range d.addrs {
				for _, b := range e.addrs {
					if a.Overlaps(b) && a != b {
						c.add(CodeTwinsOneSubnet, envgen.SeverityWarning, p.host, p, e.Name,
							fmt.Sprintf("the twins of %s are in one subnet: the kernel may answer on the wrong one, and discovery by "+
								"subnet sees one way where there are two", p.full()),
							fmt.Sprintf("%s on %s, %s on %s", a, d.nic.Name, b, e.nic.Name), giveAddress)
					}
				}
			}
		}
	}
}

// checkPortSubnets finds two ports of a node in one subnet.
func (c *checker) checkPortSubnets(h *host) {
	for i, p := range h.ports {
		for _, q := range h.ports[i+1:] {
			if p.role != envgen.RoleFabric || q.role != envgen.RoleFabric {
				continue
			}
			a, b, ok := commonSubnet(p, q)
			if !ok {
				continue
			}
			severity, effect := envgen.SeverityWarning, "the kernel may answer on the wrong one"
			if x, y := c.w.linkOf[p.id], c.w.linkOf[q.id]; x >= 0 && y >= 0 && x != y {
				severity, effect = envgen.SeverityError, "they lead to different cables, and packets take either"
			}
			c.add(CodePortsOneSubnet, severity, h, q, q.devices[0].Name,
				fmt.Sprintf("%s and %s of %s are in one subnet: %s", p.word(), q.word(), h.Host, effect),
				fmt.Sprintf("%s and %s", a, b), giveAddress)
		}
	}
}

func commonSubnet(p, q *port) (a, b netip.Prefix, ok bool) {
	for _, d := range p.devices {
		for _, e := range q.devices {
			for _, a := range d.addrs {
				for _, b := range e.addrs {
					// Link-local addresses are in one subnet everywhere; see checkLinkLocal.
					if a.Overlaps(b) && a != b && !a.Overlaps(linkLocal) {
						return a, b, true
					}
				}
			}
		}
	}
	return a, b, false
}

// checkSubnetLinks finds a subnet in use over two links that have no node in common: by their addresses the nodes
// should reach one another, and they do not.
func (c *checker) checkSubnetLinks() {
	first := map[netip.Prefix]envgen.Lane{}
	for _, l := range c.t.Lanes {
		other, again := first[l.Subnet]
		if !again {
			first[l.Subnet] = l
			continue
		}
		if l.Subnet.Overlaps(linkLocal) || slices.ContainsFunc(l.Ends, func(e envgen.LaneEnd) bool {
			return slices.ContainsFunc(other.Ends, func(o envgen.LaneEnd) bool { return o.Node == e.Node })
		}) {
			continue // checkPortSubnets reports a node that is on both
		}
		end := l.Ends[0]
		p := c.w.portAt(envgen.PortEnd{Node: end.Node, Slot: end.Path.Slot})
		o := c.w.portAt(envgen.PortEnd{Node: other.Ends[0].Node, Slot: other.Ends[0].Path.Slot})
		c.add(CodeSubnetOnTwoLinks, envgen.SeverityError, p.host, p, end.Path.HCA,
			fmt.Sprintf("%s is in use behind %s and behind %s, which no cable joins", l.Subnet, o.full(), p.full()),
			fmt.Sprintf("%s on %s, %s on %s", other.Ends[0].Path.Addr, o.full(), end.Path.Addr, p.full()), giveAddress)
	}
}

// checkPartners finds usable addresses that reach no other node, and says why: the cable leads elsewhere, the
// prefix lengths differ, or no other node has the subnet.
func (c *checker) checkPartners(p *port) {
	if len(c.w.hosts) < 2 || c.lonely(p) {
		return // that no member is heard there is a finding already
	}
	for _, d := range p.devices {
		if slices.ContainsFunc(d.paths, func(path envgen.Path) bool { return c.laned[laneKey{p.id, path.Addr}] }) {
			continue // one working address is enough; see several-ipv4
		}
		for _, path := range d.paths {
			if path.Subnet.Overlaps(linkLocal) {
				continue
			}
			same := slices.DeleteFunc(slices.Clone(c.subnets[path.Subnet]), func(q *port) bool { return q.host == p.host })
			near, overlap := c.overlapping(p, path.Subnet)
			switch {
			case len(same) > 0 && c.reaches(p):
				// The twin shows that the cable is right, so the address is wrong.
				c.add(CodePeerNotInSubnet, envgen.SeverityWarning, p.host, p, path.HCA,
					fmt.Sprintf("%s of %s is in %s, which is %s's%s", path.NIC, p.full(), path.Subnet, same[0].full(), c.farEnds(p)),
					fmt.Sprintf("%s/%d on %s", path.Addr, path.Subnet.Bits(), path.NIC), giveAddress)
			case len(same) > 0 && c.elsewhere(p, same[0]):
				c.swapped(p, path, same[0])
			case len(same) > 0:
				// A duplicate address, or a probe that sees no cable: other rules report
				// these.
			case c.faultOpposite(p, path.Subnet):
				// The other end has the address, or should have it, on a faulty device: reported
				// there.
			case near != nil:
				c.add(CodePrefixUnequal, envgen.SeverityError, p.host, p, path.HCA,
					fmt.Sprintf("%s of %s is in %s and %s in %s: the lengths of the prefixes differ", path.NIC,
						p.full(), path.Subnet, near.full(), overlap),
					fmt.Sprintf("%s/%d on %s", path.Addr, path.Subnet.Bits(), path.NIC), giveAddress)
			default:
				c.add(CodePeerNotInSubnet, c.cost(p.host), p.host, p, path.HCA,
					fmt.Sprintf("%s of %s is in %s, where no other node is%s", path.NIC, p.full(), path.Subnet, c.farEnds(p)),
					fmt.Sprintf("%s/%d on %s", path.Addr, path.Subnet.Bits(), path.NIC), giveAddress)
			}
		}
	}
}

// faultOpposite reports whether another node has an address in the subnet that it cannot use, or whether the far
// end of the port's cable lacks the twin or the address that would be the partner.
func (c *checker) faultOpposite(p *port, subnet netip.Prefix) bool {
	for _, q := range c.w.ports {
		if q.host == p.host || q.role == envgen.RoleLAN {
			continue
		}
		far := c.far(p) == q
		for _, d := range q.devices {
			if far && len(d.paths) == 0 ||
				slices.ContainsFunc(d.addrs, func(a netip.Prefix) bool { return a.Masked() == subnet }) {
				return true
			}
		}
		if far && len(q.devices) < len(p.devices) {
			return true
		}
	}
	return false
}

// overlapping finds another node's port in a subnet that overlaps this one and differs from
// it.
func (c *checker) overlapping(p *port, subnet netip.Prefix) (*port, netip.Prefix) {
	for _, other := range slices.SortedStableFunc(maps.Keys(c.subnets), comparePrefixes) {
		if other == subnet || !other.Overlaps(subnet) {
			continue
		}
		for _, q := range c.subnets[other] {
			if q.host != p.host {
				return q, other
			}
		}
	}
	return nil, netip.Prefix{}
}

// elsewhere reports whether the probe saw that one of the two ports leads to a third.
func (c *checker) elsewhere(p, q *port) bool {
	i, j := c.w.linkOf[p.id], c.w.linkOf[q.id]
	return i != j && (i >= 0 && c.w.links[i].Seen || j >= 0 && c.w.links[j].Seen)
}

// farEnds describes what the probe saw at the other end of the port's cable.
func (c *checker) farEnds(p *port) string {
	i := c.w.linkOf[p.id]
	if i < 0 || !c.w.links[i].Seen {
		return ""
	}
	var words []string
	for _, e := range c.w.links[i].Ends {
		q := c.w.portAt(e)
		if q.host == p.host {
			continue
		}
		var subnets []string
		for _, d := range q.devices {
			for _, a := range d.addrs {
				subnets = append(subnets, a.Masked().String())
			}
		}
		if len(subnets) == 0 {
			subnets = []string{"no subnet"}
		}
		words = append(words, fmt.Sprintf("%s in %s", q.full(), joinWords(subnets)))
	}
	return "; its cable leads to " + joinWords(words)
}

// checkLinkLocal finds automatic addresses that do not show where a cable leads.
func (c *checker) checkLinkLocal() {
	for _, h := range c.w.hosts {
		for _, p := range linkLocalPorts(h) {
			if len(c.w.hosts) < 2 || c.reaches(p) || p.probed {
				continue
			}
			c.add(CodeLinkLocalAmbiguous, c.cost(h), h, p, p.devices[0].Name,
				fmt.Sprintf("%s has a link-local address: everyone is in that subnet, so it does not say where the cable "+
					"leads, and no probe does", p.full()),
				fmt.Sprintf("%s, %s", p.devices[0].nic.Name, count(len(c.w.hosts), "node")), giveAddress)
		}
	}
}

// checkLanes compares the MTUs along each lane.
func (c *checker) checkLanes() {
	for _, l := range c.t.Lanes {
		type end struct {
			p   *port
			nic envgen.NIC
		}
		var low, high *end
		for _, e := range l.Ends {
			p := c.w.portAt(envgen.PortEnd{Node: e.Node, Slot: e.Path.Slot})
			nic, ok := p.host.Inventory.NIC(e.Path.NIC)
			if !ok {
				continue
			}
			if low == nil || nic.MTU < low.nic.MTU {
				low = &end{p, nic}
			}
			if high == nil || nic.MTU > high.nic.MTU {
				high = &end{p, nic}
			}
		}
		if low == nil || low.nic.MTU == high.nic.MTU {
			continue
		}
		c.add(CodeMTUUnequal, envgen.SeverityWarning, low.p.host, low.p, low.nic.Name,
			fmt.Sprintf("the MTUs in %s differ: %s of %s has %d, %s of %s has %d; large packets one way are lost without a word",
				l.Subnet, low.nic.Name, low.p.full(), low.nic.MTU, high.nic.Name, high.p.full(), high.nic.MTU),
			fmt.Sprintf("%s mtu %d, %s %s mtu %d", low.nic.Name, low.nic.MTU, high.p.host.Host, high.nic.Name, high.nic.MTU),
			fmt.Sprintf("sudo ip link set dev %s mtu %d", low.nic.Name, high.nic.MTU))
	}
}

// checkGIDIndices reports that the RoCE v2 rows have different indices. That is harmless, since nothing pins an
// index, and the reason why nothing may.
func (c *checker) checkGIDIndices() {
	rows := map[int][]string{}
	for _, p := range c.w.ports {
		if p.role != envgen.RoleFabric {
			continue
		}
		for _, d := range p.devices {
			if len(d.paths) == 0 {
				continue
			}
			for _, g := range d.GIDs {
				if g.Type == envgen.GIDTypeRoCEv2 && g.Addr.Unmap() == d.paths[0].Addr {
					rows[g.Index] = append(rows[g.Index], p.host.Host+" "+d.Name)
					break
				}
			}
		}
	}
	if len(rows) < 2 {
		return
	}
	var words []string
	for _, index := range slices.Sorted(maps.Keys(rows)) {
		words = append(words, fmt.Sprintf("%d: %s", index, joinWords(rows[index])))
	}
	c.add(CodeGIDIndexUnlike, envgen.SeverityInfo, nil, nil, "",
		"the RoCE v2 GIDs lie at different indices: never set NCCL_IB_GID_INDEX here, which is one number for all "+
			"devices of a node",
		strings.Join(words, "; "), "sparkrun fabric --gids")
}
