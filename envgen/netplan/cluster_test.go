package netplan

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares with a file of testdata, or writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; go test -update writes it", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

var pfx = netip.MustParsePrefix

// spark is the n-th GB10 machine with both ports.
func spark(n int) Node {
	node := Node{ID: fmt.Sprintf("id-%d", n), Host: fmt.Sprintf("spark%d", n), Management: "enP7s7"}
	for p := range 2 {
		node.Ports = append(node.Ports, Port{
			Slot:   fmt.Sprintf("01:00.%d", p),
			Number: new(p),
			Twins: []Twin{
				{NIC: fmt.Sprintf("enp1s0f%dnp%d", p, p), MAC: fmt.Sprintf("4c:bb:47:2e:%02x:0%d", n, p), PCI: fmt.Sprintf("0000:01:00.%d", p)},
				{NIC: fmt.Sprintf("enP2p1s0f%dnp%d", p, p), MAC: fmt.Sprintf("4c:bb:47:2e:%02x:1%d", n, p), PCI: fmt.Sprintf("0002:01:00.%d", p)},
			},
		})
	}
	return node
}

func sparks(n int) []Node {
	var out []Node
	for i := range n {
		out = append(out, spark(i+1))
	}
	return out
}

// port names port p of the n-th machine.
func port(n, p int) End {
	return End{Node: fmt.Sprintf("id-%d", n), Slot: fmt.Sprintf("01:00.%d", p)}
}

func link(ends ...End) Link { return Link{Ends: ends} }

func pair1() Input {
	return Input{Kind: KindPair1, Nodes: sparks(2), Links: []Link{link(port(1, 1), port(2, 1))}}
}

func pair2() Input {
	return Input{Kind: KindPair2, Nodes: sparks(2), Links: []Link{link(port(1, 0), port(2, 0)), link(port(1, 1), port(2, 1))}}
}

// mixed is as some owners have it: port 0 node to node, port 1 to the LAN and therefore not listed.
func mixed() Input {
	in := Input{Kind: KindMixed, Nodes: sparks(2), Links: []Link{link(port(1, 0), port(2, 0))},
		Reserved: []Reserved{{pfx("192.168.0.0/24"), "the LAN of spark1"}, {pfx("172.17.0.0/16"), "docker0 of spark1"}}}
	for i := range in.Nodes {
		in.Nodes[i].Ports = in.Nodes[i].Ports[:1]
	}
	return in
}

// onSwitch joins the given port of n machines, or both.
func onSwitch(n int, ports ...int) Input {
	in := Input{Kind: KindSwitch, Nodes: sparks(n)}
	var ends []End
	for i := range n {
		for _, p := range ports {
			ends = append(ends, port(i+1, p))
		}
	}
	in.Links = []Link{{Ends: ends}}
	return in
}

// ring cables port 0 of each machine to port 1 of the next.
func ring(n int) Input {
	in := Input{Kind: KindRing, Nodes: sparks(n)}
	for i := range n {
		in.Links = append(in.Links, link(port(i+1, 0), port((i+1)%n+1, 1)))
	}
	return in
}

func chain(n int) Input {
	in := ring(n)
	in.Kind, in.Links = KindChain, in.Links[:n-1]
	return in
}

func linkLocal() Input {
	in := pair1()
	in.LinkLocal = true
	return in
}

func islands() Input {
	return Input{Kind: KindIslands, Nodes: sparks(4), Links: []Link{link(port(1, 0), port(2, 0)), link(port(3, 0), port(4, 1))}}
}

// topologies are what the goldens and Debian's netplan see.
var topologies = []struct {
	name string
	in   Input
}{
	{"pair1-2", pair1()},
	{"link-local-2", linkLocal()},
	{"pair2-2", pair2()},
	{"mixed-2", mixed()},
	{"switch-2", onSwitch(2, 1)},
	{"switch-3", onSwitch(3, 1)},
	{"switch-4", onSwitch(4, 1)},
	{"switch-8", onSwitch(8, 1)},
	{"switch-both-ports-4", onSwitch(4, 0, 1)},
	{"ring-3", ring(3)},
	{"ring-4", ring(4)},
	{"ring-8", ring(8)},
	{"chain-4", chain(4)},
	{"islands-4", islands()},
}

func mustMake(t testing.TB, in Input) Plan {
	t.Helper()
	plan, err := Make(in)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// addresses maps "node nic" to the address, for comparing plans.
func addresses(plan Plan) map[string]string {
	out := map[string]string{}
	for _, f := range plan.Files {
		for _, i := range f.Interfaces {
			out[f.Host+" "+i.NIC] = i.Address.String()
		}
	}
	return out
}
