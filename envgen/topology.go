package envgen

import (
	"cmp"
	"net/netip"
	"slices"
)

// Cable is one report of the cable probe: frames from one port arrive at the other. The order of A and B means
// nothing, and the same cable may be reported once for each pair of twins and for each direction. Ports that hear
// one another through a switch are reported pair by pair.
type Cable struct {
	A CableEnd `json:"a"`
	B CableEnd `json:"b"`
	// Via names a switch between the ends, where something (LLDP) told its name; empty means nothing. Three ports
	// that hear one another have a switch between them in any case.
	Via string `json:"via,omitempty"`
}

// CableEnd is a port of a node.
type CableEnd struct {
	// Node is the node's id.
	Node string `json:"node"`
	// Port is any of the port's names, see PortsByName. The slot is best: interfaces may be renamed.
	Port string `json:"port"`
}

// Role says what a port is for.
type Role string

const (
	// RoleFabric is a port for jobs.
	RoleFabric Role = "fabric"
	// RoleLAN is a port that leads to hosts outside the cluster: jobs use no RDMA device of it unless the user
	// says so.
	RoleLAN Role = "lan"
	// RoleUnused is a port without a link, or one that --fabric-port leaves out.
	RoleUnused Role = "unused"
)

// Shape is how the fabric joins nodes.
type Shape string

const (
	// ShapeSingle is one node, which needs no fabric.
	ShapeSingle Shape = "single"
	// ShapePair is two nodes with one cable or two between them.
	ShapePair Shape = "pair"
	// ShapeSwitch is two nodes or more that all reach one another through one switched network, or several.
	ShapeSwitch Shape = "switch"
	// ShapeRing is three nodes or more, each cabled to two others, all in one circle.
	ShapeRing Shape = "ring"
	// ShapeChain is a ring with one cable missing: RoCE joins only neighbours, and NCCL cannot use it for
	// all.
	ShapeChain Shape = "chain"
	// ShapeMixed is a pair whose other ports serve a LAN, or direct cables together with a switch.
	ShapeMixed Shape = "mixed"
	// ShapeIslands is a cluster in which the fabric joins some nodes, but not all into one.
	ShapeIslands Shape = "islands"
	// ShapeUnknown is a cluster in which nothing shows that the fabric joins anyone.
	ShapeUnknown Shape = "unknown"
)

// Topology is how the fabric joins the nodes of a cluster, as their inventories and the cable probe show it at one
// moment. It is a complete value: it travels between nodes (JSON or CBOR) and is drawn and evaluated without
// anything else.
type Topology struct {
	Shape Shape `json:"shape"`
	// Why is a sentence for people.
	Why string `json:"why"`
	// Nodes are all nodes, by host name, then id.
	Nodes []TopologyNode `json:"nodes"`
	// Order is the ids of all nodes in the order in which ranks should go: along the ring from the lowest host name
	// towards its lower neighbour, along a chain from its lower end, else by host name.
	Order []string `json:"order"`
	// Groups are the sets of nodes that the fabric joins, each in rank order; a node alone is a group.
	Groups []Group `json:"groups"`
	// Links are what joins ports, cable by cable or switch by switch.
	Links []Link `json:"links,omitempty"`
	// Lanes are the subnets in which RDMA devices reach one another over a link.
	Lanes []Lane `json:"lanes,omitempty"`
	// Findings are the faults found, worst first.
	Findings []Finding `json:"findings,omitempty"`
}

// TopologyNode is one node of a topology.
type TopologyNode struct {
	ID   string `json:"id"`
	Host string `json:"host"`
	// Mgmt is the node's management address; invalid where it has none. MgmtNIC is its interface; empty where
	// the inventory has none.
	Mgmt    netip.Addr `json:"mgmt"`
	MgmtNIC string     `json:"mgmt_nic,omitempty"`
	// Network, Addr and NIC are where all the others reach this node, as Meet finds it for a job on all nodes;
	// empty where there is no such network.
	Network Network    `json:"network,omitempty"`
	Addr    netip.Addr `json:"addr"`
	NIC     string     `json:"nic,omitempty"`
	// Ports are in the order of the func Ports.
	Ports []PortState `json:"ports,omitempty"`
}

// PortState is one port of a node and what is known of it.
type PortState struct {
	// Number and Slot are those of the Port.
	Number *int   `json:"number,omitempty"`
	Slot   string `json:"slot"`
	Role   Role   `json:"role"`
	// Why says why the port has its role.
	Why string `json:"why"`
	// Live is true where a twin has a carrier or is ACTIVE: something is plugged in.
	Live bool `json:"live,omitempty"`
	// Devices are the port's twins: the first is the primary.
	Devices []DeviceState `json:"devices"`
}

// DeviceState is one twin of a port.
type DeviceState struct {
	HCA string      `json:"hca"`
	PCI *PCIAddress `json:"pci,omitempty"`
	// State is the RDMA device's: ACTIVE, DOWN, ...
	State string `json:"state,omitempty"`
	// NIC is the interface of the device; empty where the inventory has none, and then all below is absent too.
	NIC string `json:"nic,omitempty"`
	// Up and Carrier are the interface's.
	Up      bool  `json:"up,omitempty"`
	Carrier *bool `json:"carrier,omitempty"`
	// MTU is in bytes, SpeedMbps the link's; nil while there is no link.
	MTU       *int `json:"mtu,omitempty"`
	SpeedMbps *int `json:"speed_mbps,omitempty"`
	// Addresses are the IPv4 addresses of all interfaces the device serves.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
}

// Group is a set of nodes that links of role fabric join.
type Group struct {
	Shape Shape `json:"shape"`
	// Nodes are ids, in rank order.
	Nodes []string `json:"nodes"`
}

// Link joins ports: one cable, or a switch with all ports on it.
type Link struct {
	// Ends are two or more ports, by node (in the order of Topology.Nodes), then as its ports.
	Ends []PortEnd `json:"ends"`
	// Role is fabric where two ends or more are fabric ports, and only those are part of the topology's shape and
	// have lanes; other ends are only on the same switch.
	Role Role `json:"role"`
	// Seen is true where the cable probe saw the link, false where it follows only from addresses: then more than
	// two ends of two nodes may be several cables.
	Seen bool `json:"seen,omitempty"`
	// Switched is true where a switch lies between the ends; Via is its name, empty where it is not
	// known.
	Switched bool   `json:"switched,omitempty"`
	Via      string `json:"via,omitempty"`
	// Up is false for a cable that was seen but has no link at one of its ends now.
	Up bool `json:"up"`
	// SpeedMbps is the lowest of all ends; nil where none is known.
	SpeedMbps *int `json:"speed_mbps,omitempty"`
}

// PortEnd identifies a port of a node.
type PortEnd struct {
	Node string `json:"node"`
	Slot string `json:"slot"`
}

// Lane is a subnet over one link: every device of it reaches every other.
type Lane struct {
	// Link is an index into Topology.Links.
	Link   int          `json:"link"`
	Subnet netip.Prefix `json:"subnet"`
	// Ends are in the order of the link's ends, primary twins first.
	Ends []LaneEnd `json:"ends"`
	// Spoilt is true where an address occurs twice: no job may meet on this lane.
	Spoilt bool `json:"spoilt,omitempty"`
}

// LaneEnd is a node's device in a lane.
type LaneEnd struct {
	Node string `json:"node"`
	Path Path   `json:"path"`
}

// Joint is a pair of RDMA devices on different nodes that reach each other: both are in one subnet over one link.
type Joint struct {
	A LaneEnd `json:"a"`
	B LaneEnd `json:"b"`
}

// Node returns the node of that id.
func (t Topology) Node(id string) (TopologyNode, bool) {
	for _, n := range t.Nodes {
		if n.ID == id {
			return n, true
		}
	}
	return TopologyNode{}, false
}

// Port returns the port of that slot.
func (n TopologyNode) Port(slot string) (PortState, bool) {
	for _, p := range n.Ports {
		if p.Slot == slot {
			return p, true
		}
	}
	return PortState{}, false
}

// Joints returns every pair of devices that reach each other, lane by lane. Two ends with the same address do
// not.
func (t Topology) Joints() []Joint {
	var joints []Joint
	for _, l := range t.Lanes {
		for i, a := range l.Ends {
			for _, b := range l.Ends[i+1:] {
				if a.Node != b.Node && a.Path.Addr != b.Path.Addr {
					joints = append(joints, Joint{a, b})
				}
			}
		}
	}
	return joints
}

// Between returns the pairs of devices that join two nodes, a's first.
func (t Topology) Between(a, b string) []Joint {
	var joints []Joint
	for _, j := range t.Joints() {
		switch {
		case j.A.Node == a && j.B.Node == b:
			joints = append(joints, j)
		case j.A.Node == b && j.B.Node == a:
			joints = append(joints, Joint{j.B, j.A})
		}
	}
	return joints
}

// RankOrder returns the ids in the order in which ranks should go. Ids that the topology does not know come last,
// sorted.
func (t Topology) RankOrder(ids []string) []string {
	at := make(map[string]int, len(t.Order))
	for i, id := range t.Order {
		at[id] = i
	}
	place := func(id string) int {
		if i, ok := at[id]; ok {
			return i
		}
		return len(t.Order)
	}
	sorted := slices.Clone(ids)
	slices.SortStableFunc(sorted,
		func(a, b string) int { return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a, b)) })
	return sorted
}
