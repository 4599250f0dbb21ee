package ibtest

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/topology"
	"github.com/sparkrun/sparkrun/workloads/nettest"
)

// A cluster of made-up Sparks: their ports cabled as told, with addresses on both twins.
type cluster struct {
	nodes  []topology.Node
	cables []envgen.Cable
}

var twinsOf = [2][2]struct{ hca, nic, pci string }{
	{{"rocep1s0f0", "enp1s0f0np0", "0000:01:00.0"}, {"roceP2p1s0f0", "enP2p1s0f0np0", "0002:01:00.0"}},
	{{"rocep1s0f1", "enp1s0f1np1", "0000:01:00.1"}, {"roceP2p1s0f1", "enP2p1s0f1np1", "0002:01:00.1"}},
}

func newCluster(t *testing.T, n int) *cluster {
	t.Helper()
	c := &cluster{}
	for i := range n {
		host := fmt.Sprintf("spark%d", i+1)
		mgmt := netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
		inv := envgen.Inventory{Host: host, NICs: []envgen.NIC{{
			Name: "enP7s7", MTU: 1500, Up: true, Carrier: new(true), Kind: "device", Physical: true,
			Addresses: []netip.Prefix{netip.PrefixFrom(mgmt, 24)},
		}}}
		for _, twins := range twinsOf {
			for _, d := range twins {
				addr, err := envgen.ParsePCIAddress(d.pci)
				if err != nil {
					t.Fatal(err)
				}
				inv.Devices = append(inv.Devices, envgen.HCA{
					Name: d.hca, PCI: &addr, LinkLayer: envgen.LayerEthernet, Netdev: d.nic, State: envgen.StateDown,
					PhysState: "Polling",
					PCIeGTps:  new(32.0), PCIeLanes: new(4),
				})
				inv.NICs = append(inv.NICs, envgen.NIC{
					Name: d.nic, PCI: &addr, PCIVendor: envgen.VendorMellanox, MTU: 9000, Up: true,
					Carrier: new(false), Kind: "device", Physical: true,
				})
			}
		}
		c.nodes = append(c.nodes, topology.Node{ID: "id-" + host, Host: host, Mgmt: mgmt, Inventory: inv})
	}
	return c
}

// plug gives a port a link, and its twins addresses in the subnets 2*net and 2*net+1.
func (c *cluster) plug(node, port, net int) {
	for twin := range 2 {
		h, n := c.device(node, port, twin)
		ip := netip.AddrFrom4([4]byte{192, 168, byte(100 + 2*net + twin), byte(node + 11)})
		h.State, h.PhysState = envgen.StateActive, "LinkUp"
		h.GIDs = []envgen.GID{{Index: 3, Type: envgen.GIDTypeRoCEv2, Addr: netip.AddrFrom16(ip.As16()), Netdev: n.Name}}
		n.Carrier, n.SpeedMbps = new(true), new(200000)
		n.Addresses = []netip.Prefix{netip.PrefixFrom(ip, 24)}
	}
}

// cable joins two ports. The probe has seen it.
func (c *cluster) cable(a, pa, b, pb, net int) *cluster {
	c.plug(a, pa, net)
	c.plug(b, pb, net)
	c.cables = append(c.cables, envgen.Cable{
		A: envgen.CableEnd{Node: c.nodes[a].ID, Port: twinsOf[pa][0].nic},
		B: envgen.CableEnd{Node: c.nodes[b].ID, Port: twinsOf[pb][0].nic},
	})
	return c
}

// onSwitch puts port 0 of all on one.
func (c *cluster) onSwitch() *cluster {
	for i := range c.nodes {
		c.plug(i, 0, 0)
		for j := range i {
			c.cables = append(c.cables, envgen.Cable{Via: "sw1",
				A: envgen.CableEnd{Node: c.nodes[j].ID, Port: twinsOf[0][0].nic},
				B: envgen.CableEnd{Node: c.nodes[i].ID, Port: twinsOf[0][0].nic}})
		}
	}
	return c
}

func (c *cluster) device(node, port, twin int) (*envgen.HCA, *envgen.NIC) {
	inv := &c.nodes[node].Inventory
	d := twinsOf[port][twin]
	var h *envgen.HCA
	var n *envgen.NIC
	for i := range inv.Devices {
		if inv.Devices[i].Name == d.hca {
			h = &inv.Devices[i]
		}
	}
	for i := range inv.NICs {
		if inv.NICs[i].Name == d.nic {
			n = &inv.NICs[i]
		}
	}
	return h, n
}

// with changes both twins of port 0 of the second node.
func (c *cluster) with(fn func(twin int, h *envgen.HCA, n *envgen.NIC)) *cluster {
	for twin := range 2 {
		h, n := c.device(1, 0, twin)
		fn(twin, h, n)
	}
	return c
}

func (c *cluster) setting(t *testing.T) (Setting, []string) {
	t.Helper()
	top, err := topology.Derive(topology.Input{Nodes: c.nodes, Cables: c.cables})
	if err != nil {
		t.Fatal(err)
	}
	s := Setting{Setting: nettest.Setting{Topology: top, Inventories: map[string]envgen.Inventory{}}}
	var ids []string
	for _, n := range c.nodes {
		ids = append(ids, n.ID)
		s.Inventories[n.ID] = n.Inventory
	}
	return s, ids
}

func (c *cluster) plan(t *testing.T, o Options) (Plan, Setting) {
	t.Helper()
	s, ids := c.setting(t)
	p, err := NewPlan(s.Topology, ids, o)
	if err != nil {
		t.Fatal(err)
	}
	return p, s
}

func pair(t *testing.T) *cluster { return newCluster(t, 2).cable(0, 0, 1, 0, 0) }

// ring: port 0 of each to port 1 of the next.
func ring(t *testing.T, n int) *cluster {
	c := newCluster(t, n)
	for i := range n {
		c.cable(i, 0, (i+1)%n, 1, i)
	}
	return c
}
