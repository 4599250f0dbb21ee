package topology

import (
	"net/netip"
	"slices"

	"github.com/sparkrun/sparkrun/envgen"
)

// impact is what a finding means for one job.
type impact int

const (
	// impactNone: it costs speed, or nothing.
	impactNone impact = 0
	// impactLoss stops a job that it leaves without RoCE between its nodes; a job with another path is only warned.
	impactLoss impact = 1
	// impactHang stops a job that uses the faulty part: it would start, and hang in its first
	// connection.
	impactHang impact = 2
)

// impacts is the preflight's table; it has every code. Hang: NCCL would hang in its first connection, if the job
// uses the ring, the order of devices or the port. Loss: refused if the job is left without RoCE between all its
// nodes. None: it costs speed, as a lower MTU does (a queue pair takes the lower one of its ends), or only informs.
// A finding counts only where it lies between nodes of the job.
var impacts = map[string]impact{
	CodeNoRDMADevice:       impactLoss,
	CodeFabricPortUnknown:  impactLoss,
	CodeManagementOnFabric: impactNone,
	CodeManagementWireless: impactNone,
	CodeDuplicateHost:      impactNone,
	CodeProbeTrouble:       impactNone,
	CodeClonedNode:         impactLoss,
	CodePortLAN:            impactNone,
	CodeStranger:           impactNone,
	CodeNoLink:             impactLoss,
	CodeTwinMissing:        impactNone,
	CodeTwinDown:           impactLoss,
	CodeCarrierNotActive:   impactLoss,
	CodeNoInterface:        impactLoss,
	CodeBondOnFabric:       impactNone,
	CodeMTULow:             impactNone,
	CodeLinkSpeed:          impactNone,
	CodePCIeDegraded:       impactNone,
	CodeLinkErrors:         impactNone,
	CodeRetransmits:        impactNone,
	CodeLinkDegraded:       impactNone,
	CodeNoIPv4:             impactLoss,
	CodeSeveralIPv4:        impactNone,
	CodeNoRoCEv2GID:        impactLoss,
	CodeTwinsOneSubnet:     impactNone,
	CodePortsOneSubnet:     impactHang,
	CodeSubnetOnTwoLinks:   impactLoss,
	CodeDuplicateAddress:   impactLoss,
	CodeOverlapsBridge:     impactHang | impactLoss,
	CodeOverlapsManagement: impactHang | impactLoss,
	CodeOverlapsOther:      impactNone,
	CodePeerNotInSubnet:    impactLoss,
	CodePrefixUnequal:      impactLoss,
	CodeSubnetOrder:        impactHang,
	CodeLinkLocalAmbiguous: impactLoss,
	CodeRingPrefixLengths:  impactNone,
	CodeMTUUnequal:         impactNone,
	CodeGIDIndexUnlike:     impactNone,
	CodeCableSwapped:       impactLoss,
	CodeCableLoop:          impactLoss,
	CodeCableUnknownEnd:    impactNone,
	CodeSecondCable:        impactNone,
	CodeNoNeighbour:        impactLoss,
	CodeRingMiswired:       impactHang,
	CodeChain:              impactNone,
	CodeIslands:            impactNone,
	CodeNotJoined:          impactNone,
	CodeStillLooking:       impactNone,
	CodeFirmwareUnequal:    impactNone,
}

// Preflight evaluates the topology's findings for a job on some of its nodes, of which entries says where they
// meet: errors with which the job would hang, or run without the fabric that was evidently meant for it, and
// warnings that it should know. What lies between other nodes is left out, and a job on one node needs no fabric.
// Where no fabric ever joined the nodes nothing is wrong: they meet on management.
func Preflight(t envgen.Topology, nodes []envgen.NodeView, entries []envgen.Entry) []envgen.Finding {
	if len(nodes) < 2 {
		return nil
	}
	j := newJob(t, nodes, entries)
	var found []envgen.Finding
	for _, f := range t.Findings {
		b := impacts[f.Code]
		hangs, loses := b&impactHang != 0 && j.uses(f), b&impactLoss != 0 && j.between(f)
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

// infiniBand reports whether the node has a working native InfiniBand port, which needs no addresses.
func infiniBand(inv envgen.Inventory) bool {
	return slices.ContainsFunc(inv.Devices,
		func(h envgen.HCA) bool { return h.Active() && h.LinkLayer == envgen.LayerInfiniBand })
}

// uses reports whether the job would use the part that hangs by the finding.
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
		// Where both ports are on one link the finding is a warning, and harmless.
		return f.Severity == envgen.SeverityError && j.usesPort(e, f.Port)
	}
	return slices.ContainsFunc(e.Paths, func(p envgen.Path) bool { return p.HCA == f.Device || p.NIC == f.Device })
}

func (j job) usesPort(e envgen.Entry, slot string) bool {
	return slices.ContainsFunc(e.Paths, func(p envgen.Path) bool { return p.Slot == slot })
}

// orderDiffers reports whether two nodes of the job have its subnets on their devices in different orders.
// Link-local subnets are all equal and show nothing: then the order may differ.
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

// between reports whether the fault lies between nodes of the job. A fault of a whole node does; one of a port
// does where the port leads, or by its addresses should lead, to another node of the job. A port of which nothing
// says where it leads counts where another node of the job has such a port too.
func (j job) between(f envgen.Finding) bool {
	v, chosen := j.nodes[f.Node]
	if f.Code == CodeCableSwapped || f.Code == CodeDuplicateAddress {
		chosen = true // the finding is where the plug or the address is, and the fault may be another node's
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

// partners are the other nodes to which a port leads by a cable, even a dead one, or should lead by its addresses.
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

// evident reports whether the port was evidently meant for the fabric: it has a link or an
// address.
func evident(p envgen.PortState) bool {
	return p.Role != envgen.RoleLAN &&
		(p.Live || slices.ContainsFunc(p.Devices, func(d envgen.DeviceState) bool { return len(d.Addresses) > 0 }))
}

// meant reports whether a ConnectX without its RDMA driver has a link or an address, and is not a LAN's: that one
// carries the default route, itself or below a bond or a hypervisor's interface, which has its MAC.
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
