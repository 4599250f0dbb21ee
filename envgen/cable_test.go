package envgen

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// cabled gives a machine's inventory what its probe hears, each as "NIC host NIC".
func cabled(inv Inventory, others []Inventory, sightings ...string) Inventory {
	var c Cabling
	slot := func(inv Inventory, nic string) (string, NIC) {
		for _, n := range CableNICs(inv) {
			if n.NIC.Name == nic {
				return n.Slot, n.NIC
			}
		}
		panic(inv.Host + " has no " + nic)
	}
	for _, text := range sightings {
		w := strings.Fields(text)
		for _, far := range others {
			if far.Host != w[1] {
				continue
			}
			mine, _ := slot(inv, w[0])
			theirs, nic := slot(far, w[2])
			c.Sightings = append(c.Sightings, Sighting{NIC: w[0], Slot: mine,
				Peer: Neighbour{Node: "id-" + far.Host, Host: far.Host, NIC: w[2], Slot: theirs, PCI: nic.PCI, MAC: nic.MAC}})
		}
	}
	return inv.WithCabling(c)
}

func withMACs(inv Inventory, last string) Inventory {
	for i := range inv.NICs {
		inv.NICs[i].MAC = "02:00:00:00:0" + string(rune('0'+i)) + ":" + last
	}
	return inv
}

func TestCableNICs(t *testing.T) {
	inv := withMACs(spark("a", "10.0.0.1/24", "192.168.1.1/24"), "01")
	inv.NICs = append(inv.NICs,
		NIC{Name: "vlan7", Kind: "vlan", MAC: inv.NICs[2].MAC},
		NIC{Name: "bond0", Kind: "bond", MAC: inv.NICs[2].MAC},
		NIC{Name: "slave", Kind: "device", MAC: "02:00:00:00:00:77", PCI: pci("0005:02:00.1"), PCIVendor: VendorMellanox},
		NIC{Name: "rep", Kind: "device", MAC: "02:00:00:00:00:78", PCI: pci("0000:01:00.0"), PCIVendor: VendorMellanox, PortName: "pf0vf1"},
		NIC{Name: "vf", Kind: "device", MAC: "02:00:00:00:00:79", PCI: pci("0000:01:02.0"), PCIVendor: VendorMellanox},
		NIC{Name: "ib0", Kind: "ipoib", MAC: "00:00:10:29:fe:80:00:00:00:00:00:00:e4:1d:2d:03:00:1d:66:81", PCI: pci("0000:03:00.0"), PCIVendor: VendorMellanox},
		NIC{Name: "ib1", Kind: "device", MAC: "02:00:00:00:00:80"},
		NIC{Name: "eth9", Kind: "device", MAC: "02:00:00:00:00:81", PCI: pci("0000:05:00.0")},
		NIC{Name: "soft", Kind: "veth", MAC: "02:00:00:00:00:82"},
	)
	inv.Devices = append(inv.Devices,
		HCA{Name: "mlx5_bond_0", PCI: pci("0005:02:00.0"), LinkLayer: LayerEthernet, Netdev: "bond0"},
		HCA{Name: "mlx5_vf", PCI: pci("0000:01:02.0"), PhysFn: pci("0000:01:00.0"), LinkLayer: LayerEthernet, Netdev: "vf"},
		HCA{Name: "mlx5_ib", LinkLayer: LayerInfiniBand, Netdev: "ib1"},
		HCA{Name: "rxe0", LinkLayer: LayerEthernet, Netdev: "eth9"},
		HCA{Name: "rxe1", LinkLayer: LayerEthernet, Netdev: "soft"},
	)
	inv.Devices[0].GIDs = append(inv.Devices[0].GIDs, GID{Index: 9, Netdev: "vlan7"})
	var got []string
	for _, n := range CableNICs(inv) {
		got = append(got, n.NIC.Name+" "+n.Slot)
	}
	want := []string{"enp1s0f0np0 01:00.0", "enP2p1s0f0np0 01:00.0", "enp1s0f1np1 01:00.1", "enP2p1s0f1np1 01:00.1",
		"slave 02:00.1", "eth9 rxe0", "soft rxe1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// The slot of a NIC with a device is its port's: that is what joins a sighting to the topology.
	ports := map[string]bool{}
	for _, p := range Ports(inv) {
		ports[p.Slot] = true
	}
	for _, n := range CableNICs(inv) {
		if n.NIC.Name != "slave" && !ports[n.Slot] {
			t.Errorf("%s is at %s, which is no port", n.NIC.Name, n.Slot)
		}
	}
}

// Both twins of a port hear both of the other's, from both sides: one cable.
func TestCables(t *testing.T) {
	a := withMACs(spark("a", "10.0.0.1/24", "192.168.1.1/24", "192.168.2.1/24"), "0a")
	b := withMACs(spark("b", "10.0.0.2/24", "192.168.1.2/24", "192.168.2.2/24", "192.168.3.2/24"), "0b")
	c := withMACs(spark("c", "10.0.0.3/24", "", "", "192.168.3.3/24"), "0c")
	all := []Inventory{a, b, c}
	va := view(cabled(a, all, "enp1s0f0np0 b enp1s0f0np0", "enp1s0f0np0 b enP2p1s0f0np0", "enP2p1s0f0np0 b enp1s0f0np0"))
	vb := view(cabled(b, all, "enp1s0f0np0 a enp1s0f0np0", "enp1s0f1np1 c enp1s0f1np1"))
	vc := view(cabled(c, all))
	ab := Cable{A: CableEnd{"id-a", "01:00.0"}, B: CableEnd{"id-b", "01:00.0"}}
	bc := Cable{A: CableEnd{"id-b", "01:00.1"}, B: CableEnd{"id-c", "01:00.1"}}
	for name, views := range map[string][]NodeView{"in order": {va, vb, vc}, "in another": {vc, vb, va}} {
		if diff := cmp.Diff([]Cable{ab, bc}, Cables(views)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	// A neighbour whose inventory nobody has is a member still.
	if diff := cmp.Diff([]Cable{ab}, Cables([]NodeView{va})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// The name of b, from a MAC that b does not have.
	copied := cabled(a, all, "enp1s0f0np0 b enp1s0f0np0")
	copied.Cabling.Sightings[0].Peer.MAC = "02:de:ad:00:00:00"
	if got := Cables([]NodeView{view(copied), view(b)}); len(got) != 0 {
		t.Errorf("a clone's cable is its original's: %v", got)
	}
	copied.Cabling.Sightings[0].Clone = true
	if got := Cables([]NodeView{view(copied)}); len(got) != 0 {
		t.Errorf("a clone's cable is its original's: %v", got)
	}
	// An inventory without a probe says nothing.
	if got := Cables([]NodeView{view(a), view(b)}); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

// What is heard over a NIC ends with its carrier, and travels as it is.
func TestWithCabling(t *testing.T) {
	a := withMACs(spark("a", "10.0.0.1/24", "192.168.1.1/24", "192.168.2.1/24"), "0a")
	b := withMACs(spark("b", "10.0.0.2/24", "192.168.1.2/24"), "0b")
	c := *cabled(a, []Inventory{b}, "enp1s0f0np0 b enp1s0f0np0", "enP2p1s0f0np0 b enp1s0f0np0").Cabling
	c.Probed = []string{"enP2p1s0f0np0", "enp1s0f0np0", "gone0"}
	c.NonMembers = []NonMember{{NIC: "enp1s0f0np0", Slot: "01:00.0", MAC: "02:99:00:00:00:00", Heard: NonMemberARP}}
	c.Sightings[0].Since = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

	down := change(a, "enp1s0f0np0", func(n *NIC) { n.Carrier = new(false) }).WithCabling(c)
	want := Cabling{Probed: []string{"enP2p1s0f0np0"}, Sightings: c.Sightings[1:]}
	if diff := cmp.Diff(want, *down.Cabling); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(c.Probed) != 3 || len(c.Sightings) != 2 || len(c.NonMembers) != 1 || a.Cabling != nil {
		t.Error("the argument was changed")
	}
	text, err := json.Marshal(a.WithCabling(c))
	if err != nil {
		t.Fatal(err)
	}
	var back Inventory
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(a.WithCabling(c).Cabling, back.Cabling); diff != "" {
		t.Errorf("after a journey (-sent +got):\n%s", diff)
	}
}

func TestNonMembers(t *testing.T) {
	a := withMACs(spark("a", "10.0.0.1/24", "192.168.1.1/24", "192.168.2.1/24"), "0a")
	b := withMACs(spark("b", "10.0.0.2/24", "192.168.1.2/24"), "0b")
	heard := func(nic, mac string) NonMember {
		return NonMember{NIC: nic, Slot: "01:00.0", MAC: mac, Heard: NonMemberARP}
	}
	nic, _ := b.NIC("enp1s0f0np0")
	a = a.WithCabling(Cabling{NonMembers: []NonMember{
		heard("enP2p1s0f0np0", nic.MAC), heard("enP2p1s0f0np0", "02:99:00:00:00:00"), heard("enp1s0f0np0", "02:99:00:00:00:01")}})
	want := map[string]map[string]string{"id-a": {"01:00.0": "the host 02:99:00:00:00:00 (arp on enP2p1s0f0np0)"}}
	if diff := cmp.Diff(want, NonMembers([]NodeView{view(a), view(b)})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
