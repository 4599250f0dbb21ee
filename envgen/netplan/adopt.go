package netplan

import (
	"fmt"
	"net/netip"
	"slices"
)

// Held are the addresses an interface has now, from its netplan files or from the kernel.
type Held struct {
	NIC       string
	Addresses []netip.Prefix
}

// HeldBy reads from a node's netplan files what its interfaces have.
func HeldBy(sources []Source, nics []Twin) []Held {
	docs, _ := ParseAll(sources)
	var out []Held
	for _, t := range nics {
		if s := Effective(docs, t); s != nil {
			out = append(out, Held{NIC: t.NIC, Addresses: s.Addresses})
		}
	}
	return out
}

// Adopt makes an allocation from addresses that owners have configured by hand, so that the first plan leaves
// working links as they are. held is by node id. A link is adopted as a whole or not at all; why names the links
// that are not, and what is wrong with them. What in.Previous remembers is kept unchanged.
func Adopt(in Input, held map[string][]Held) (adopted Allocation, why []string, err error) {
	if err := in.check(); err != nil {
		return Allocation{}, nil, err
	}
	a := newAllocator(in)
	a.number()
	for _, ends := range a.links() {
		rail, reason := a.adopt(ends, held)
		if reason != "" {
			why = append(why, reason)
		}
		if rail != nil {
			a.next.Rails = append(a.next.Rails, *rail)
		}
	}
	return a.next, why, nil
}

// adopt returns nil and no reason where there is nothing to adopt: the link is in the allocation already, or
// has no address.
func (a *allocator) adopt(ends []End, held map[string][]Held) (*Rail, string) {
	for _, e := range ends {
		if _, _, ok := a.next.find(e); ok {
			return nil, ""
		}
	}
	rail := &Rail{}
	owners := map[netip.Addr]End{}
	for _, e := range ends {
		port := RailPort{End: e}
		for _, twin := range a.ports[e].Twins {
			addr, reason := a.only(e, twin, held)
			if reason != "" {
				return nil, reason
			}
			if !addr.IsValid() {
				continue
			}
			if other, dup := owners[addr.Addr()]; dup {
				return nil, fmt.Sprintf("%s and %s both have %s", a.portName(other), a.portName(e), addr.Addr())
			}
			owners[addr.Addr()] = e
			lane := slices.Index(rail.Subnets, addr.Masked())
			if lane < 0 {
				if a.taken(addr.Masked()) || slices.ContainsFunc(rail.Subnets, addr.Masked().Overlaps) {
					return nil, fmt.Sprintf("%s of %s is in a subnet that is somebody else's", addr, a.portName(e))
				}
				rail.Subnets = append(rail.Subnets, addr.Masked())
				lane = len(rail.Subnets) - 1
			}
			if slices.ContainsFunc(port.Twins, func(t RailTwin) bool { return t.Lane == lane }) {
				return nil, fmt.Sprintf("the twins of %s are both in %s", a.portName(e), addr.Masked())
			}
			port.Twins = append(port.Twins, RailTwin{Key: twin.key(), Lane: lane, Addr: addr.Addr()})
		}
		if len(port.Twins) > 0 {
			if slices.ContainsFunc(rail.Ports, func(s RailPort) bool { return s.Node == e.Node }) {
				return nil, fmt.Sprintf("%s is on one switch with another port of its node", a.portName(e))
			}
			rail.Ports = append(rail.Ports, port)
		}
	}
	if len(rail.Ports) == 0 {
		return nil, ""
	}
	// More subnets than twins means that some peers share no subnet.
	if most := a.lanes(ends); len(rail.Subnets) > most {
		return nil, fmt.Sprintf("the link of %s has %d subnets for %d twins: some peer is in none of its neighbour's",
			a.portName(ends[0]), len(rail.Subnets), most)
	}
	return rail, ""
}

// only returns the one IPv4 address of an interface; link-local ones do not count, since nobody configured
// them.
func (a *allocator) only(e End, twin Twin, held map[string][]Held) (addr netip.Prefix, reason string) {
	for _, h := range held[e.Node] {
		if h.NIC != twin.NIC {
			continue
		}
		for _, p := range h.Addresses {
			switch {
			case !p.Addr().Is4() || p.Addr().IsLinkLocalUnicast() || p == addr:
			case addr.IsValid():
				return netip.Prefix{}, fmt.Sprintf("%s of %s has two IPv4 addresses, %s and %s", twin.NIC,
					a.nodes[e.Node].Host, addr, p)
			case p.Bits() < 8 || p.Bits() > 30 || !usableHost(p.Masked(), p.Addr()):
				return netip.Prefix{}, fmt.Sprintf("%s of %s has %s, which joins nobody", twin.NIC, a.nodes[e.Node].Host, p)
			default:
				addr = p
			}
		}
	}
	return addr, ""
}
