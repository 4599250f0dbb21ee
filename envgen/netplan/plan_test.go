package netplan

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.yaml.in/yaml/v3"
)

func TestPlanOfEachTopology(t *testing.T) {
	for _, topo := range topologies {
		t.Run(topo.name, func(t *testing.T) {
			plan := mustMake(t, topo.in)
			var b strings.Builder
			for _, n := range plan.Notes {
				fmt.Fprintf(&b, "note: %s\n", n)
			}
			for _, f := range plan.Files {
				fmt.Fprintf(&b, "-- %s%s --\n%s", f.Host, Path, f.Text)
				for _, p := range f.Peers {
					fmt.Fprintf(&b, "-- %s asks %s\n", f.Host, p)
				}
			}
			golden(t, topo.name+".golden", b.String())
		})
	}
}

// file is a netplan file with the types netplan gives its values, so that no and false are equal.
type file struct {
	Network struct {
		Version   int
		Ethernets map[string]struct {
			DHCP4, DHCP6 *bool
			LinkLocal    []string `yaml:"link-local"`
			MTU          int
			Addresses    []string
		}
	}
}

func asYAML(t *testing.T, text string) file {
	t.Helper()
	dec := yaml.NewDecoder(strings.NewReader(text))
	dec.KnownFields(true)
	var f file
	if err := dec.Decode(&f); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	return f
}

// notesFile is a netplan file as owners have published it: two lines a key, addresses for each interface.
func notesFile(pairs ...string) string {
	var b strings.Builder
	b.WriteString("network:\n  version: 2\n  ethernets:\n")
	for i := 0; i < len(pairs); i += 2 {
		fmt.Fprintf(&b, "    %s:\n      dhcp4: no\n      dhcp6: no        # Explicitly disable DHCPv6\n      link-local: []\n      mtu: 9000\n      addresses: [%s]\n", pairs[i], pairs[i+1])
	}
	return b.String()
}

func TestOwnersFilesComeOut(t *testing.T) {
	held := func(in Input, of func(node, port, twin int) string) Input {
		all := map[string][]Held{}
		for n, node := range in.Nodes {
			for p, port := range node.Ports {
				for w, twin := range port.Twins {
					if a := of(n+1, p, w); a != "" {
						all[node.ID] = append(all[node.ID], Held{twin.NIC, []netip.Prefix{pfx(a)}})
					}
				}
			}
		}
		adopted, why, err := Adopt(in, all)
		if err != nil || len(why) > 0 {
			t.Fatal(err, why)
		}
		in.Previous = &adopted
		return in
	}
	for _, tc := range []struct {
		name string
		in   Input
		want []string
	}{
		{"pair on port 1", pair1(), []string{
			notesFile("enp1s0f1np1", "192.168.177.11/24", "enP2p1s0f1np1", "192.168.178.11/24"),
			notesFile("enp1s0f1np1", "192.168.177.12/24", "enP2p1s0f1np1", "192.168.178.12/24"),
		}},
		{"ring of three", ring(3), []string{
			notesFile("enp1s0f0np0", "192.168.177.11/24", "enP2p1s0f0np0", "192.168.178.11/24", "enp1s0f1np1", "192.168.187.11/24", "enP2p1s0f1np1", "192.168.188.11/24"),
			notesFile("enp1s0f0np0", "192.168.197.12/24", "enP2p1s0f0np0", "192.168.198.12/24", "enp1s0f1np1", "192.168.177.12/24", "enP2p1s0f1np1", "192.168.178.12/24"),
			notesFile("enp1s0f0np0", "192.168.187.13/24", "enP2p1s0f0np0", "192.168.188.13/24", "enp1s0f1np1", "192.168.197.13/24", "enP2p1s0f1np1", "192.168.198.13/24"),
		}},
		{"link-local", linkLocal(), []string{
			"network:\n  version: 2\n  ethernets:\n    enp1s0f0np0:\n      link-local: [ ipv4 ]\n    enp1s0f1np1:\n      link-local: [ ipv4 ]\n",
			"network:\n  version: 2\n  ethernets:\n    enp1s0f0np0:\n      link-local: [ ipv4 ]\n    enp1s0f1np1:\n      link-local: [ ipv4 ]\n",
		}},
		{"both twins of one cable by hand", held(Input{Kind: KindPair1, Nodes: sparks(2), Links: []Link{link(port(1, 0), port(2, 0))}},
			func(n, p, w int) string {
				if p == 1 {
					return ""
				}
				return fmt.Sprintf("10.10.%d.%d/24", w+1, 10+n)
			}), []string{
			notesFile("enp1s0f0np0", "10.10.1.11/24", "enP2p1s0f0np0", "10.10.2.11/24"),
			notesFile("enp1s0f0np0", "10.10.1.12/24", "enP2p1s0f0np0", "10.10.2.12/24"),
		}},
		{"two cables, primaries by hand", held(pair2(), func(n, p, w int) string {
			if w == 1 {
				return ""
			}
			return fmt.Sprintf("192.168.%d.%d/24", 100+p, 9+n)
		}), []string{
			// The neighbour of 192.168.100 is the other cable's, so that its second twins go elsewhere.
			notesFile("enp1s0f0np0", "192.168.100.10/24", "enP2p1s0f0np0", "192.168.177.11/24", "enp1s0f1np1", "192.168.101.10/24", "enP2p1s0f1np1", "192.168.102.11/24"),
			notesFile("enp1s0f0np0", "192.168.100.11/24", "enP2p1s0f0np0", "192.168.177.12/24", "enp1s0f1np1", "192.168.101.11/24", "enP2p1s0f1np1", "192.168.102.12/24"),
		}},
		{"the first twin of port 0 by hand, LAN on port 1", held(mixed(), func(n, p, w int) string {
			if w == 1 {
				return ""
			}
			return fmt.Sprintf("10.0.0.%d/24", n)
		}), []string{
			notesFile("enp1s0f0np0", "10.0.0.1/24", "enP2p1s0f0np0", "10.0.1.11/24"),
			notesFile("enp1s0f0np0", "10.0.0.2/24", "enP2p1s0f0np0", "10.0.1.12/24"),
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			plan := mustMake(t, tc.in)
			if len(plan.Files) != len(tc.want) {
				t.Fatalf("%d files, want %d", len(plan.Files), len(tc.want))
			}
			for i, f := range plan.Files {
				if diff := cmp.Diff(asYAML(t, tc.want[i]), asYAML(t, f.Text)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", f.Host, diff)
				}
			}
		})
	}
}

func TestPlanSaysNo(t *testing.T) {
	change := func(in Input, f func(*Input)) Input { f(&in); return in }
	for _, tc := range []struct {
		name string
		in   Input
		want string
	}{
		{"link-local on a ring", change(ring(3), func(in *Input) { in.LinkLocal = true }), "one cable between two nodes"},
		{"management among the twins", change(pair1(), func(in *Input) { in.Nodes[1].Management = "enP2p1s0f0np0" }), "enP2p1s0f0np0 of spark2: it is what the cluster talks over"},
		{"a port on two links", change(pair2(), func(in *Input) { in.Links[1].Ends[0] = port(1, 0) }), "port 01:00.0 of spark1 is on two links"},
		{"a stranger's port", change(pair1(), func(in *Input) { in.Links[0].Ends[1] = port(3, 0) }), "no fabric port of a member"},
		{"one id twice", change(pair1(), func(in *Input) { in.Nodes[1].ID = "id-1" }), "same id id-1"},
		{"a name that is YAML", change(pair1(), func(in *Input) { in.Nodes[0].Ports[0].Twins[0].NIC = "a: b\n" }), "rename it"},
		{"a slot that is YAML", change(pair1(), func(in *Input) { in.Nodes[0].Ports[0].Slot = "a\nb" }), "misnamed"},
		{"one interface twice", change(pair1(), func(in *Input) { in.Nodes[0].Ports[0].Twins[1].NIC = "enp1s0f0np0" }), "enp1s0f0np0 twice"},
		{"a pair that is a ring", change(ring(3), func(in *Input) { in.Kind = KindPair1 }), "there are 3 nodes and 3 links"},
		{"a ring with a gap", change(chain(4), func(in *Input) { in.Kind = KindRing }), "as many cables"},
		{"a pair on a switch", change(onSwitch(2, 0, 1), func(in *Input) { in.Kind = KindPair1 }), "one cable"},
		{"a kind nobody knows", change(pair1(), func(in *Input) { in.Kind = "star" }), `unknown cabling "star", want pair1`},
		{"a link without ends", change(pair1(), func(in *Input) { in.Links[0].Ends = nil; in.Kind = KindMixed }), "without ends"},
		{"everything reserved", change(pair1(), func(in *Input) { in.Reserved = []Reserved{{pfx("0.0.0.0/0"), "the world"}} }), "no private subnet is left"},
		{"an allocation with an address twice", change(pair1(), func(in *Input) {
			prev := mustMake(t, pair1()).Allocation
			prev.Rails[0].Ports[1].Twins[0].Addr = prev.Rails[0].Ports[0].Twins[0].Addr
			in.Previous = &prev
		}), "not in 192.168.177.0/24, or taken"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Make(tc.in)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want ...%s...", err, tc.want)
			}
		})
	}
}

// moved are the interfaces whose address may change, because their cable was pulled and put elsewhere, or that are
// away.
func TestGrowingMovesNobody(t *testing.T) {
	for _, tc := range []struct {
		name     string
		from, to Input
		moved    []string
	}{
		{"a third node on a switch", onSwitch(2, 1), onSwitch(3, 1), nil},
		{"a pair is moved to a switch", pair1(), onSwitch(4, 1), nil},
		{"the second ports come to the switch", onSwitch(3, 1), onSwitch(3, 0, 1), nil},
		{"a second cable", pair1(), pair2(), nil},
		{"a chain becomes a ring", chain(3), ring(3), nil},
		// The cable from 3 to 1 is cut in two: one end has to leave the subnet.
		{"a fourth node in a ring", ring(3), ring(4), []string{"spark3 enP2p1s0f0np0", "spark3 enp1s0f0np0"}},
		{"a pair beside a pair", Input{Kind: KindPair1, Nodes: sparks(2), Links: []Link{link(port(1, 0), port(2, 0))}}, islands(), nil},
		{"a node is off for a while", onSwitch(3, 1), onSwitch(2, 1), []string{"spark3 enP2p1s0f1np1", "spark3 enp1s0f1np1"}},
		{"a cable is pulled for a while", pair2(), pair1(), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := mustMake(t, tc.from)
			tc.to.Previous = &before.Allocation
			after := mustMake(t, tc.to)
			was, is := addresses(before), addresses(after)
			var moved []string
			for nic, addr := range was {
				if is[nic] != addr {
					moved = append(moved, nic)
				}
			}
			slices.Sort(moved)
			if diff := cmp.Diff(tc.moved, moved, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("moved (-want +got):\n%s\nbefore %v\nafter %v", diff, was, is)
			}
			// And back again, as it was: what is away is remembered.
			tc.from.Previous = &after.Allocation
			if tc.moved == nil || len(tc.to.Nodes) < len(tc.from.Nodes) {
				again := addresses(mustMake(t, tc.from))
				for nic, addr := range was {
					if again[nic] != addr {
						t.Errorf("back again %s has %s, had %s", nic, again[nic], addr)
					}
				}
			}
		})
	}
}

func TestSubnetThatBecomesSomebodyElsesMoves(t *testing.T) {
	before := mustMake(t, pair1())
	in := pair1()
	in.Previous = &before.Allocation
	in.Reserved = []Reserved{{pfx("192.168.176.0/23"), "docker0 of spark2"}}
	after := mustMake(t, in)
	want := map[string]string{
		"spark1 enp1s0f1np1": "192.168.187.11/24", "spark1 enP2p1s0f1np1": "192.168.178.11/24",
		"spark2 enp1s0f1np1": "192.168.187.12/24", "spark2 enP2p1s0f1np1": "192.168.178.12/24",
	}
	if diff := cmp.Diff(want, addresses(after)); diff != "" {
		t.Error(diff)
	}
	if len(after.Notes) != 1 || !strings.Contains(after.Notes[0], "docker0 of spark2") {
		t.Errorf("notes %q do not say why", after.Notes)
	}
}

func TestMissingTwin(t *testing.T) {
	before := mustMake(t, pair1())
	in := pair1()
	in.Previous = &before.Allocation
	in.Nodes[0].Ports[1].Twins = in.Nodes[0].Ports[1].Twins[1:] // the primary is gone
	after := mustMake(t, in)
	if got := addresses(after)["spark1 enP2p1s0f1np1"]; got != "192.168.178.11/24" {
		t.Errorf("the twin that is left has %s", got)
	}
	if len(after.Notes) != 0 {
		t.Errorf("notes %q", after.Notes)
	}
	// Its peer loses the other one: nothing joins them any more.
	in.Previous = &after.Allocation
	in.Nodes[1].Ports[1].Twins = in.Nodes[1].Ports[1].Twins[:1]
	after = mustMake(t, in)
	if len(after.Notes) != 1 || !strings.Contains(after.Notes[0], "no subnet joins port 1 of spark1 and port 1 of spark2") {
		t.Errorf("notes %q", after.Notes)
	}
	// A card is exchanged: its new twins take the lanes of the old.
	in = pair1()
	in.Previous = &before.Allocation
	in.Nodes[0].Ports[1].Twins[0].PCI, in.Nodes[0].Ports[1].Twins[1].PCI = "0004:01:00.1", "0006:01:00.1"
	if diff := cmp.Diff(addresses(before), addresses(mustMake(t, in))); diff != "" {
		t.Errorf("exchanged card (-before +after):\n%s", diff)
	}
}

func TestMergedIslandsShareASubnet(t *testing.T) {
	before := mustMake(t, islands())
	in := islands()
	in.Kind, in.Previous = KindSwitch, &before.Allocation
	in.Links = []Link{link(port(1, 0), port(2, 0), port(3, 0), port(4, 1))}
	got := addresses(mustMake(t, in))
	want := map[string]string{}
	for n, nics := range [][2]string{{"enp1s0f0np0", "enP2p1s0f0np0"}, {"enp1s0f0np0", "enP2p1s0f0np0"}, {"enp1s0f0np0", "enP2p1s0f0np0"}, {"enp1s0f1np1", "enP2p1s0f1np1"}} {
		for w, nic := range nics {
			want[fmt.Sprintf("spark%d %s", n+1, nic)] = fmt.Sprintf("192.168.%d.%d/24", 177+w, 11+n)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestLargestSwitch(t *testing.T) {
	in := onSwitch(254, 1)
	sound(t, in, mustMake(t, in))
	if _, err := Make(onSwitch(255, 1)); err == nil || !strings.Contains(err.Error(), "192.168.177.0/24 has no address left") {
		t.Errorf("255 nodes in a /24: %v", err)
	}
}

func TestForget(t *testing.T) {
	a := mustMake(t, onSwitch(3, 1)).Allocation.Forget("id-2")
	in := onSwitch(4, 1)
	in.Nodes = []Node{spark(1), spark(3), spark(4)}
	in.Links = []Link{link(port(1, 1), port(3, 1), port(4, 1))}
	in.Previous = &a
	if got := addresses(mustMake(t, in))["spark4 enp1s0f1np1"]; got != "192.168.177.12/24" {
		t.Errorf("spark4 has %s, want the address of the node that left", got)
	}
	if a := mustMake(t, pair1()).Allocation.Forget("id-1", "id-2"); len(a.Rails) != 0 || len(a.Numbers) != 0 {
		t.Errorf("left of a forgotten cluster: %v", a)
	}
}

func TestHostOrder(t *testing.T) {
	in := pair1()
	in.Nodes[0].Host, in.Nodes[1].Host = "spark10", "spark2"
	if got := addresses(mustMake(t, in))["spark2 enp1s0f1np1"]; got != "192.168.177.11/24" {
		t.Errorf("spark2 has %s beside spark10", got)
	}
	for _, order := range [][]string{{"a", "a1", "a2", "a02b", "a10", "b"}, {"9", "10", "spark"}} {
		for i := range order {
			for j := range order {
				if got, want := compareNatural(order[i], order[j]), i-j; got < 0 != (want < 0) || got > 0 != (want > 0) {
					t.Errorf("compareNatural(%q, %q) = %d", order[i], order[j], got)
				}
			}
		}
	}
}

func TestAllocationSurvivesJSON(t *testing.T) {
	want := mustMake(t, ring(3)).Allocation
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseAllocation(data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		t.Error(diff)
	}
	if _, err := ParseAllocation([]byte(`{"numbers":{},"rails":[],"colour":"red"}`)); err == nil {
		t.Error("what a newer version remembers was accepted, and would be lost")
	}
}

func FuzzParseAllocation(f *testing.F) {
	for _, topo := range topologies {
		plan, err := Make(topo.in)
		if err != nil {
			f.Fatal(err)
		}
		data, _ := json.Marshal(plan.Allocation)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := ParseAllocation(data)
		if err != nil {
			return
		}
		// What is accepted can be planned with, and the plan is sound.
		in := ring(3)
		in.Previous = &a
		if plan, err := Make(in); err == nil {
			sound(t, in, plan)
		}
	})
}
