package node

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// A node whose management network is gone is looked for on its fabric; what this
// machine would answer itself (a bridge that every machine has) proves nothing.
func TestAddressesOfASilentNode(t *testing.T) {
	nic := func(name string, addrs ...string) envgen.NIC {
		n := envgen.NIC{Name: name}
		for _, a := range addrs {
			n.Addresses = append(n.Addresses, netip.MustParsePrefix(a))
		}
		return n
	}
	silent := rendezvous.Member{
		Node: rendezvous.Node{ID: "id2", Addr: netip.MustParseAddrPort("10.0.0.2:7940")},
		Inventory: envgen.Inventory{
			Devices: []envgen.HCA{{Name: "rocep1s0f0", Netdev: "enp1s0f0np0"}},
			NICs: []envgen.NIC{nic("enP7s7", "10.0.0.2/24"), nic("docker0", "172.17.0.1/16"),
				nic("enp1s0f0np0", "192.168.100.2/24", "172.18.0.1/16", "fe80::2/64")},
		},
	}
	own := envgen.Inventory{NICs: []envgen.NIC{nic("br0", "172.18.0.1/16"), nic("enP7s7", "10.0.0.1/24")}}
	place := rendezvous.Place{Node: "id2", Entry: envgen.Entry{Addr: netip.MustParseAddr("192.168.100.2")}}
	got := fmt.Sprint(addressesOf(rendezvous.Roster{silent}, place, own))
	if want := "[10.0.0.2 192.168.100.2]"; got != want {
		t.Errorf("addresses %s, want %s", got, want)
	}
}
