package topology

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sparkrun/sparkrun/envgen"
)

// drawInput makes any cluster of at most so many nodes, sound or not: few subnets, so that ports meet, and now and then one address twice, a
// dead link, an odd prefix, a cable to nowhere. (rapid likes small numbers: what is rare is the largest.)
func drawInput(t *rapid.T, most int) Input {
	var in Input
	rare := func(label string) bool { return rapid.IntRange(0, 19).Draw(t, label) == 19 }
	count := rapid.IntRange(0, most).Draw(t, "nodes")
	for i := range count {
		host := fmt.Sprintf("n%d", i)
		if rare("same host") {
			host = "n0"
		}
		kind := ""
		if rare("other machine") {
			kind = rapid.SampledFrom([]string{"server", "bare", "infiniband", "nodriver"}).Draw(t, "kind")
		}
		n := newNode([]string{host, fmt.Sprintf("172.16.0.%d/24", i+1), kind})
		n.ID = fmt.Sprintf("id-%d", i)
		probed := rapid.Bool().Draw(t, "probed")
		for port := range 2 {
			plugged := !rare("unplugged")
			for which := range 2 {
				if h, nic := twin(&n, port, which); h != nil && nic != nil && plugged {
					drawDevice(t, &n, port, which, fmt.Sprintf("%d", 10*i+2*port+which+1), probed)
				}
			}
		}
		if rare("override") {
			n.FabricPorts = []string{rapid.SampledFrom([]string{"0", "1", "01:00.1", "nonsense"}).Draw(t, "port")}
		}
		if rare("stranger") {
			in.NonMembers = map[string]map[string]string{n.ID: {slot(rapid.IntRange(0, 1).Draw(t, "slot")): "someone"}}
		}
		in.Nodes = append(in.Nodes, n)
	}
	for range rapid.IntRange(0, 8+count).Draw(t, "cables") {
		end := func() envgen.CableEnd {
			e := envgen.CableEnd{Node: fmt.Sprintf("id-%d", rapid.IntRange(0, max(count-1, 0)).Draw(t, "end")),
				Port: rapid.SampledFrom([]string{"01:00.0", "01:00.1", "0", "enp1s0f1np1"}).Draw(t, "port")}
			if rare("lost") {
				e = envgen.CableEnd{Node: rapid.SampledFrom([]string{"id-0", "id-99"}).Draw(t, "far"), Port: "nowhere"}
			}
			return e
		}
		in.Cables = append(in.Cables, envgen.Cable{A: end(), B: end(), Via: rapid.SampledFrom([]string{"", "", "", "sw1", "sw2"}).Draw(t, "via")})
	}
	return in
}

// drawDevice plugs one device in, most often soundly. last is the host's part of its address.
func drawDevice(t *rapid.T, n *Node, port, which int, last string, probed bool) {
	rare := func(label string) bool { return rapid.IntRange(0, 19).Draw(t, label) == 19 }
	addr := fmt.Sprintf("10.0.%d.%s/24", rapid.IntRange(0, 3).Draw(t, "subnet"), last)
	if rare("odd address") {
		addr = rapid.SampledFrom([]string{"-", "10.0.1.1/24", "10.0.2.2/28", "169.254.0.1/16", "169.254.0.2/16", "172.16.0.200/24", "10.0.0.1/8", "10.0.5.5/32"}).Draw(t, "addr")
	}
	plug(n, port, which, addr)
	h, nic := twin(n, port, which)
	nic.DefaultRoute = rare("default")
	nic.Carrier = new(!rare("no carrier"))
	if rare("not active") {
		h.State = envgen.StateDown
	}
	if probed {
		if n.Inventory.Cabling == nil {
			n.Inventory.Cabling = &envgen.Cabling{}
		}
		n.Inventory.Cabling.Probed = append(n.Inventory.Cabling.Probed, nic.Name)
	}
}

// shuffled is the same cluster told in another order: of nodes, of cables, of their ends, of devices.
func shuffled(in Input, seed uint64) Input {
	rng := rand.New(rand.NewPCG(seed, 1))
	out := in
	out.Nodes = slices.Clone(in.Nodes)
	rng.Shuffle(len(out.Nodes), func(i, j int) { out.Nodes[i], out.Nodes[j] = out.Nodes[j], out.Nodes[i] })
	for i := range out.Nodes {
		inv := &out.Nodes[i].Inventory
		inv.Devices = slices.Clone(inv.Devices)
		rng.Shuffle(len(inv.Devices), func(i, j int) { inv.Devices[i], inv.Devices[j] = inv.Devices[j], inv.Devices[i] })
		if inv.Cabling != nil {
			probed := slices.Clone(inv.Cabling.Probed)
			rng.Shuffle(len(probed), func(i, j int) { probed[i], probed[j] = probed[j], probed[i] })
			inv.Cabling = &envgen.Cabling{Probed: probed, Trouble: inv.Cabling.Trouble}
		}
	}
	out.Cables = slices.Clone(in.Cables)
	rng.Shuffle(len(out.Cables), func(i, j int) { out.Cables[i], out.Cables[j] = out.Cables[j], out.Cables[i] })
	for i := range out.Cables {
		if rng.IntN(2) == 0 {
			out.Cables[i].A, out.Cables[i].B = out.Cables[i].B, out.Cables[i].A
		}
		if rng.IntN(4) == 0 {
			out.Cables = append(out.Cables, out.Cables[i]) // told twice, as twins do
		}
	}
	return out
}

func TestPropertyOrderSaysNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, 16)
		want := derive2(t, in)
		got := derive2(t, shuffled(in, rapid.Uint64().Draw(t, "seed")))
		if diff := cmp.Diff(want, got, byValue); diff != "" {
			t.Fatalf("another order, another topology (-want +got):\n%s", diff)
		}
	})
}

func derive2(t *rapid.T, in Input) envgen.Topology {
	topo, err := Derive(in)
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

func TestPropertyACableLessInventsNoPath(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, 16)
		if len(in.Cables) == 0 {
			return
		}
		before := derive2(t, in).Joints()
		gone := rapid.IntRange(0, len(in.Cables)-1).Draw(t, "gone")
		in.Cables = slices.Delete(slices.Clone(in.Cables), gone, gone+1)
		for _, j := range derive2(t, in).Joints() {
			if !slices.Contains(before, j) {
				t.Fatalf("without the cable %+v appears", j)
			}
		}
	})
}

// What holds for every topology, whatever it was made of.
func TestPropertySound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, 8)
		topo := derive2(t, in)
		for _, j := range topo.Joints() {
			if j.A.Path.Subnet != j.B.Path.Subnet || !j.A.Path.Subnet.Contains(j.B.Path.Addr) || !j.B.Path.Subnet.Contains(j.A.Path.Addr) {
				t.Fatalf("%+v are not in one subnet", j)
			}
			for _, e := range []envgen.LaneEnd{j.A, j.B} {
				n, _ := topo.Node(e.Node)
				if p, ok := n.Port(e.Path.Slot); !ok || p.Role != envgen.RoleFabric || !p.Live {
					t.Fatalf("%+v is on a port that is no live fabric port", e)
				}
			}
		}
		if got, want := slices.Sorted(slices.Values(topo.Order)), ids(in); !slices.Equal(got, want) {
			t.Fatalf("order %v is not all of %v once", got, want)
		}
		var grouped []string
		for _, g := range topo.Groups {
			grouped = append(grouped, g.Nodes...)
			checkRingOrder(t, topo, g)
		}
		if !slices.Equal(grouped, topo.Order) {
			t.Fatalf("groups %v are not the order %v", grouped, topo.Order)
		}
		linked := map[envgen.PortEnd]bool{}
		for _, l := range topo.Links {
			if len(l.Ends) < 2 {
				t.Fatalf("link %+v has one end", l)
			}
			for _, e := range l.Ends {
				if l.Up && linked[e] {
					t.Fatalf("port %+v is on two links", e)
				}
				linked[e] = linked[e] || l.Up
			}
		}
		// It is drawn whatever it is, and travels.
		if Map(topo, 80) == "" && len(in.Nodes) > 0 || len(SVG(topo)) == 0 {
			t.Fatal("no picture")
		}
		travels(t, topo, json.Marshal, json.Unmarshal)
		travels(t, topo, cbor.Marshal, cbor.Unmarshal)
	})
}

func travels(t *rapid.T, topo envgen.Topology, marshal func(any) ([]byte, error), unmarshal func([]byte, any) error) {
	data, err := marshal(topo)
	if err != nil {
		t.Fatal(err)
	}
	var back envgen.Topology
	if err := unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(topo, back, byValue, emptyIsNil); diff != "" {
		t.Fatalf("(-sent +received):\n%s", diff)
	}
}

// Lists that are empty on one side and absent on the other are alike.
var emptyIsNil = cmp.FilterValues(func(a, b []string) bool { return len(a) == 0 && len(b) == 0 }, cmp.Ignore())

// checkRingOrder wants a ring told one way only: from its lowest host towards the lower of its neighbours.
func checkRingOrder(t *rapid.T, topo envgen.Topology, g envgen.Group) {
	if g.Shape != envgen.ShapeRing {
		return
	}
	at := func(id string) int {
		return slices.IndexFunc(topo.Nodes, func(n envgen.TopologyNode) bool { return n.ID == id })
	}
	n := len(g.Nodes)
	for i, id := range g.Nodes {
		next := g.Nodes[(i+1)%n]
		if !slices.ContainsFunc(topo.Links, func(l envgen.Link) bool {
			has := func(id string) bool {
				return slices.ContainsFunc(l.Ends, func(e envgen.PortEnd) bool { return e.Node == id })
			}
			return l.Up && !l.Switched && has(id) && has(next)
		}) {
			t.Fatalf("no cable from %s to %s, which follows it in ring %v", id, next, g.Nodes)
		}
		if at(id) < at(g.Nodes[0]) {
			t.Fatalf("ring %v does not begin with its lowest host", g.Nodes)
		}
	}
	if at(g.Nodes[1]) > at(g.Nodes[n-1]) {
		t.Fatalf("ring %v does not go towards the lower neighbour", g.Nodes)
	}
}

func ids(in Input) []string {
	var all []string
	for _, n := range in.Nodes {
		all = append(all, n.ID)
	}
	slices.Sort(all)
	return all
}

// Rings of any size and order are rings: random clusters are hardly ever one.
func TestPropertyRings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(3, 12).Draw(t, "nodes")
		order := rapid.Permutation(sequence(n)).Draw(t, "order")
		probed, addressed := rapid.Bool().Draw(t, "probed"), rapid.Bool().Draw(t, "addressed")
		topo := derive2(t, ring(order, probed || !addressed, addressed))
		if topo.Shape != envgen.ShapeRing {
			t.Fatalf("shape %s: %s", topo.Shape, topo.Why)
		}
		checkRingOrder(t, topo, topo.Groups[0])
		if addressed && len(topo.Findings) > 0 {
			t.Fatalf("findings in a sound ring: %v", topo.Findings)
		}
		// A rotation or reflection of the same ring is the same.
		turned := append(slices.Clone(order[1:]), order[0])
		slices.Reverse(turned)
		if other := derive2(t, ring(turned, true, false)); !slices.Equal(other.Order, topo.Order) {
			t.Fatalf("turned, the ring %v is %v", topo.Order, other.Order)
		}
	})
}

func sequence(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}

// ring cables hosts in the given order, port 0 to port 1.
func ring(order []int, probed, addressed bool) Input {
	var in Input
	for _, i := range order {
		in.Nodes = append(in.Nodes, newNode([]string{fmt.Sprintf("node%02d", i), fmt.Sprintf("172.16.0.%d/24", i+1)}))
	}
	for i := range in.Nodes {
		next := (i + 1) % len(in.Nodes)
		for which := range 2 {
			a, b := "-", "-"
			if addressed {
				a, b = fmt.Sprintf("10.%d.%d.1/24", which, i), fmt.Sprintf("10.%d.%d.2/24", which, i)
			}
			plug(&in.Nodes[i], 0, which, a)
			plug(&in.Nodes[next], 1, which, b)
		}
		if probed {
			in.Cables = append(in.Cables, envgen.Cable{A: envgen.CableEnd{Node: in.Nodes[i].ID, Port: slot(0)}, B: envgen.CableEnd{Node: in.Nodes[next].ID, Port: slot(1)}})
		}
	}
	return in
}

func TestDeriveRefusesOneIDTwice(t *testing.T) {
	in := Input{Nodes: []Node{newNode([]string{"a", "-"}), newNode([]string{"b", "-"})}}
	in.Nodes[1].ID = in.Nodes[0].ID
	if _, err := Derive(in); err == nil {
		t.Fatal("two nodes with one id pass")
	}
}

// Observed takes the cables from what the nodes' own probes say, and the strangers too.
func TestObserved(t *testing.T) {
	f := load(t, "pair.txt")
	var views []envgen.NodeView
	for i, n := range f.in.Nodes {
		far := f.in.Nodes[1-i]
		nic, _ := far.Inventory.NIC("enp1s0f0np0")
		n.Inventory.Cabling.Sightings = []envgen.Sighting{{NIC: "enp1s0f0np0", Slot: slot(0),
			Peer: envgen.Neighbour{Node: far.ID, Host: far.Host, NIC: "enp1s0f0np0", Slot: slot(0), MAC: nic.MAC}}}
		views = append(views, envgen.NodeView{ID: n.ID, Host: n.Host, Mgmt: n.Mgmt, Inventory: n.Inventory})
	}
	topo := derive(t, Observed(views))
	if topo.Shape != envgen.ShapePair || len(topo.Links) != 1 || !topo.Links[0].Seen {
		t.Errorf("shape %s, links %+v", topo.Shape, topo.Links)
	}
	views[0].Inventory.Cabling.NonMembers = []envgen.NonMember{{NIC: "enp1s0f0np0", Slot: slot(0), MAC: "52:54:00:00:00:01", Heard: envgen.NonMemberARP}}
	// Anybody can send a frame: a port with an address, on which members hear each other, stays the fabric's.
	topo = derive(t, Observed(views))
	if p, _ := topo.Nodes[0].Port(slot(0)); p.Role != envgen.RoleFabric || topo.Shape != envgen.ShapePair ||
		!slices.Contains(codesOf(topo.Findings), CodeStranger) {
		t.Errorf("with a stranger: role %s, shape %s, %v", p.Role, topo.Shape, codesOf(topo.Findings))
	}
	for i := range views[0].Inventory.NICs {
		if nic := &views[0].Inventory.NICs[i]; nic.PCIVendor == envgen.VendorMellanox {
			nic.Addresses = nil
		}
	}
	topo = derive(t, Observed(views))
	if p, _ := topo.Nodes[0].Port(slot(0)); p.Role != envgen.RoleLAN {
		t.Errorf("with a stranger, and no address: role %s", p.Role)
	}
}

// Nothing else in the cluster may be drawn into a lane by a management network that covers everything.
func TestMgmtSubnetOverride(t *testing.T) {
	f := load(t, "pair.txt")
	for i := range f.in.Nodes {
		f.in.Nodes[i].MgmtSubnet = netip.MustParsePrefix("10.10.0.0/16")
	}
	topo := derive(t, f.in)
	if p, _ := topo.Nodes[0].Port(slot(0)); p.Role != envgen.RoleLAN {
		t.Errorf("role %s, want lan: its addresses are in management's subnet by the user's word", p.Role)
	}
}

func benchmark(b *testing.B, in Input) {
	b.ReportAllocs()
	began := processorTime()
	n := 0
	for b.Loop() {
		n++
		if _, err := Derive(in); err != nil {
			b.Fatal(err)
		}
	}
	// On a busy machine the clock tells of its neighbours.
	b.ReportMetric(float64((processorTime()-began).Microseconds())/1000/float64(n), "cpu-ms/op")
}

func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// The target is 5 ms for 64 nodes.
func BenchmarkRing64(b *testing.B) { benchmark(b, ring(sequence(64), true, true)) }

func BenchmarkSwitch64(b *testing.B) { benchmark(b, onSwitch(64)) }

// onSwitch plugs port 0 of every node into one switch; every pair of ports is reported, from both sides.
func onSwitch(n int) Input {
	var in Input
	for i := range n {
		node := newNode([]string{fmt.Sprintf("node%02d", i), fmt.Sprintf("172.16.0.%d/24", i+1)})
		plug(&node, 0, 0, fmt.Sprintf("10.0.0.%d/24", i+1))
		plug(&node, 0, 1, fmt.Sprintf("10.0.1.%d/24", i+1))
		node.Inventory.Cabling = &envgen.Cabling{Probed: []string{"enp1s0f0np0", "enP2p1s0f0np0"}}
		in.Nodes = append(in.Nodes, node)
		for j := range i {
			a, z := envgen.CableEnd{Node: in.Nodes[j].ID, Port: slot(0)}, envgen.CableEnd{Node: node.ID, Port: slot(0)}
			in.Cables = append(in.Cables, envgen.Cable{A: a, B: z}, envgen.Cable{A: z, B: a})
		}
	}
	return in
}
