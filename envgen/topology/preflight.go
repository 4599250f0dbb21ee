package topology

import (
	"net/netip"
	"slices"

	"github.com/sparkrun/sparkrun/envgen"
)

// bearing is what a finding means for one job.
type bearing int

const (
	// bearsNot is no matter of a launch: it costs speed, or nothing.
	bearsNot bearing = 0
	// bearsLoss stops a job which it leaves without RoCE between its nodes; one that has another way is only warned.
	bearsLoss bearing = 1
	// bearsHang stops a job that uses what is wrong: it would start, and hang in its first connection.
	bearsHang bearing = 2
)

// bearings is the preflight's table; every code is in it. Hang: NCCL would hang in its first connection, where the job
// uses the ring, the order of devices or the port. Loss: refused where the job is left without RoCE between all its
// nodes. None: it costs speed, as a lower MTU does (a queue pair takes the lower one of its ends), or says what is so.
// A finding counts only where it lies between nodes of the job.
var bearings = map[string]bearing{
	CodeNoRDMADevice:       bearsLoss,
	CodeFabricPortUnknown:  bearsLoss,
	CodeManagementOnFabric: bearsNot,
	CodeManagementWireless: bearsNot,
	CodeDuplicateHost:      bearsNot,
	CodeProbeTrouble:       bearsNot,
	CodeClonedNode:         bearsLoss,
	CodePortLAN:            bearsNot,
	CodeNoLink:             bearsLoss,
	CodeTwinMissing:        bearsNot,
	CodeTwinDown:           bearsLoss,
	CodeCarrierNotActive:   bearsLoss,
	CodeNoInterface:        bearsLoss,
	CodeBondOnFabric:       bearsNot,
	CodeMTULow:             bearsNot,
	CodeLinkSpeed:          bearsNot,
	CodePCIeDegraded:       bearsNot,
	CodeLinkErrors:         bearsNot,
	CodeRetransmits:        bearsNot,
	CodeLinkDegraded:       bearsNot,
	CodeNoIPv4:             bearsLoss,
	CodeSeveralIPv4:        bearsNot,
	CodeNoRoCEv2GID:        bearsLoss,
	CodeTwinsOneSubnet:     bearsNot,
	CodePortsOneSubnet:     bearsHang,
	CodeSubnetOnTwoLinks:   bearsLoss,
	CodeDuplicateAddress:   bearsLoss,
	CodeOverlapsBridge:     bearsHang | bearsLoss,
	CodeOverlapsManagement: bearsHang | bearsLoss,
	CodeOverlapsOther:      bearsNot,
	CodePeerNotInSubnet:    bearsLoss,
	CodePrefixUnequal:      bearsLoss,
	CodeSubnetOrder:        bearsHang,
	CodeLinkLocalAmbiguous: bearsLoss,
	CodeRingPrefixLengths:  bearsNot,
	CodeMTUUnequal:         bearsNot,
	CodeGIDIndexUnlike:     bearsNot,
	CodeCableSwapped:       bearsLoss,
	CodeCableLoop:          bearsLoss,
	CodeCableUnknownEnd:    bearsNot,
	CodeSecondCable:        bearsNot,
	CodeNoNeighbour:        bearsLoss,
	CodeRingMiswired:       bearsHang,
	CodeChain:              bearsNot,
	CodeIslands:            bearsNot,
	CodeNotJoined:          bearsNot,
	CodeFirmwareUnequal:    bearsNot,
}

// Preflight judges the topology's findings for a job on some of its nodes, of which entries says where they meet:
// with errors the job would hang, or run without the fabric that was evidently meant for it; warnings it should know.
// What lies between other nodes is left out, and a job on one node needs no fabric. Where no fabric ever joined the
// nodes nothing is wrong: they meet on management.
func Preflight(t envgen.Topology, nodes []envgen.NodeView, entries []envgen.Entry) []envgen.Finding {
	if len(nodes) < 2 {
		return nil
	}
	j := newJob(t, nodes, entries)
	var found []envgen.Finding
	for _, f := range t.Findings {
		b := bearings[f.Code]
		hangs, loses := b&bearsHang != 0 && j.uses(f), b&bearsLoss != 0 && j.between(f)
		switch {
		case hangs, loses && !j.joined:
			f.Severity = envgen.SeverityError
		case loses:
			f.Severity = envgen.SeverityWarning
		default:
			continue
		}
		found = append(found, f)
	}
	slices.SortStableFunc(found, func(a, b envgen.Finding) int { return a.Severity.Rank() - b.Severity.Rank() })
	return found
}

// job is the chosen part of a topology.
type job struct {
	t       envgen.Topology
	nodes   map[string]envgen.NodeView
	entries map[string]envgen.Entry
	// joined is true where RDMA reaches from each node to every other.
	joined bool
}

func newJob(t envgen.Topology, nodes []envgen.NodeView, entries []envgen.Entry) job {
	j := job{t: t, nodes: map[string]envgen.NodeView{}, entries: map[string]envgen.Entry{}, joined: true}
	for _, n := range nodes {
		j.nodes[n.ID] = n
	}
	for _, e := range entries {
		j.entries[e.ID] = e
		j.joined = j.joined && (len(e.Paths) > 0 || infiniBand(j.nodes[e.ID].Inventory))
	}
	return j
}

// infiniBand reports whether the node has a native InfiniBand port that works: it finds its way without addresses.
func infiniBand(inv envgen.Inventory) bool {
	return slices.ContainsFunc(inv.Devices,
		func(h envgen.HCA) bool { return h.Active() && h.LinkLayer == envgen.LayerInfiniBand })
}

// uses reports whether the job would go where the finding says that something hangs.
func (j job) uses(f envgen.Finding) bool {
	e, chosen := j.entries[f.Node]
	if !chosen || len(e.Paths) == 0 {
		return false
	}
	switch f.Code {
	case CodeRingMiswired:
		return e.Shape == envgen.ShapeRing
	case CodeSubnetOrder:
		return j.orderDiffers()
	case CodePortsOneSubnet:
		// Where both ports are on one link it is a warning, and harmless.
		return f.Severity == envgen.SeverityError && j.usesPort(e, f.Port)
	}
	return slices.ContainsFunc(e.Paths, func(p envgen.Path) bool { return p.HCA == f.Device || p.NIC == f.Device })
}

func (j job) usesPort(e envgen.Entry, slot string) bool {
	return slices.ContainsFunc(e.Paths, func(p envgen.Path) bool { return p.Slot == slot })
}

// orderDiffers reports whether two nodes of the job have its subnets on their devices in different orders.
// Link-local subnets are all one, and say nothing: then it may be.
func (j job) orderDiffers() bool {
	var first []netip.Prefix
	for _, e := range j.entries {
		var order []netip.Prefix
		for _, p := range e.Paths {
			order = append(order, p.Subnet)
			if p.Subnet.Overlaps(linkLocal) && len(e.Paths) > 1 {
				return true
			}
		}
		if first == nil {
			first = order
		}
		if !slices.Equal(order, first) {
			return true
		}
	}
	return false
}

// between reports whether what is wrong lies between nodes of the job. A fault of a node as a whole does; one of a
// port does where the port leads, or by its addresses should lead, to another node of the job. A port of which
// nothing says where it leads counts where another node of the job has such a port too.
func (j job) between(f envgen.Finding) bool {
	v, chosen := j.nodes[f.Node]
	if f.Code == CodeCableSwapped {
		chosen = true // it is told where the plug is, and the address may be another node's
	}
	if !chosen {
		return false
	}
	if f.Port == "" {
		return meant(v.Inventory) // a machine without a ConnectX was never meant for the fabric
	}
	ids := j.partners(envgen.PortEnd{Node: f.Node, Slot: f.Port})
	if len(ids) == 0 {
		return slices.ContainsFunc(j.t.Nodes, func(n envgen.TopologyNode) bool {
			return n.ID != f.Node && j.has(n.ID) && slices.ContainsFunc(n.Ports, func(p envgen.PortState) bool {
				return evident(p) && len(j.partners(envgen.PortEnd{Node: n.ID, Slot: p.Slot})) == 0
			})
		})
	}
	if j.has(f.Node) {
		ids = append(ids, f.Node)
	}
	return len(slices.DeleteFunc(ids, func(id string) bool { return !j.has(id) })) > 1
}

func (j job) has(id string) bool {
	_, ok := j.nodes[id]
	return ok
}

// partners are the other nodes that a port leads to by a cable, one that is dead included, or should by its addresses.
func (j job) partners(end envgen.PortEnd) []string {
	var ids []string
	add := func(id string) {
		if id != end.Node && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	for _, l := range j.t.Links {
		if slices.Contains(l.Ends, end) {
			for _, e := range l.Ends {
				add(e.Node)
			}
		}
	}
	n, _ := j.t.Node(end.Node)
	own, _ := n.Port(end.Slot)
	for _, n := range j.t.Nodes {
		for _, p := range n.Ports {
			if p.Role != envgen.RoleLAN && overlap(own, p) {
				add(n.ID)
			}
		}
	}
	return ids
}

func overlap(a, b envgen.PortState) bool {
	for _, d := range a.Devices {
		for _, e := range b.Devices {
			for _, x := range d.Addresses {
				if slices.ContainsFunc(e.Addresses, x.Overlaps) {
					return true
				}
			}
		}
	}
	return false
}

// evident reports whether somebody meant the port for the fabric: it has a link or an address.
func evident(p envgen.PortState) bool {
	return p.Role != envgen.RoleLAN &&
		(p.Live || slices.ContainsFunc(p.Devices, func(d envgen.DeviceState) bool { return len(d.Addresses) > 0 }))
}

// meant reports whether a ConnectX without its RDMA driver has a link or an address, and is not the LAN's: one that
// carries the default route, itself or below a bond or a hypervisor's interface, which have its MAC.
func meant(inv envgen.Inventory) bool {
	lan := func(n envgen.NIC) bool {
		return slices.ContainsFunc(inv.NICs, func(o envgen.NIC) bool {
			return o.DefaultRoute && (o.Name == n.Name || n.MAC != "" && o.MAC == n.MAC)
		})
	}
	return slices.ContainsFunc(inv.NICs, func(n envgen.NIC) bool {
		return n.PCIVendor == envgen.VendorMellanox && (n.HasCarrier() || len(n.Addresses) > 0) && !lan(n)
	})
}
