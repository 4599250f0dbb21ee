package topology

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
)

// scene is what a fixture shows after some more lines of its language.
func scene(t *testing.T, file string, lines ...string) Scene {
	t.Helper()
	f := load(t, file)
	for _, line := range lines {
		if err := f.line(strings.Fields(line)); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	return sceneOf(t, f.in)
}

func sceneOf(t *testing.T, in Input) Scene {
	s := Scene{Topology: derive(t, in), Inventories: map[string]envgen.Inventory{}}
	for _, n := range in.Nodes {
		s.Inventories[n.ID] = n.Inventory
	}
	return s
}

func TestChanges(t *testing.T) {
	before := scene(t, "pair.txt")
	tests := map[string]struct {
		lines []string
		edit  func(*Scene)
		want  []string // among the lines, in this order
		never []string // in no line
	}{
		"a node that goes": {edit: func(s *Scene) {
			in := load(t, "pair.txt").in
			in.Nodes = in.Nodes[:1]
			*s = sceneOf(t, in)
		}, want: []string{"spark2 is gone", "gone: cable: spark1 port 0 - spark2 port 0", "shape: single"}},
		"an MTU": {lines: []string{"set spark1/0a mtu=1500"}, want: []string{"spark1 port 0 rocep1s0f0: MTU 1500, was 9000", "warning: mtu-"}},
		"an address comes and its GID moves": {edit: func(s *Scene) {
			inv := s.Inventories[s.Topology.Nodes[0].ID]
			inv.Devices = slices.Clone(inv.Devices)
			h := &inv.Devices[0]
			h.GIDs = append(slices.Clone(h.GIDs), envgen.GID{Index: 9, Type: envgen.GIDTypeRoCEv2, Addr: netip.MustParseAddr("::ffff:10.9.9.9")})
			s.Inventories[s.Topology.Nodes[0].ID] = inv
			p := &s.Topology.Nodes[0].Ports[0]
			p.Devices = slices.Clone(p.Devices)
			p.Devices[0].Addresses = []netip.Prefix{netip.MustParsePrefix("10.9.9.9/24")}
		}, want: []string{"rocep1s0f0 lost address 10.10.1.11/24", "rocep1s0f0 has address 10.9.9.9/24", "rocep1s0f0 has GID 9 of 10.9.9.9"}},
		"a role": {lines: []string{"fabric-port spark1 1"}, want: []string{"spark1 port 0 is unused now: --fabric-port names others"}},
		"nothing to do with a link that was lost": {edit: func(s *Scene) {
			p := &s.Topology.Nodes[0].Ports[0]
			p.Live = false
			p.Devices = slices.Clone(p.Devices)
			for i := range p.Devices {
				p.Devices[i].Carrier, p.Devices[i].State, p.Devices[i].SpeedMbps = new(false), envgen.StateDown, nil
			}
		}, want: []string{"spark1 port 0 lost its link"}, never: []string{"DOWN", "carrier", "Gb/s"}},
		"one twin's link": {edit: func(s *Scene) {
			p := &s.Topology.Nodes[0].Ports[0]
			p.Devices = slices.Clone(p.Devices)
			p.Devices[1].Carrier, p.Devices[1].State = new(false), envgen.StateDown
		}, want: []string{"roceP2p1s0f0: enP2p1s0f0np0 lost its carrier", "roceP2p1s0f0 is DOWN, was ACTIVE"}},
		"a speed": {edit: func(s *Scene) {
			p := &s.Topology.Nodes[0].Ports[0]
			p.Devices = slices.Clone(p.Devices)
			p.Devices[0].SpeedMbps = new(100000)
		}, want: []string{"rocep1s0f0: 100 Gb/s, was 200"}},
		"a name that would command a terminal": {edit: func(s *Scene) {
			s.Topology.Nodes = append(slices.Clone(s.Topology.Nodes), envgen.TopologyNode{ID: "x", Host: "a\x1b[2J"})
		}, want: []string{"a?[2J is new"}, never: []string{"\x1b"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			after := scene(t, "pair.txt", tc.lines...)
			if tc.edit != nil {
				tc.edit(&after)
			}
			got := Changes(before, after)
			at := 0
			for _, line := range got {
				if at < len(tc.want) && strings.Contains(line, tc.want[at]) {
					at++
				}
				for _, word := range tc.never {
					if strings.Contains(line, word) {
						t.Errorf("%q in %q", word, line)
					}
				}
			}
			if at < len(tc.want) {
				t.Errorf("no %q in\n%s", tc.want[at], strings.Join(got, "\n"))
			}
			if back := Changes(after, before); len(back) == 0 {
				t.Error("the way back changes nothing")
			}
		})
	}
}

// A cable between two nodes, pulled out and put back.
func TestChangesOfACable(t *testing.T) {
	whole := load(t, "pair.txt").in
	cut := whole
	cut.Cables = nil
	cut.Nodes = slices.Clone(whole.Nodes)
	for i := range cut.Nodes {
		inv := &cut.Nodes[i].Inventory
		inv.NICs = slices.Clone(inv.NICs)
		for j := range inv.NICs {
			if inv.NICs[j].PCIVendor == envgen.VendorMellanox {
				inv.NICs[j].Carrier, inv.NICs[j].SpeedMbps = new(false), nil
			}
		}
		inv.Devices = slices.Clone(inv.Devices)
		for j := range inv.Devices {
			inv.Devices[j].State = envgen.StateDown
		}
	}
	there, gone := sceneOf(t, whole), sceneOf(t, cut)
	contains := func(lines []string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, want) }) {
				t.Errorf("no line %q in\n%s", want, strings.Join(lines, "\n"))
			}
		}
	}
	contains(Changes(there, gone), "spark1 port 0 lost its link", "spark2 port 0 lost its link", "gone: cable: spark1 port 0 - spark2 port 0", "shape: unknown")
	contains(Changes(gone, there), "spark1 port 0 has a link", "spark2 port 0 has a link", "cabled: cable: spark1 port 0 - spark2 port 0", "shape: pair")
}

// What did not change is not told, whatever the cluster.
func TestChangesOfNothing(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no fixtures: %v", err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		if diff := cmp.Diff([]string(nil), Changes(scene(t, name), scene(t, name))); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
