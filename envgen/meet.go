package envgen

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Network is the kind of network the nodes of a job meet on.
type Network string

const (
	// NetworkFabric is an IPv4 subnet over ACTIVE RoCE devices in which every node has an address.
	NetworkFabric Network = "fabric"
	// NetworkManagement is the network the cluster itself talks over.
	NetworkManagement Network = "management"
	// NetworkLoopback is the one node's own, for a job on a machine without a network.
	NetworkLoopback Network = "loopback"
)

// NodeView is one chosen node as the cluster sees it.
type NodeView struct {
	// ID is the node's unique identity; Host is for messages.
	ID   string
	Host string
	// Mgmt is the node's management address; invalid when it has none.
	Mgmt      netip.Addr
	Inventory Inventory
}

// Addrs lists where the node's connections to others may come from: addr, where it meets them; its management
// address; and every address of the fabric's interfaces and of those that hold one of the two. Zones and loopback
// are left out; each address is listed once.
func (v NodeView) Addrs(addr netip.Addr) []netip.Addr {
	var out []netip.Addr
	add := func(a netip.Addr) {
		if a = a.Unmap().WithZone(""); a.IsValid() && !a.IsLoopback() && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	add(v.Mgmt)
	add(addr)
	own := slices.Clone(out)
	holds := func(n NIC) bool {
		return slices.ContainsFunc(n.Addresses, func(p netip.Prefix) bool { return slices.Contains(own, p.Addr().Unmap()) })
	}
	for _, n := range v.Inventory.NICs {
		if !v.Inventory.FabricNIC(n) && !holds(n) {
			continue
		}
		for _, p := range n.Addresses {
			add(p.Addr())
		}
	}
	return out
}

// Meeting says at which addresses the nodes of a job reach one another.
type Meeting struct {
	Kind Network `json:"kind"`
	// Subnet is the network all entries' addresses are in; invalid when management is routed.
	Subnet netip.Prefix `json:"subnet"`
	// Entries are in the order the nodes were given.
	Entries []Entry `json:"entries"`
	// Why is a sentence for --dry-run and for errors.
	Why string `json:"why"`
}

// Entry is one node's part of a meeting. It has all that the node's Env needs of it.
type Entry struct {
	ID   string `json:"id"`
	Host string `json:"host"`
	// Kind and Subnet are the meeting's.
	Kind   Network      `json:"kind"`
	Subnet netip.Prefix `json:"subnet"`
	// Addr is reached by all other nodes; NIC is the interface that holds it, empty when the inventory has none.
	Addr netip.Addr `json:"addr"`
	NIC  string     `json:"nic"`
	// Paths are the RDMA devices usable with every peer: those in a subnet that all nodes share, lowest port and
	// primary twin first; empty when there are none. In a ring they are all devices that reach a neighbour,
	// although no subnet joins all nodes.
	Paths []Path `json:"paths,omitempty"`
	// Shape is how the fabric joins the nodes of the job; empty where the meeting was found without a topology.
	Shape Shape `json:"shape,omitempty"`
}

// ErrNoMeeting is wrapped by Meet's error when the nodes have no network in common.
var ErrNoMeeting = errors.New("the nodes have no network in common")

// Meet finds one network that all the nodes reach: a fabric subnet in which each has an address, else management.
// Of several subnets it takes the one on the lowest port and the primary twins. The answer for a node does not
// depend on the order of the nodes; a subnet in which an address occurs twice does not count. A single node meets
// itself on its management address, or on loopback when it has none.
func Meet(nodes []NodeView) (Meeting, error) {
	if err := checkChosen(nodes); err != nil {
		return Meeting{}, err
	}
	if len(nodes) == 1 {
		return meetAlone(nodes[0]), nil
	}
	fabric, whyNot := meetFabric(nodes)
	if fabric != nil {
		return *fabric, nil
	}
	return meetManagement(nodes, whyNot)
}

func checkChosen(nodes []NodeView) error {
	if len(nodes) == 0 {
		return fmt.Errorf("meet nodes: none chosen: %w", ErrNoMeeting)
	}
	seen := map[string]string{}
	for _, n := range nodes {
		if other, dup := seen[n.ID]; dup {
			return fmt.Errorf("meet nodes: %s and %s have the same id %s", other, n.Host, n.ID)
		}
		seen[n.ID] = n.Host
	}
	return nil
}

func meetAlone(n NodeView) Meeting {
	m := Meeting{Kind: NetworkManagement, Why: fmt.Sprintf("%s is alone and uses its management address", n.Host)}
	addr := n.Mgmt.Unmap()
	if !addr.IsValid() {
		addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		m.Why = fmt.Sprintf("%s is alone and has no management address", n.Host)
	}
	if addr.IsLoopback() {
		m.Kind = NetworkLoopback
	}
	nic, subnet := holderOf(n.Inventory, addr)
	m.Subnet = subnet
	m.Entries = []Entry{{ID: n.ID, Host: n.Host, Kind: m.Kind, Subnet: subnet, Addr: addr, NIC: nic}}
	return m
}

// meetFabric returns nil and the reason when the fabric does not join all of the nodes.
func meetFabric(nodes []NodeView) (*Meeting, string) {
	all := make([][]way, len(nodes))
	var leftOut []string
	for i, n := range nodes {
		ways, why := fabricWays(n.Inventory, n.Mgmt.Unmap())
		all[i] = ways
		for _, w := range why {
			leftOut = append(leftOut, n.Host+" "+w)
		}
	}
	shared, spoilt, whyNot := sharedSubnets(nodes, all)
	if len(shared) == 0 {
		ok, why := linkLocalPair(nodes, all)
		if ok {
			shared = []netip.Prefix{linkLocal4}
		} else if why != "" {
			whyNot = why
		}
	}
	leftOut = append(spoilt, leftOut...)
	if len(shared) == 0 {
		if len(leftOut) > 0 {
			whyNot += "; not used: " + leftOut[0] + more(len(leftOut)-1)
		}
		return nil, whyNot
	}
	m := &Meeting{Kind: NetworkFabric,
		Subnet: slices.MinFunc(shared, func(a, b netip.Prefix) int { return compareSubnets(all, a, b) })}
	m.Why = fmt.Sprintf("all %d nodes have an address in %s on an ACTIVE RoCE port", len(nodes), m.Subnet)
	if len(leftOut) > 0 {
		m.Why += "; not used: " + leftOut[0] + more(len(leftOut)-1)
	}
	for i, n := range nodes {
		first := firstIn(all[i], m.Subnet)
		e := Entry{ID: n.ID, Host: n.Host, Kind: m.Kind, Subnet: m.Subnet, Addr: first.Addr, NIC: first.NIC}
		for _, p := range all[i] {
			if slices.Contains(shared, p.Subnet) {
				e.Paths = append(e.Paths, p.Path)
			}
		}
		m.Entries = append(m.Entries, e)
	}
	return m, ""
}

var linkLocal4 = netip.MustParsePrefix("169.254.0.0/16")

// sharedSubnets returns, in order, the subnets in which every node has an address that no other node has; those
// that a duplicate address excludes; and what the nearest miss lacks. Link-local is left out: everyone has the same
// 169.254/16, cabled or not.
func sharedSubnets(nodes []NodeView, all [][]way) (shared []netip.Prefix, spoilt []string, whyNot string) {
	members := map[netip.Prefix]map[int]bool{}
	for i, ways := range all {
		for _, p := range ways {
			if p.Subnet.Overlaps(linkLocal4) {
				continue
			}
			if members[p.Subnet] == nil {
				members[p.Subnet] = map[int]bool{}
			}
			members[p.Subnet][i] = true
		}
	}
	subnets := slices.SortedStableFunc(maps.Keys(members), comparePrefixes)
	whyNot = "no node has an addressed, ACTIVE RoCE port"
	best := 0
	for _, s := range subnets {
		if len(members[s]) < len(nodes) {
			if len(members[s]) > best {
				best = len(members[s])
				whyNot = fmt.Sprintf("no RoCE subnet joins all %d nodes: %s lacks %s", len(nodes), s, absent(nodes, members[s]))
			}
			continue
		}
		if dup := duplicate(nodes, all, s); dup != "" {
			spoilt = append(spoilt, dup)
			whyNot, best = "no RoCE subnet is free of duplicate addresses", len(nodes)
			continue
		}
		shared = append(shared, s)
	}
	return shared, spoilt, whyNot
}

// linkLocalPair reports whether two nodes are joined by a single cable with automatic addresses: each has exactly
// one physical port with a link-local address. With a second such port, or a third node, nothing says which cable
// leads where, since all are in the same subnet. why is empty where not all nodes have such addresses.
func linkLocalPair(nodes []NodeView, all [][]way) (ok bool, why string) {
	found := 0
	for i, ways := range all {
		slots := map[string]bool{}
		for _, w := range ways {
			if w.Subnet == linkLocal4 {
				slots[w.Slot] = true
			}
		}
		if len(slots) > 0 {
			found++
		}
		if len(slots) > 1 && why == "" {
			why = fmt.Sprintf("%s has link-local addresses on %d ports, which do not say where each cable leads",
				nodes[i].Host, len(slots))
		}
	}
	switch {
	case found < len(all):
		return false, ""
	case len(all) != 2:
		return false, fmt.Sprintf("link-local addresses join a pair, not %d nodes", len(all))
	case why != "":
		return false, why
	}
	why = duplicate(nodes, all, linkLocal4)
	return why == "", why
}

// duplicate names an address of the subnet that two interfaces have; empty when all differ.
func duplicate(nodes []NodeView, all [][]way, subnet netip.Prefix) string {
	type place struct {
		node int
		nic  string
	}
	holders := map[netip.Addr]place{}
	for i, ways := range all {
		for _, p := range ways {
			if p.Subnet != subnet {
				continue
			}
			here := place{i, p.NIC}
			if other, taken := holders[p.Addr]; taken && other != here {
				return fmt.Sprintf("%s (%s is on %s %s and on %s %s)", subnet, p.Addr,
					nodes[other.node].Host, other.nic, nodes[i].Host, p.NIC)
			}
			holders[p.Addr] = here
		}
	}
	return ""
}

// compareSubnets puts the subnet on the lowest port and the primary twins first. It compares all nodes' ranks,
// sorted, so that the order of the nodes does not matter.
func compareSubnets(all [][]way, a, b netip.Prefix) int {
	ranks := func(s netip.Prefix) []pathRank {
		var rs []pathRank
		for _, ways := range all {
			rs = append(rs, firstIn(ways, s).rank)
		}
		slices.SortStableFunc(rs, pathRank.compare)
		return rs
	}
	return cmp.Or(slices.CompareFunc(ranks(a), ranks(b), pathRank.compare), comparePrefixes(a, b))
}

func firstIn(ways []way, subnet netip.Prefix) way {
	for _, p := range ways {
		if p.Subnet == subnet {
			return p
		}
	}
	return way{}
}

func meetManagement(nodes []NodeView, whyNot string) (Meeting, error) {
	fail := func(format string, args ...any) (Meeting, error) {
		return Meeting{}, fmt.Errorf("meet nodes: %s, and %s: %w", whyNot, fmt.Sprintf(format, args...), ErrNoMeeting)
	}
	m := Meeting{Kind: NetworkManagement}
	holders := map[netip.Addr]string{}
	first := nodes[0]
	for i, n := range nodes {
		addr := n.Mgmt.Unmap()
		switch other, taken := holders[addr]; {
		case !addr.IsValid():
			return fail("%s has no management address (set one with --management IFACE|ADDR)", n.Host)
		case taken:
			return fail("%s and %s have the same management address %s (give one of them another)", other, n.Host, addr)
		case addr.IsLoopback() != first.Mgmt.IsLoopback():
			return fail("of the management addresses of %s (%s) and %s (%s) one is loopback (set it with --management "+
				"IFACE|ADDR)",
				first.Host, first.Mgmt, n.Host, addr)
		case addr.Is4() != first.Mgmt.Unmap().Is4():
			return fail("%s is managed over %s and %s over %s, which are different IP versions (set one with --management "+
				"IFACE|ADDR)",
				first.Host, first.Mgmt, n.Host, addr)
		}
		holders[addr] = n.Host
		nic, subnet := holderOf(n.Inventory, addr)
		if i == 0 {
			m.Subnet = subnet
		} else if m.Subnet != subnet {
			m.Subnet = netip.Prefix{}
		}
		m.Entries = append(m.Entries, Entry{ID: n.ID, Host: n.Host, Kind: m.Kind, Addr: addr, NIC: nic})
	}
	for i := range m.Entries {
		m.Entries[i].Subnet = m.Subnet
	}
	m.Why = "the management network is used: " + whyNot
	return m, nil
}

// holderOf returns the interface that holds addr and its subnet; for loopback it is lo even if the inventory
// has none.
func holderOf(inv Inventory, addr netip.Addr) (nic string, subnet netip.Prefix) {
	if n, ok := inv.Holder(addr); ok {
		p, _ := n.prefixOf(addr)
		return n.Name, p.Masked()
	}
	if addr.IsLoopback() {
		return "lo", netip.Prefix{}
	}
	return "", netip.Prefix{}
}

// absent names up to three of the nodes that are not in members.
func absent(nodes []NodeView, members map[int]bool) string {
	var hosts []string
	for i, n := range nodes {
		if !members[i] {
			hosts = append(hosts, n.Host)
		}
	}
	slices.Sort(hosts)
	if len(hosts) > 3 {
		return joinWords(hosts[:3]) + more(len(hosts)-3)
	}
	return joinWords(hosts)
}

func more(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf(" and %d more", n)
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}
