package dial

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/envgen"
)

// sparkOnTwoNets is a machine with a cabled port, whose second one is on the office LAN,
// and an unplugged management interface.
func sparkOnTwoNets() envgen.Inventory {
	nic := func(name, mac string, carrier bool, addrs ...string) envgen.NIC {
		n := envgen.NIC{Name: name, MAC: mac, Up: true, Physical: true, Carrier: &carrier}
		for _, a := range addrs {
			n.Addresses = append(n.Addresses, netip.MustParsePrefix(a))
		}
		return n
	}
	hca := func(name, pci, netdev string) envgen.HCA {
		addr, err := envgen.ParsePCIAddress(pci)
		if err != nil {
			panic(err)
		}
		return envgen.HCA{Name: name, PCI: &addr, State: envgen.StateActive, LinkLayer: envgen.LayerEthernet, Netdev: netdev}
	}
	lan := nic("enp1s0f1np1", "02:00:00:00:00:02", true, "10.9.0.1/16")
	lan.DefaultRoute = true
	return envgen.Inventory{Host: "spark1",
		NICs: []envgen.NIC{
			{Name: "lo", Loopback: true, Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8")}},
			nic("enP7s7", "02:00:00:00:00:00", false, "172.30.0.11/24", "fe80::7/64"),
			nic("enp1s0f0np0", "02:00:00:00:00:01", true, "fe80::1/64", "192.168.100.11/24", "169.254.1.1/16"),
			lan,
		},
		Devices: []envgen.HCA{hca("rocep1s0f0", "0000:01:00.0", "enp1s0f0np0"),
			hca("rocep1s0f1", "0000:01:00.1", "enp1s0f1np1")},
	}
}

func TestListenersAreOnTheFabric(t *testing.T) {
	const mgmt = "172.30.0.11"
	words := func(addrs []netip.Addr) string {
		var out []string
		for _, a := range addrs {
			out = append(out, a.String())
		}
		return strings.Join(out, " ")
	}
	inv := sparkOnTwoNets()
	if got, want := words(FabricAddrs(inv, mgmt)), "192.168.100.11 fe80::1%enp1s0f0np0"; got != want {
		t.Errorf("listeners %q, want %q: not on management, not on the LAN", got, want)
	}
	carrier := false
	inv.NICs[2].Carrier = &carrier // its cable is out: connections may outlive that
	if got, want := words(FabricAddrs(inv, mgmt)), "192.168.100.11 fe80::1%enp1s0f0np0"; got != want {
		t.Errorf("without a link: listeners %q, want %q", got, want)
	}
	inv = sparkOnTwoNets()
	inv.FabricPorts = []string{"enp1s0f1np1"}
	if got, want := words(FabricAddrs(inv, mgmt)), "10.9.0.1"; got != want {
		t.Errorf("with --fabric-port: listeners %q, want %q", got, want)
	}
	if got := words(FabricAddrs(sparkOnTwoNets(), "192.168.100.11")); strings.Contains(got, "192.168.100.11") {
		t.Errorf("management by the user's word: listeners %q", got)
	}
}

func TestRoutesFromHere(t *testing.T) {
	inv := sparkOnTwoNets()
	inv.Cabling = &envgen.Cabling{Sightings: []envgen.Sighting{
		{NIC: "enp1s0f0np0", Peer: envgen.Neighbour{Node: "b"}},
		{NIC: "enp1s0f1np1", Peer: envgen.Neighbour{Node: "b"}, Clone: true},
	}}
	for _, tc := range []struct{ addr, id, want string }{
		{"192.168.100.12", "b", "192.168.100.12"},
		{"192.168.200.12", "b", ""}, // another cable's, which does not come here
		{"192.168.100.11", "b", ""}, // our own would answer
		{"fe80::2", "b", "fe80::2%enp1s0f0np0"},
		{"fe80::2", "c", ""}, // not heard at any port
	} {
		got := ""
		for _, a := range fromHere(netip.MustParseAddr(tc.addr), tc.id, inv) {
			got += a.String()
		}
		if got != tc.want {
			t.Errorf("%s of %s is reached at %q, want %q", tc.addr, tc.id, got, tc.want)
		}
	}
}

func TestLinkIsCut(t *testing.T) {
	for addr, want := range map[string]bool{
		"172.30.0.11": true, "192.168.100.11": false, "127.0.0.1": false,
		"10.1.1.1": true,  // taken away from us
		"fd00::1":  false, // a temporary one is in no inventory
	} {
		if got := linkIsCut(sparkOnTwoNets(), netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s is cut: %v, want %v", addr, got, want)
		}
	}
}
