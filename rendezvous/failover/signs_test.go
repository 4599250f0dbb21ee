package failover

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/gossip"
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
	got := fmt.Sprint(AddressesOf(rendezvous.Roster{silent}, place, own))
	if want := "[10.0.0.2 192.168.100.2]"; got != want {
		t.Errorf("addresses %s, want %s", got, want)
	}
}

// Who is not asked to the end may be on: Ctrl-C during `mark-dead` proves no machine dead.
func TestSignOfLifeBrokenOff(t *testing.T) {
	f := &Failover{cfg: Config{Present: new(rendezvous.Latest[[]gossip.Peer]), Inventory: new(rendezvous.Latest[envgen.Inventory])}}
	ctx, cancel := context.WithCancel(t.Context())
	if sign := f.SignOfLife(ctx, "id2", nil); sign != "" {
		t.Errorf("a machine that gives none: %q", sign)
	}
	cancel()
	if sign := f.SignOfLife(ctx, "id2", nil); sign == "" {
		t.Error("a machine that was not asked to the end counts as dead")
	}
}

func TestNoMajorityInWords(t *testing.T) {
	for _, tt := range []struct {
		silent, voters []string
		copied         bool
		want           string
	}{
		{[]string{"spark2"}, []string{"spark1", "spark2"}, false,
			"spark2 does not answer, and a majority of the voters (spark1, spark2) is needed: start its agent; running jobs go on meanwhile"},
		{[]string{"spark2"}, []string{"spark1", "spark2"}, true,
			"spark2 does not answer, and a majority of the voters (spark1, spark2) is needed: start its agent; running jobs go on meanwhile" +
				"; if that machine is off, `sudo sparkrun takeover --confirm-dead spark2` here"},
		{[]string{"spark2", "spark3"}, []string{"spark1", "spark2", "spark3"}, true,
			"spark2, spark3 do not answer, and a majority of the voters (spark1, spark2, spark3) is needed: start their agents; running jobs go on meanwhile" +
				"; if those machines are off, `sudo sparkrun takeover --confirm-dead spark2 --confirm-dead spark3` here"},
	} {
		if got := noMajority(tt.silent, tt.voters, tt.copied); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}
