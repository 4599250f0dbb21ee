package envgen

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// wired is a node with two ports that hears, and did hear before its link went, these: "node/slot" by own slot.
func wired(id string, hears, pulled map[string][]CableEnd) NodeView {
	sightings := func(by map[string][]CableEnd) (all []Sighting) {
		for _, slot := range []string{"01:00.0", "01:00.1"} {
			for _, e := range by[slot] {
				all = append(all, Sighting{NIC: "nic" + slot, Slot: slot, Peer: Neighbour{Node: e.Node, Slot: e.Port}})
			}
		}
		return all
	}
	return NodeView{ID: id, Inventory: Inventory{Cabling: &Cabling{Sightings: sightings(hears), Pulled: sightings(pulled)}}}
}

// A pulled cable is told until its other end is plugged in elsewhere.
func TestCablesKeepWhatWasPulled(t *testing.T) {
	const p0, p1 = "01:00.0", "01:00.1"
	ends := func(pairs ...string) (list []CableEnd) {
		for i := 0; i < len(pairs); i += 2 {
			list = append(list, CableEnd{pairs[i], pairs[i+1]})
		}
		return list
	}
	on := func(slot string, pairs ...string) map[string][]CableEnd {
		return map[string][]CableEnd{slot: ends(pairs...)}
	}
	cable := func(a, ap, b, bp string) Cable { return Cable{A: CableEnd{a, ap}, B: CableEnd{b, bp}} }
	for name, tt := range map[string]struct {
		views []NodeView
		want  []Cable
	}{
		"both ends lost their link": {
			[]NodeView{wired("a", nil, on(p0, "b", p1)), wired("b", nil, on(p1, "a", p0))},
			[]Cable{cable("a", p0, "b", p1)},
		},
		"moved to another node": {
			[]NodeView{wired("a", nil, on(p0, "b", p1)), wired("b", on(p1, "c", p0), nil), wired("c", on(p0, "b", p1), nil)},
			[]Cable{cable("b", p1, "c", p0)},
		},
		"moved to the other port": {
			[]NodeView{wired("a", on(p1, "b", p1), on(p0, "b", p1)), wired("b", on(p1, "a", p1), nil)},
			[]Cable{cable("a", p1, "b", p1)},
		},
		"one out of a switch, the others go on": {
			[]NodeView{wired("a", nil, on(p0, "b", p0, "c", p0)), wired("b", on(p0, "c", p0), nil), wired("c", on(p0, "b", p0), nil)},
			[]Cable{cable("a", p0, "b", p0), cable("a", p0, "c", p0), cable("b", p0, "c", p0)},
		},
		"the far node is away": {
			[]NodeView{wired("a", nil, on(p0, "b", p1))},
			[]Cable{cable("a", p0, "b", p1)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, Cables(tt.views)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPulledSince(t *testing.T) {
	inv := func(carrier ...bool) (inv Inventory) {
		for i, c := range carrier {
			inv.NICs = append(inv.NICs, NIC{Name: string(rune('a' + i)), Carrier: new(c)})
		}
		return inv
	}
	at := func(nic, peer string) Sighting { return Sighting{NIC: nic, Peer: Neighbour{Node: peer}} }
	before := &Cabling{Sightings: []Sighting{at("a", "n1"), at("b", "n2"), at("gone", "n9")}, Pulled: []Sighting{at("c", "n3"), at("a", "older")}}
	if diff := cmp.Diff([]Sighting{at("c", "n3"), at("a", "n1")}, inv(false, true, false).PulledSince(before), byValue); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := inv(true, true, true).PulledSince(before); len(got) != 0 {
		t.Errorf("all have links, and %v are pulled", got)
	}
	if got := inv(false).PulledSince(nil); got != nil {
		t.Errorf("no probe, and %v are pulled", got)
	}
}
