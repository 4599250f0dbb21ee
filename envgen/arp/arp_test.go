package arp

import (
	"net"
	"net/netip"
	"testing"
)

// A probe changes nobody's table; an announcement says whose the address is now.
func TestRequest(t *testing.T) {
	mac, addr := net.HardwareAddr{2, 0, 0, 0, 0, 1}, netip.MustParseAddr("10.0.1.11")
	got, has, ok := parse(request(mac, netip.Addr{}, addr))
	if !ok || got.String() != mac.String() || !has.IsUnspecified() {
		t.Errorf("a probe says that %s has %s (%v): nobody's table may change", got, has, ok)
	}
	if got, has, ok := parse(request(mac, addr, addr)); !ok || got.String() != mac.String() || has != addr {
		t.Errorf("an announcement says that %s has %s (%v)", got, has, ok)
	}
	if _, _, ok := parse(make([]byte, 28)); ok {
		t.Error("takes zeros for ARP")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(request(net.HardwareAddr{2, 0, 0, 0, 0, 1}, netip.Addr{}, netip.MustParseAddr("10.0.1.11")))
	f.Fuzz(func(t *testing.T, b []byte) {
		if mac, has, ok := parse(b); ok && (len(mac) != 6 || !has.Is4()) {
			t.Errorf("%s has %s", mac, has)
		}
	})
}
