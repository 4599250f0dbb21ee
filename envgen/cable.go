package envgen

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Cabling is what a node's cable probe knows at one moment: which ports each of its fabric NICs hears. It is part
// of the node's Inventory and changes only with the cabling, not with each frame.
type Cabling struct {
	// Probed are the NICs, sorted, on which the probe sends and has listened long enough that silence means an
	// empty far end. For any other NIC silence says nothing.
	Probed []string `json:"probed,omitempty"`
	// Sightings are by NIC, then the neighbour's node, NIC and MAC.
	Sightings []Sighting `json:"sightings,omitempty"`
	// Pulled are the sightings that a NIC had when it lost its link: that cable is out or dead. They are dropped
	// when the NIC has a link again.
	Pulled []Sighting `json:"pulled,omitempty"`
	// NonMembers are by NIC, then MAC: at most a few for each NIC, since one is enough to
	// know.
	NonMembers []NonMember `json:"non_members,omitempty"`
	// Trouble says why the probe does not work, and how to repair that; empty while it
	// works.
	Trouble string `json:"trouble,omitempty"`
}

// Sighting says that one of our NICs and one of a member's hear each other: each has recently proven that it
// heard the other. Both twins of a port share its wire, so that one cable gives up to four sightings; what counts
// is port to port (Slot to Peer.Slot). Through a switch a NIC has several neighbours.
type Sighting struct {
	// NIC and Slot (see CableNICs) are this node's.
	NIC  string    `json:"nic"`
	Slot string    `json:"slot"`
	Peer Neighbour `json:"peer"`
	// Clone is true where the neighbour claims to be this very node and is not: a machine copied with its state. A
	// neighbour that really is this node has a cable from one of its ports to another, or both on one switch.
	Clone bool `json:"clone,omitempty"`
	// Since is when they first heard each other, in whole seconds of this node's clock.
	Since time.Time `json:"since"`
}

// Neighbour is the far end of a Sighting, by its own account; only that it is a member is
// proven.
type Neighbour struct {
	// Node is the node's id, Host its name.
	Node string `json:"node"`
	Host string `json:"host"`
	// NIC, Slot (see CableNICs), PCI and MAC are the far interface's. PCI is nil where it has none.
	NIC  string      `json:"nic"`
	Slot string      `json:"slot"`
	PCI  *PCIAddress `json:"pci,omitempty"`
	MAC  string      `json:"mac"`
	// Boot differs after each restart of the machine: 16 hexadecimal digits, made from its boot id.
	Boot string `json:"boot"`
}

// NonMember is a host on a NIC's wire that has not proven to be a member of the cluster. It takes all nodes'
// inventories to tell it from a member whose agent does not run: see the function NonMembers.
type NonMember struct {
	NIC  string `json:"nic"`
	Slot string `json:"slot"`
	MAC  string `json:"mac"`
	// Heard is how it was noticed: NonMemberProbe or NonMemberARP.
	Heard string `json:"heard"`
}

const (
	// NonMemberProbe is a cable probe of another cluster.
	NonMemberProbe = "probe"
	// NonMemberARP is an ARP request or answer for an IPv4 address.
	NonMemberARP = "arp"
)

// CableNIC is a NIC at which a cable can end.
type CableNIC struct {
	NIC NIC
	// Slot is the Port.Slot of the NIC's RDMA device. Without a device it is the PCI slot, else the NIC's name.
	Slot string
}

// CableNICs returns the interfaces a cable probe uses: Ethernet NICs of the fabric, in the inventory's order, with or
// without carrier. Left out is what has no socket of its own: VLANs and bonds (their frames are those of the NIC below,
// which is in the list), virtual functions and their representors.
func CableNICs(inv Inventory) []CableNIC {
	var nics []CableNIC
	for _, n := range inv.NICs {
		if !inv.FabricNIC(n) || n.Loopback || len(n.MAC) != len("02:00:00:00:00:00") || strings.HasPrefix(n.PortName, "pf") {
			continue // an InfiniBand interface has a longer address
		}
		switch n.Kind {
		case "vlan", "bond", "team", "bridge", "macvlan", "ipvlan", "ipoib":
			continue
		}
		slot := n.Name
		if n.PCI != nil {
			slot = n.PCI.Slot()
		}
		skip := false
		for _, h := range inv.Devices {
			if !slices.Contains(h.Netdevs(), n.Name) {
				continue
			}
			skip = h.PhysFn != nil || h.LinkLayer == LayerInfiniBand
			slot = h.Name
			if h.PCI != nil {
				slot = h.PCI.Slot()
			}
			break
		}
		if !skip {
			nics = append(nics, CableNIC{NIC: n, Slot: slot})
		}
	}
	return nics
}

// WithCabling returns the inventory with what the cable probe knows, except about NICs that have lost their
// carrier: the inventory learns of that first.
func (inv Inventory) WithCabling(c Cabling) Inventory {
	live := func(name string) bool {
		n, ok := inv.NIC(name)
		return ok && n.HasCarrier()
	}
	c.Probed = filter(c.Probed, live)
	c.Sightings = filter(c.Sightings, func(s Sighting) bool { return live(s.NIC) })
	c.NonMembers = filter(c.NonMembers, func(s NonMember) bool { return live(s.NIC) })
	c.Pulled = filter(c.Pulled, func(s Sighting) bool { return !live(s.NIC) })
	inv.Cabling = &c
	return inv
}

// PulledSince returns the earlier cabling of those NICs that have no link now. Where addresses go with the carrier,
// nothing else would show that there was a cable.
func (inv Inventory) PulledSince(before *Cabling) []Sighting {
	if before == nil {
		return nil
	}
	dead := func(s Sighting) bool {
		n, ok := inv.NIC(s.NIC)
		return ok && !n.HasCarrier()
	}
	now := filter(before.Sightings, dead)
	old := filter(before.Pulled, func(s Sighting) bool {
		return dead(s) && !slices.ContainsFunc(now, func(n Sighting) bool { return n.NIC == s.NIC })
	})
	return append(old, now...)
}

func filter[T any](all []T, keep func(T) bool) []T {
	var kept []T
	for _, x := range all {
		if keep(x) {
			kept = append(kept, x)
		}
	}
	return kept
}

// Cables joins what the nodes' probes say: every pair of ports of which at least one hears the other, or did until
// its link went; each pair once, sorted. The carrier of the far end does not matter. A neighbour whose MAC differs
// from its node's is a clone of that node, and no cable leads to it.
func Cables(views []NodeView) []Cable {
	nodes := make(map[string]Inventory, len(views))
	for _, v := range views {
		nodes[v.ID] = v.Inventory
	}
	var cables []Cable
	for _, v := range views {
		if v.Inventory.Cabling == nil {
			continue
		}
		for _, s := range append(slices.Clone(v.Inventory.Cabling.Sightings), v.Inventory.stillPulled(v.ID, nodes)...) {
			if far, known := nodes[s.Peer.Node]; s.Clone || known && !far.hasNIC(s.Peer.NIC, s.Peer.MAC) {
				continue
			}
			a, b := CableEnd{Node: v.ID, Port: s.Slot}, CableEnd{Node: s.Peer.Node, Port: s.Peer.Slot}
			if compareEnds(a, b) > 0 {
				a, b = b, a
			}
			cables = append(cables, Cable{A: a, B: b})
		}
	}
	slices.SortStableFunc(cables, func(x, y Cable) int { return cmp.Or(compareEnds(x.A, y.A), compareEnds(x.B, y.B)) })
	return slices.Compact(cables)
}

// stillPulled drops the cables that were moved: their far end now hears a port that was not on the same wire.
func (inv Inventory) stillPulled(id string, nodes map[string]Inventory) []Sighting {
	was := map[CableEnd]map[CableEnd]bool{} // by our port, all that were on its wire
	for _, s := range inv.Cabling.Pulled {
		ours := CableEnd{Node: id, Port: s.Slot}
		if was[ours] == nil {
			was[ours] = map[CableEnd]bool{ours: true}
		}
		was[ours][CableEnd{Node: s.Peer.Node, Port: s.Peer.Slot}] = true
	}
	return filter(inv.Cabling.Pulled, func(s Sighting) bool {
		far := nodes[s.Peer.Node].Cabling
		return far == nil || !slices.ContainsFunc(far.Sightings, func(f Sighting) bool {
			return f.Slot == s.Peer.Slot &&
				!was[CableEnd{Node: id, Port: s.Slot}][CableEnd{Node: f.Peer.Node, Port: f.Peer.Slot}]
		})
	})
}

func compareEnds(a, b CableEnd) int {
	return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Port, b.Port))
}

// hasNIC reports whether the inventory allows for an interface of that name and MAC. One that it does not list was
// renamed or hot-plugged a moment ago.
func (inv Inventory) hasNIC(name, mac string) bool {
	n, ok := inv.NIC(name)
	return !ok || n.MAC == mac
}

// NonMembers says for each node's ports, by node id and slot, which host outside the cluster was heard there, as
// RoleSettings takes it. A host that the probe does not hear, but whose MAC belongs to a known node, is a member
// whose agent does not run.
func NonMembers(views []NodeView) map[string]map[string]string {
	members := map[string]bool{}
	for _, v := range views {
		for _, n := range v.Inventory.NICs {
			members[n.MAC] = true
		}
	}
	found := map[string]map[string]string{}
	for _, v := range views {
		if v.Inventory.Cabling == nil {
			continue
		}
		for _, s := range v.Inventory.Cabling.NonMembers {
			if members[s.MAC] || found[v.ID][s.Slot] != "" {
				continue
			}
			if found[v.ID] == nil {
				found[v.ID] = map[string]string{}
			}
			found[v.ID][s.Slot] = fmt.Sprintf("the host %s (%s on %s)", s.MAC, s.Heard, s.NIC)
		}
	}
	return found
}
