package envgen

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var update = flag.Bool("update", false, "write the golden files anew")

// byValue lets cmp look at the comparable types with hidden fields.
var byValue = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (write it with -update)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// fabricDev is one of a GB10 machine's four device/interface pairs; addrs are its IPv4 prefixes. Without any it is
// DOWN unless cabled is set.
type fabricDev struct {
	hca, nic string
	pci      string
	addrs    []string
	cabled   bool
}

// spark makes a GB10 machine: management on enP7s7, and the four fabric pairs, cabled where they have an address.
// The order of the arguments is port 0, its twin, port 1, its twin.
func spark(host, mgmt string, addrs ...string) Inventory {
	devs := []fabricDev{
		{hca: "rocep1s0f0", nic: "enp1s0f0np0", pci: "0000:01:00.0"},
		{hca: "roceP2p1s0f0", nic: "enP2p1s0f0np0", pci: "0002:01:00.0"},
		{hca: "rocep1s0f1", nic: "enp1s0f1np1", pci: "0000:01:00.1"},
		{hca: "roceP2p1s0f1", nic: "enP2p1s0f1np1", pci: "0002:01:00.1"},
	}
	for i, a := range addrs {
		if a != "" {
			devs[i].addrs = []string{a}
		}
	}
	return machine(host, mgmt, devs...)
}

func machine(host, mgmt string, devs ...fabricDev) Inventory {
	inv := Inventory{Host: host, Devices: []HCA{}, NICs: []NIC{
		{Name: "lo", MTU: 65536, Up: true, Carrier: new(true), Loopback: true, Kind: "device",
			Addresses: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8")}},
	}}
	if mgmt != "" {
		inv.NICs = append(inv.NICs, NIC{Name: "enP7s7", PCI: pci("0007:01:00.0"), PCIVendor: "0x10ec", MTU: 1500, Up: true,
			Carrier: new(true), Kind: "device", Physical: true, Addresses: []netip.Prefix{netip.MustParsePrefix(mgmt)}})
	}
	for _, d := range devs {
		up := d.cabled || len(d.addrs) > 0
		h := HCA{Name: d.hca, PCI: pci(d.pci), LinkLayer: LayerEthernet, Netdev: d.nic, State: StateDown, PhysState: "Disabled"}
		n := NIC{Name: d.nic, PCI: h.PCI, PCIVendor: VendorMellanox, MTU: 9000, Up: true, Carrier: new(up), Kind: "device", Physical: true}
		if up {
			h.State, h.PhysState = StateActive, "LinkUp"
			h.GIDs = append(h.GIDs,
				GID{Index: 0, Type: GIDTypeIBorRoCEv1, Addr: netip.MustParseAddr("fe80::1"), Netdev: d.nic},
				GID{Index: 1, Type: GIDTypeRoCEv2, Addr: netip.MustParseAddr("fe80::1"), Netdev: d.nic})
		}
		for _, text := range d.addrs {
			p := netip.MustParsePrefix(text)
			n.Addresses = append(n.Addresses, p)
			mapped := netip.AddrFrom16(p.Addr().As16())
			at := len(h.GIDs)
			h.GIDs = append(h.GIDs,
				GID{Index: at, Type: GIDTypeIBorRoCEv1, Addr: mapped, Netdev: d.nic},
				GID{Index: at + 1, Type: GIDTypeRoCEv2, Addr: mapped, Netdev: d.nic})
		}
		inv.Devices = append(inv.Devices, h)
		inv.NICs = append(inv.NICs, n)
	}
	inv.Devices = SortedDevices(inv.Devices)
	return inv
}

func pci(text string) *PCIAddress {
	a, err := ParsePCIAddress(text)
	if err != nil {
		panic(err)
	}
	return &a
}

// view is the node as the cluster sees it; its management address is enP7s7's.
func view(inv Inventory) NodeView {
	v := NodeView{ID: "id-" + inv.Host, Host: inv.Host, Inventory: inv}
	if choice, err := Management(inv, ""); err == nil {
		v.Mgmt = choice.Addr
	}
	return v
}

// change applies an edit to one interface of a copy of the inventory.
func change(inv Inventory, name string, edit func(*NIC)) Inventory {
	inv.NICs = append([]NIC(nil), inv.NICs...)
	for i := range inv.NICs {
		if inv.NICs[i].Name == name {
			edit(&inv.NICs[i])
			return inv
		}
	}
	panic(fmt.Sprintf("no interface %s", name))
}

func changeHCA(inv Inventory, name string, edit func(*HCA)) Inventory {
	inv.Devices = append([]HCA(nil), inv.Devices...)
	for i := range inv.Devices {
		if inv.Devices[i].Name == name {
			edit(&inv.Devices[i])
			return inv
		}
	}
	panic(fmt.Sprintf("no device %s", name))
}
