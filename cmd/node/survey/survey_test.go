package survey

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/sparkrun/sparkrun/envgen"
)

// What the probe hears travels with the inventory, and what was heard over a
// link ends with it, whoever tells of that first.
func TestCablingJoinsTheInventory(t *testing.T) {
	s, err := Open(Config{Self: "n1", Cluster: "c1", Host: "spark1", Boot: "b", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	speed := new(200_000)
	with := func(carrier bool) envgen.Inventory {
		return envgen.Inventory{Host: "spark1", Devices: []envgen.HCA{{Name: "rocep1s0f0", Netdev: "enp1s0f0np0", LinkLayer: envgen.LayerEthernet}}, NICs: []envgen.NIC{{Name: "enp1s0f0np0", Up: true, Carrier: &carrier, SpeedMbps: speed}}}
	}
	heard := envgen.Cabling{Probed: []string{"enp1s0f0np0"}, Sightings: []envgen.Sighting{{NIC: "enp1s0f0np0", Peer: envgen.Neighbour{Node: "n2"}}}}
	sees := func(when string, want int) {
		t.Helper()
		inv := s.Inventory.Load()
		if inv.Cabling == nil || len(inv.Cabling.Sightings) != want || len(inv.NICs) != 1 {
			t.Errorf("%s: %+v with %+v, want %d sightings", when, inv, inv.Cabling, want)
		}
	}
	s.surveyed(with(true))
	if inv := s.Inventory.Load(); inv.Cabling != nil {
		t.Errorf("before the probe's first word: %+v", inv.Cabling)
	}
	_, changed := s.Inventory.Watch()
	s.cabled(heard)
	sees("heard", 1)
	select {
	case <-changed:
	default:
		t.Error("nobody was woken")
	}
	s.surveyed(with(false))
	sees("no carrier", 0)
	s.cabled(heard) // was on its way
	sees("no carrier, and a late word", 0)
	if inv := s.Inventory.Load(); len(inv.Cabling.Pulled) != 1 || inv.Cabling.Pulled[0].Peer.Node != "n2" {
		t.Errorf("the cable that was pulled is forgotten: %+v", inv.Cabling)
	}
	s.surveyed(with(true))
	sees("plugged in again", 1)
	if inv := s.Inventory.Load(); len(inv.Cabling.Pulled) != 0 {
		t.Errorf("plugged in again, and still called pulled: %+v", inv.Cabling.Pulled)
	}
	speed = nil
	s.surveyed(with(false))
	s.surveyed(with(true))
	speed = new(200_000) // as before, which is no change
	s.surveyed(with(true))
	speed = new(100_000)
	s.surveyed(with(true))
	var told []string
	for _, c := range s.Links() {
		told = append(told, c.Text)
	}
	if want := []string{"is there", "lost its link", "has a link of 200 Gb/s", "lost its link",
		"has a link", "runs at 100 Gb/s"}; !slices.Equal(told, want) {
		t.Errorf("of its port it tells %q, want %q", told, want)
	}
}
