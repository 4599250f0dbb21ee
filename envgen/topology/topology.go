// Package topology decides what is cabled to what: from the inventories of a cluster's nodes and what the cable
// probe saw it derives an envgen.Topology - the role of each port, the links, the shape they form, the subnets in
// which devices reach one another, the rank order that follows - and finds the faults in it. It also draws the
// result.
//
// It must not read anything (files, sockets, the clock), must not start or change anything, must not recognise
// hardware by its name, and must not assume a path that neither a cable nor an address shows. The same nodes and
// cables in any order give the same topology; removing a cable never adds a path.
//
// Therefore roles, and whether a port's cables or its addresses count, are properties of the port alone and depend
// on no cable: cables only merge sets of ports, and a path is two ends of one set in one subnet. So a duplicate
// address spoils a lane (Lane.Spoilt) but separates no other ends, a host outside the cluster comes in as
// Input.NonMembers, and "some cable was seen" decides nothing. property_test.go checks this for random clusters.
//
// Each fault is reported once, where it can be repaired. An error means that a job fails, hangs or runs without the
// fabric that it asked for; a warning costs speed or will cause trouble later; the severity depends on which paths
// are left.
package topology

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sparkrun/sparkrun/envgen"
)

// Input is what is known of a cluster at one moment.
type Input struct {
	// Nodes are the members, in any order.
	Nodes []Node
	// Cables are what the probe saw, in any order, each as often as it was reported. A cable to a node that is not
	// among Nodes (it left, or its inventory has not arrived yet) joins nothing and is named in the findings.
	Cables []envgen.Cable
	// NonMembers says, by node id and slot, which host outside the cluster was seen behind a port. Such a port
	// belongs to a LAN unless FabricPorts names it.
	NonMembers map[string]map[string]string
}

// Observed is the input that the nodes themselves give: their inventories, what their users declared and what their
// probes hear. The caller adds counters and measurements.
func Observed(views []envgen.NodeView) Input {
	in := Input{Cables: envgen.Cables(views), NonMembers: envgen.NonMembers(views)}
	for _, v := range views {
		in.Nodes = append(in.Nodes,
			Node{ID: v.ID, Host: v.Host, Inventory: v.Inventory, Mgmt: v.Mgmt, FabricPorts: v.Inventory.FabricPorts})
	}
	return in
}

// Node is one member of the cluster.
type Node struct {
	// ID is the node's unique identity, Host its name for people and for the order of ranks.
	ID   string
	Host string
	// Inventory is the node's hardware. Its Cabling says on which NICs a probe listens: between two such ports a
	// cable that was not seen does not exist, whatever the addresses say.
	Inventory envgen.Inventory
	// Mgmt is the address by which members talk to the node; invalid where it has none.
	Mgmt netip.Addr
	// MgmtSubnet is management's network; invalid means the one in which the inventory has Mgmt.
	MgmtSubnet netip.Prefix
	// FabricPorts are the names (see envgen.PortsByName) given by --fabric-port: those ports are the fabric and no
	// others. Empty leaves it to the rules.
	FabricPorts []string
	// Counters are what the node's devices counted lately; with nil no rule uses them.
	Counters []envgen.Counters
	// Measured are bandwidths found by tests; with nil no rule uses them.
	Measured []envgen.Measurement
}

// Derive works out the topology and its findings. It fails only where two nodes have the same id.
func Derive(in Input) (envgen.Topology, error) {
	w, err := survey(in)
	if err != nil {
		return envgen.Topology{}, err
	}
	t := envgen.Topology{}
	for _, h := range w.hosts {
		t.Nodes = append(t.Nodes, h.state)
	}
	w.join(in.Cables)
	t.Links, t.Lanes = w.links, w.lanes
	w.shape(&t)
	meeting, err := t.Meet(w.views())
	if err == nil {
		for i, e := range meeting.Entries {
			n := &t.Nodes[i]
			n.Network, n.Addr, n.NIC = meeting.Kind, e.Addr, e.NIC
		}
	}
	w.whole = err == nil && len(meeting.Entries[0].Paths) > 0
	t.Findings = check(w, t)
	return t, nil
}

// world is the input, sorted and indexed.
type world struct {
	hosts []*host
	// ports are those of all hosts, in the order of hosts and their ports: the index identifies a port.
	ports []*port
	byEnd map[envgen.PortEnd]*port
	// links and lanes are those of the topology; linkOf is the index of each port's live link, by port, -1
	// without.
	links  []envgen.Link
	lanes  []envgen.Lane
	linkOf []int
	// lost are cables with an end at an unknown node or port.
	lost []envgen.Cable
	// dead are the ports of cables without a link, by port.
	dead map[int]bool
	// whole is true where a job on all nodes has RoCE devices for each peer.
	whole bool
}

type host struct {
	Node
	at     int // index in world.hosts
	state  envgen.TopologyNode
	ports  []*port
	byName map[string]int
	mgmt   netip.Prefix // management's network; invalid where unknown
}

type port struct {
	envgen.Port
	id      int // index in world.ports
	host    *host
	role    envgen.Role
	why     string
	other   string // a host that is no member, heard on it; empty: none
	live    bool
	probed  bool // a probe listens on it
	devices []device
}

// device is one twin with its interfaces.
type device struct {
	envgen.HCA
	nic    envgen.NIC // the zero NIC where hasNIC is false
	hasNIC bool
	// addrs are the IPv4 addresses of all interfaces the device serves.
	addrs []netip.Prefix
	// paths are its usable addresses; why says what is missing where there are none.
	paths []envgen.Path
	why   string
}

// survey sorts nodes and ports.
func survey(in Input) (*world, error) {
	w := &world{byEnd: map[envgen.PortEnd]*port{}, dead: map[int]bool{}}
	nodes := slices.Clone(in.Nodes)
	slices.SortStableFunc(nodes,
		func(a, b Node) int { return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.ID, b.ID)) })
	seen := map[string]string{}
	for i, n := range nodes {
		if other, dup := seen[n.ID]; dup {
			return nil, fmt.Errorf("derive topology: %s and %s have the same id %s", other, n.Host, n.ID)
		}
		seen[n.ID] = n.Host
		w.add(i, n, in.NonMembers[n.ID])
	}
	return w, nil
}

func (w *world) add(at int, n Node, nonMembers map[string]string) {
	n.Mgmt = n.Mgmt.Unmap()
	h := &host{Node: n, at: at}
	ports := envgen.Ports(n.Inventory)
	h.byName = envgen.PortsByName(ports)
	settings := envgen.RoleSettings{Mgmt: n.Mgmt, MgmtSubnet: n.MgmtSubnet, FabricPorts: n.FabricPorts,
		NonMembers: nonMembers}
	roles, why := envgen.Roles(n.Inventory, ports, settings)
	for i, p := range ports {
		q := &port{Port: p, id: len(w.ports), host: h, role: roles[i], why: why[i], other: nonMembers[p.Slot],
			live: p.Live(n.Inventory)}
		for _, hca := range p.Twins {
			q.devices = append(q.devices, newDevice(n.Inventory, p, hca))
			// The twins share the wire: a probe on one of them hears for both.
			if c := n.Inventory.Cabling; c != nil && slices.Contains(c.Probed, hca.Netdev) {
				q.probed = true
			}
		}
		h.ports = append(h.ports, q)
		w.ports = append(w.ports, q)
		w.byEnd[envgen.PortEnd{Node: n.ID, Slot: p.Slot}] = q
	}
	h.mgmt = n.MgmtSubnet.Masked()
	nic, ok := n.Inventory.Holder(n.Mgmt)
	h.state = envgen.TopologyNode{ID: n.ID, Host: n.Host, Mgmt: n.Mgmt}
	if ok {
		h.state.MgmtNIC = nic.Name
		for _, p := range nic.Addresses {
			if p.Addr() == n.Mgmt && !h.mgmt.IsValid() && !n.Inventory.FabricNIC(nic) {
				h.mgmt = p.Masked()
			}
		}
	}
	for _, p := range h.ports {
		h.state.Ports = append(h.state.Ports, p.state())
	}
	w.hosts = append(w.hosts, h)
}

func newDevice(inv envgen.Inventory, p envgen.Port, hca envgen.HCA) device {
	d := device{HCA: hca}
	d.nic, d.hasNIC = inv.NIC(hca.Netdev)
	for _, name := range hca.Netdevs() {
		nic, _ := inv.NIC(name)
		for _, a := range nic.Addresses {
			if a.Addr().Is4() && !slices.Contains(d.addrs, a) {
				d.addrs = append(d.addrs, a)
			}
		}
	}
	d.paths, d.why = envgen.DevicePaths(inv, p, hca)
	return d
}

func (p *port) state() envgen.PortState {
	s := envgen.PortState{Number: p.Number, Slot: p.Slot, Role: p.role, Why: p.why, Live: p.live}
	for _, d := range p.devices {
		ds := envgen.DeviceState{HCA: d.Name, PCI: d.PCI, State: d.State, Addresses: d.addrs}
		if d.hasNIC {
			ds.NIC, ds.Up, ds.Carrier, ds.MTU, ds.SpeedMbps = d.nic.Name, d.nic.Up, d.nic.Carrier, new(d.nic.MTU),
				d.nic.SpeedMbps
		}
		s.Devices = append(s.Devices, ds)
	}
	return s
}

// speed is the lowest speed of the port's links; nil where none is known.
func (p *port) speed() *int {
	var lowest *int
	for _, d := range p.devices {
		if s := d.nic.SpeedMbps; s != nil && (lowest == nil || *s < *lowest) {
			lowest = s
		}
	}
	return lowest
}

// views are the nodes as a job on all of them would see them, in the order of the hosts.
func (w *world) views() []envgen.NodeView {
	var views []envgen.NodeView
	for _, h := range w.hosts {
		views = append(views, envgen.NodeView{ID: h.ID, Host: h.Host, Mgmt: h.Mgmt, Inventory: h.Inventory})
	}
	return views
}
