// Package envgen decides what a node's network hardware means for a distributed job: which NICs are which, how
// the machines of a job can meet, and which environment variables follow for a rank on this node. It holds the
// types (Inventory, Meeting, Var) and pure rules over them; the same input always gives the same output, in the
// same order. The variables of every job are in env.go, those of a ring in ring.go.
//
// It must not read files, sockets or the environment, must not know about jobs, ranks' programs or leaders, and
// must never recognise hardware by its name: udev and users change names.
package envgen

import (
	"net/netip"
	"slices"
)

// Inventory is what one node's network hardware was at one moment. Absent facts are nil or empty, never 0.
// It travels between nodes (JSON or CBOR) as it is.
type Inventory struct {
	// Host is the node's hostname.
	Host string `json:"host"`
	// Devices are the RDMA devices, by PCI address; those without one come last, by name.
	Devices []HCA `json:"devices"`
	// NICs are the network interfaces of the node's network namespace, in the kernel's order of creation.
	NICs []NIC `json:"nics"`
	// Cabling is what the node's cable probe hears; nil where none runs.
	Cabling *Cabling `json:"cabling,omitempty"`
	// FabricPorts are the ports that the node's user declared to be the fabric (--fabric-port), by any of their
	// names (see PortsByName): those and no others are. Empty leaves it to the rules. A name may not match any port
	// yet.
	FabricPorts []string `json:"fabric_ports,omitempty"`
}

// States and link layers as the kernel spells them in ports/N/state, phys_state and link_layer.
const (
	StateActive       = "ACTIVE"
	StateDown         = "DOWN"
	LayerEthernet     = "Ethernet"
	LayerInfiniBand   = "InfiniBand"
	GIDTypeRoCEv2     = "RoCE v2"
	GIDTypeIBorRoCEv1 = "IB/RoCE v1"
)

// JumboMTU in bytes gives RoCE its largest own MTU, 4096; 1500 gives 1024 and costs 10-15 % of the bandwidth.
const JumboMTU = 9000

// VendorMellanox is the PCI vendor id of every ConnectX, as sysfs writes it.
const VendorMellanox = "0x15b3"

// HCA is one RDMA device with its only port (mlx5 and rxe devices have one port each, number 1). A physical
// socket of a GB10 machine is two of them, see Ports.
type HCA struct {
	// Name is the RDMA device's name, such as rocep1s0f0 or mlx5_0. It identifies the device only within this
	// inventory.
	Name string `json:"name"`
	// PCI is nil for a software device (rxe, siw).
	PCI *PCIAddress `json:"pci,omitempty"`
	// PhysFn is the address of the physical function, on a virtual function seen from its host.
	PhysFn *PCIAddress `json:"phys_fn,omitempty"`
	// NodeGUID and SysImageGUID are written as in sysfs: 4cbb:4703:002e:bf42.
	NodeGUID     string `json:"node_guid,omitempty"`
	SysImageGUID string `json:"sys_image_guid,omitempty"`
	// Firmware is fw_ver, such as 28.45.4028.
	Firmware string `json:"firmware,omitempty"`
	// Type is hca_type, such as MT4129 (a ConnectX-7).
	Type string `json:"hca_type,omitempty"`
	// State is the logical state: ACTIVE, DOWN, INIT, ARMED, ...
	State string `json:"state,omitempty"`
	// PhysState is the physical state: LinkUp, Polling, Disabled, ...
	PhysState string `json:"phys_state,omitempty"`
	// RateMbps is the port's signalling rate in Mb/s. A port without a link says 40000: use it only when ACTIVE.
	RateMbps *int `json:"rate_mbps,omitempty"`
	// LinkLayer is Ethernet (then the device speaks RoCE) or InfiniBand.
	LinkLayer string `json:"link_layer,omitempty"`
	// Netdev is the interface beneath the port; empty where there is none.
	Netdev string `json:"netdev,omitempty"`
	// GIDs are the filled rows of the port's GID table, by index.
	GIDs []GID `json:"gids,omitempty"`
	// PCIeGTps is the trained PCIe speed in GT/s a lane (a healthy GB10: 32), PCIeLanes the trained width (4).
	PCIeGTps  *float64 `json:"pcie_gtps,omitempty"`
	PCIeLanes *int     `json:"pcie_lanes,omitempty"`
}

// Active reports whether the port can carry traffic.
func (h HCA) Active() bool { return h.State == StateActive }

// RoCE reports whether the device speaks RDMA over Ethernet.
func (h HCA) RoCE() bool { return h.LinkLayer == LayerEthernet }

// Netdevs are all interfaces the device serves: its own and those of its GID rows (VLANs, a bond), in that order.
func (h HCA) Netdevs() []string {
	var names []string
	if h.Netdev != "" {
		names = append(names, h.Netdev)
	}
	for _, g := range h.GIDs {
		if g.Netdev != "" && !slices.Contains(names, g.Netdev) {
			names = append(names, g.Netdev)
		}
	}
	return names
}

// GID is one filled row of a GID table.
type GID struct {
	// Index changes when addresses come and go: it must not be remembered.
	Index int `json:"index"`
	// Type is "RoCE v2" or "IB/RoCE v1".
	Type string `json:"type"`
	// Addr is the row's value as in the table; an IPv4 address is ::ffff:a.b.c.d.
	Addr netip.Addr `json:"addr"`
	// Netdev is the interface the address belongs to, such as a VLAN above the device's own.
	Netdev string `json:"netdev,omitempty"`
}

// NIC is one network interface.
type NIC struct {
	Name string `json:"name"`
	// PCI is nil where the interface is no PCI function (USB, virtual).
	PCI *PCIAddress `json:"pci,omitempty"`
	// PCIVendor is the vendor id as sysfs writes it: 0x15b3.
	PCIVendor string `json:"pci_vendor,omitempty"`
	// PortName is phys_port_name: p0, p1, or pf0vf1 for a representor.
	PortName string `json:"port_name,omitempty"`
	MAC      string `json:"mac,omitempty"`
	// MTU is in bytes.
	MTU int `json:"mtu"`
	// SpeedMbps is nil while there is no link or the driver does not say.
	SpeedMbps *int `json:"speed_mbps,omitempty"`
	// Up is the administrative state (ip link set up).
	Up bool `json:"up"`
	// Carrier is nil while the interface is set down, since it is not known then.
	Carrier *bool `json:"carrier,omitempty"`
	// OperState is up, down, unknown, dormant, ... (RFC 2863).
	OperState string `json:"operstate,omitempty"`
	// Addresses are in the kernel's order: primary before secondary. Tentative and temporary IPv6 ones are left out.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// Kind is the kernel's link kind: device, veth, bridge, bond, vlan, ...
	Kind string `json:"kind,omitempty"`
	// Physical is true where sysfs links the interface to a device: hardware, or a hypervisor's idea of it.
	Physical bool `json:"physical"`
	Wireless bool `json:"wireless,omitempty"`
	Loopback bool `json:"loopback,omitempty"`
	// DefaultRoute is true where the main table has a default route (IPv4 or IPv6) over the interface.
	DefaultRoute bool `json:"default_route,omitempty"`
}

// HasCarrier reports whether the link is known to be there.
func (n NIC) HasCarrier() bool { return n.Carrier != nil && *n.Carrier }

// prefixOf returns the prefix with which the interface holds addr; lo holds all of 127/8.
func (n NIC) prefixOf(addr netip.Addr) (netip.Prefix, bool) {
	for _, p := range n.Addresses {
		if p.Addr() == addr || n.Loopback && addr.Is4() && p.Contains(addr) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// NIC returns the interface of that name.
func (inv Inventory) NIC(name string) (NIC, bool) {
	for _, n := range inv.NICs {
		if n.Name == name {
			return n, true
		}
	}
	return NIC{}, false
}

// Device returns the RDMA device of that name.
func (inv Inventory) Device(name string) (HCA, bool) {
	for _, h := range inv.Devices {
		if h.Name == name {
			return h, true
		}
	}
	return HCA{}, false
}

// Holder returns the first interface that holds addr.
func (inv Inventory) Holder(addr netip.Addr) (NIC, bool) {
	for _, n := range inv.NICs {
		if _, ok := n.prefixOf(addr); ok {
			return n, true
		}
	}
	return NIC{}, false
}

// FabricNIC reports whether the interface is a ConnectX or has an RDMA device: such NICs are for the fabric, and
// management avoids them.
func (inv Inventory) FabricNIC(n NIC) bool {
	if n.PCIVendor == VendorMellanox {
		return true // also before its RDMA driver is loaded
	}
	for _, h := range inv.Devices {
		if slices.Contains(h.Netdevs(), n.Name) {
			return true
		}
	}
	return false
}
