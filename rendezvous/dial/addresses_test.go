package dial

import (
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/gossip"
)

// Whoever gossips is remembered; who is silent keeps the place on the fabric that was told last.
func TestAddressesAreRemembered(t *testing.T) {
	at := netip.MustParseAddr
	peer := func(id, addr string, alive bool, fabric ...netip.Addr) gossip.Peer {
		return gossip.Peer{ID: id, Addr: at(addr), Port: 7941, RPCPort: 7940, Alive: alive,
			Meta: gossip.Meta{ID: id}.WithFabric(fabric)}
	}
	a, changed := Addresses{Own: at("10.0.0.1")}.with([]gossip.Peer{
		peer("c", "10.0.0.3", true), peer("b", "10.0.0.2", true, at("192.168.1.2")),
		peer("d", "10.0.0.4", false, at("192.168.1.4")),
	})
	want := Addresses{
		Own: at("10.0.0.1"), Peers: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.2:7941"),
			netip.MustParseAddrPort("10.0.0.3:7941")},
		Fabric: map[launcher.NodeID][]netip.AddrPort{"b": {netip.MustParseAddrPort("192.168.1.2:7940")}},
	}
	same := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	port := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
	if d := cmp.Diff(want, a, same, port); d != "" || !changed {
		t.Errorf("changed %v (-want +got):\n%s", changed, d)
	}
	if _, changed := a.with([]gossip.Peer{peer("b", "10.0.0.2", true, at("192.168.1.2")),
		peer("c", "10.0.0.3", true)}); changed {
		t.Error("the same in another order is news")
	}
	if _, changed := a.with([]gossip.Peer{peer("b", "10.0.0.2", false)}); changed {
		t.Error("an empty view makes it forget")
	}
	path := filepath.Join(t.TempDir(), "addresses.json")
	if err := a.Save(path); err != nil {
		t.Fatal(err)
	}
	kept, err := loadAddresses(path)
	if d := cmp.Diff(want, kept, same, port); d != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	if none, err := loadAddresses(path + ".none"); err != nil || none.Own.IsValid() {
		t.Errorf("no file: %+v, %v", none, err)
	}
}
