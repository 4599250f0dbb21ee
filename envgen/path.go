package envgen

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Path is one RDMA device's connection to a fabric subnet, as one node has it.
type Path struct {
	// HCA is the RDMA device, NIC the interface whose address makes it usable.
	HCA string `json:"hca"`
	NIC string `json:"nic"`
	// Slot is the physical port's (see Port.Slot); equal slots are twins.
	Slot string `json:"slot"`
	// Addr is the node's IPv4 address there, Subnet its network.
	Addr   netip.Addr   `json:"addr"`
	Subnet netip.Prefix `json:"subnet"`
}

// way is a Path with the values that decide its order.
type way struct {
	Path
	rank pathRank
}

// pathRank orders a node's ways: lowest port first, then the primary twin. Names do not count, so that the order
// is the same on a node with mlx5_N and on its peer with rocep1s0f0.
type pathRank struct {
	software bool
	function uint8
	domain   uint32
	bus, dev uint8
}

func (r pathRank) compare(o pathRank) int {
	return cmp.Or(compareTrueFirst(!r.software, !o.software), cmp.Compare(r.function, o.function),
		cmp.Compare(r.domain, o.domain), cmp.Compare(r.bus, o.bus), cmp.Compare(r.dev, o.dev))
}

func compareWays(a, b way) int {
	return cmp.Or(a.rank.compare(b.rank), cmp.Compare(a.HCA, b.HCA), a.Addr.Compare(b.Addr))
}

// fabricWays returns every way from this node into a fabric subnet, lowest port and primary twin first, and for
// each ACTIVE RoCE device without one the reason: a job runs at half speed where a twin lacks an address, and
// --dry-run should show which.
func fabricWays(inv Inventory, mgmt netip.Addr) (ways []way, leftOut []string) {
	mgmtNet := managementSubnet(inv, mgmt)
	for _, port := range Ports(inv) {
		lan := lanReason(inv, mgmtNet, port)
		for _, h := range port.Twins {
			if !h.Active() || !h.RoCE() {
				continue
			}
			if lan != "" {
				leftOut = append(leftOut, fmt.Sprintf("%s (%s)", h.Name, lan))
				continue
			}
			found, why := deviceWays(inv, h)
			if len(found) == 0 {
				leftOut = append(leftOut, fmt.Sprintf("%s (%s)", h.Name, why))
			}
			for _, w := range found {
				w.Slot = port.Slot
				ways = append(ways, w)
			}
		}
	}
	slices.SortStableFunc(ways, compareWays)
	return ways, leftOut
}

// deviceWays finds the addresses under which a device can be used: those with a RoCE v2 row in its GID table, on
// an interface with a carrier. Without such a row NCCL silently stays on row 0, a RoCE v1 link-local one.
func deviceWays(inv Inventory, h HCA) (ways []way, why string) {
	rank := pathRank{software: h.PCI == nil}
	if h.PCI != nil {
		rank = pathRank{function: h.PCI.Function, domain: h.PCI.Domain, bus: h.PCI.Bus, dev: h.PCI.Device}
	}
	why = "it has no interface"
	for _, name := range h.Netdevs() {
		nic, ok := inv.NIC(name)
		switch {
		case !ok:
			why = fmt.Sprintf("its interface %s is not in this network namespace", name)
			continue
		case !nic.HasCarrier():
			why = fmt.Sprintf("%s has no carrier", name)
			continue
		}
		why = fmt.Sprintf("%s has no IPv4 address", name)
		for _, p := range nic.Addresses {
			if !p.Addr().Is4() || p.Bits() == 32 { // a /32 joins no other host
				continue
			}
			if _, ok := h.gidFor(p.Addr()); !ok {
				why = fmt.Sprintf("its GID table has no RoCE v2 row for %s", p.Addr())
				continue
			}
			ways = append(ways, way{Path{HCA: h.Name, NIC: name, Addr: p.Addr(), Subnet: p.Masked()}, rank})
		}
	}
	return ways, why
}

// gidFor returns the lowest row of type RoCE v2 whose value is the IPv4 address. Rows of both types have equal
// values, so the type decides.
func (h HCA) gidFor(addr netip.Addr) (index int, ok bool) {
	for _, g := range h.GIDs {
		if g.Type == GIDTypeRoCEv2 && g.Addr.Is4In6() && g.Addr.Unmap() == addr && (!ok || g.Index < index) {
			index, ok = g.Index, true
		}
	}
	return index, ok
}

// joinWords renders a list as prose: a, b and c.
func joinWords(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}
