package envgen

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A port is two devices over one wire: what happens to it is told once, and what did not happen is not.
func TestLinkChanges(t *testing.T) {
	type link struct {
		up, carrier bool
		speed       int
		addr        string
	}
	good := link{true, true, 200_000, "192.168.100.1/24"}
	inventory := func(l link) (inv Inventory) {
		for domain, name := range []string{"a", "b"} {
			inv.Devices = append(inv.Devices, HCA{Name: "roce" + name, LinkLayer: LayerEthernet, State: StateActive, Netdev: "enp" + name,
				PCI: &PCIAddress{Domain: uint32(domain), Bus: 1}})
			nic := NIC{Name: "enp" + name, Up: l.up, Carrier: new(l.carrier)}
			if l.speed > 0 {
				nic.SpeedMbps = &l.speed
			}
			if l.addr != "" && name == "a" {
				nic.Addresses = []netip.Prefix{netip.MustParsePrefix(l.addr), netip.MustParsePrefix("fe80::1/64")}
			}
			inv.NICs = append(inv.NICs, nic)
		}
		return inv
	}
	at := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		before, after link
		want          []LinkChange
	}{
		"nothing": {good, good, nil},
		"pulled, and the address went with it": {good, link{up: true}, []LinkChange{
			{Up: new(false), SpeedMbps: 200_000, Text: "lost its link"}, {Text: "lost address 192.168.100.1/24"}}},
		"set down": {good, link{addr: good.addr}, []LinkChange{{Up: new(false), SpeedMbps: 200_000, Text: "was set down"}}},
		"back, slower": {link{up: true}, link{true, true, 100_000, ""}, []LinkChange{
			{Up: new(true), SpeedMbps: 100_000, Text: "has a link of 100 Gb/s"}}},
		"the speed comes later": {link{up: true, carrier: true}, link{up: true, carrier: true, speed: 200_000}, []LinkChange{
			{SpeedMbps: 200_000, Text: "runs at 200 Gb/s"}}},
		"another address": {good, link{true, true, 200_000, "10.0.0.1/24"}, []LinkChange{
			{Text: "lost address 192.168.100.1/24"}, {Text: "has address 10.0.0.1/24"}}},
	} {
		for i := range c.want {
			c.want[i].At, c.want[i].Slot, c.want[i].Port = at, "01:00.0", "port 0"
		}
		if d := cmp.Diff(c.want, LinkChanges(inventory(c.before), inventory(c.after), at)); d != "" {
			t.Errorf("%s:\n%s", name, d)
		}
	}
	was, is := inventory(good), inventory(link{up: true, addr: good.addr})
	was.NICs[1].Up, is.NICs[1].Up = false, false // the second interface is never used
	if got := LinkChanges(was, is, at); len(got) != 1 || got[0].Text != "lost its link" {
		t.Errorf("pulled: %+v", got)
	}
	gone := LinkChanges(inventory(good), Inventory{}, at)
	if len(gone) != 1 || gone[0].Text != "is gone" || *gone[0].Up {
		t.Errorf("a card that fell off the bus: %+v", gone)
	}
}
