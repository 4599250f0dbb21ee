package topology

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sparkrun/sparkrun/envgen"
)

// builder cables sound clusters: every port is used once, and every cable or switch has subnets of its own.
type builder struct {
	in    Input
	links int
}

func (b *builder) nodes(n int) (at []int) {
	for range n {
		i := len(b.in.Nodes)
		b.in.Nodes = append(b.in.Nodes, newNode([]string{fmt.Sprintf("node%02d", i), fmt.Sprintf("172.16.0.%d/24", i+1)}))
		at = append(at, i)
	}
	return at
}

// join plugs a port of each node into one wire, which all of them hear.
func (b *builder) join(nodes, ports []int) {
	for i, n := range nodes {
		for which := range 2 {
			plug(&b.in.Nodes[n], ports[i], which, fmt.Sprintf("10.%d.%d.%d/24", b.links, which, i+1))
		}
		for j := range i {
			b.in.Cables = append(b.in.Cables, envgen.Cable{A: envgen.CableEnd{Node: b.in.Nodes[nodes[j]].ID, Port: slot(ports[j])},
				B: envgen.CableEnd{Node: b.in.Nodes[n].ID, Port: slot(ports[i])}})
		}
	}
	b.links++
}

// group adds nodes that are joined in one shape.
func (b *builder) group(t *rapid.T) (shape envgen.Shape, members int) {
	kind := rapid.SampledFrom([]string{"pair", "two cables", "switch", "both on switches", "ring", "chain"}).Draw(t, "shape")
	side := func() int { return rapid.IntRange(0, 1).Draw(t, "port") }
	switch kind {
	case "pair":
		b.join(b.nodes(2), []int{side(), side()})
		return envgen.ShapePair, 2
	case "two cables":
		n := b.nodes(2)
		b.join(n, []int{0, 0})
		b.join(n, []int{1, 1})
		return envgen.ShapePair, 2
	case "switch", "both on switches":
		n := b.nodes(rapid.IntRange(3, 6).Draw(t, "on the switch"))
		first := make([]int, len(n))
		second := make([]int, len(n))
		for i := range n {
			if kind == "switch" {
				first[i] = side()
			}
			second[i] = 1 - first[i]
		}
		b.join(n, first)
		if kind != "switch" {
			b.join(n, second)
		}
		return envgen.ShapeSwitch, len(n)
	}
	n := b.nodes(rapid.IntRange(3, 6).Draw(t, "in a row"))
	order := rapid.Permutation(n).Draw(t, "order")
	for i := range len(order) - 1 {
		b.join([]int{order[i], order[i+1]}, []int{0, 1})
	}
	if kind == "chain" {
		return envgen.ShapeChain, len(n)
	}
	b.join([]int{order[len(order)-1], order[0]}, []int{0, 1})
	return envgen.ShapeRing, len(n)
}

// drawSound makes a cluster of up to 16 nodes in groups, and says what shape each has.
func drawSound(t *rapid.T) (Input, []envgen.Shape) {
	b := &builder{}
	var shapes []envgen.Shape
	for len(b.in.Nodes) < 10 {
		shape, _ := b.group(t)
		if shapes = append(shapes, shape); rapid.Bool().Draw(t, "enough") {
			break
		}
	}
	for i := range b.in.Nodes {
		inv := &b.in.Nodes[i].Inventory
		inv.Cabling = &envgen.Cabling{}
		for _, n := range inv.NICs {
			if n.HasCarrier() && n.PCIVendor == envgen.VendorMellanox {
				inv.Cabling.Probed = append(inv.Cabling.Probed, n.Name)
			}
		}
	}
	return b.in, shapes
}

// What is cabled and addressed soundly is recognised, group by group, and nothing is found wrong with it.
func TestPropertySoundClustersAreRecognised(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in, shapes := drawSound(t)
		topo := derive2(t, shuffled(in, rapid.Uint64().Draw(t, "seed")))
		want := envgen.ShapeIslands
		if len(shapes) == 1 {
			want = shapes[0]
		}
		if topo.Shape != want {
			t.Fatalf("shape %s, want %s: %s", topo.Shape, want, topo.Why)
		}
		var got []envgen.Shape
		for _, g := range topo.Groups {
			got = append(got, g.Shape)
		}
		slices.Sort(got)
		slices.Sort(shapes)
		if !slices.Equal(got, shapes) {
			t.Fatalf("groups %v, want %v", got, shapes)
		}
		for _, f := range topo.Findings {
			if !slices.Contains([]string{CodeSecondCable, CodeChain, CodeIslands}, f.Code) {
				t.Fatalf("in a sound cluster: %+v", f)
			}
		}
	})
}

// Pulling any one cable of a sound cluster never adds a path, and what it leaves are the other paths.
func TestPropertyOneCablePulled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in, _ := drawSound(t)
		before := derive2(t, in).Joints()
		gone := in.Cables[rapid.IntRange(0, len(in.Cables)-1).Draw(t, "gone")]
		pulled := func(j envgen.Joint) bool {
			for _, e := range []envgen.CableEnd{gone.A, gone.B} {
				for _, l := range []envgen.LaneEnd{j.A, j.B} {
					if l.Node == e.Node && l.Path.Slot == e.Port {
						return true
					}
				}
			}
			return false
		}
		in.Cables = slices.DeleteFunc(slices.Clone(in.Cables), func(c envgen.Cable) bool { return c == gone })
		for _, end := range []envgen.CableEnd{gone.A, gone.B} {
			at := slices.IndexFunc(in.Nodes, func(n Node) bool { return n.ID == end.Node })
			for which := range 2 {
				set(&in.Nodes[at], int(end.Port[len(end.Port)-1]-'0'), which, "link", "pulled")
			}
		}
		after := map[envgen.Joint]bool{}
		for _, j := range derive2(t, in).Joints() {
			after[j] = true
		}
		for _, j := range before {
			if after[j] == pulled(j) {
				t.Fatalf("without %+v: %+v is there: %t", gone, j, after[j])
			}
			delete(after, j)
		}
		for j := range after {
			t.Fatalf("without %+v: %+v appears", gone, j)
		}
	})
}

// renamed gives every device and interface of the fabric another name, and returns what each is called otherwise.
func renamed(t *rapid.T, in Input) (out Input, was map[string]string) {
	out, was = in, map[string]string{}
	out.Nodes = slices.Clone(in.Nodes)
	calls := map[envgen.CableEnd]string{}
	for i := range out.Nodes {
		n := &out.Nodes[i]
		perm := rapid.Permutation(sequence(8)).Draw(t, "names")
		call := func(kind, old string, k int) string {
			now := fmt.Sprintf("%s%d", kind, perm[k])
			was[n.ID+" "+now] = old
			return now
		}
		inv := n.Inventory
		inv.NICs, inv.Devices = slices.Clone(inv.NICs), slices.Clone(inv.Devices)
		nics := map[string]string{}
		for k := range inv.NICs {
			if nic := &inv.NICs[k]; nic.PCIVendor == envgen.VendorMellanox {
				nics[nic.Name] = call("eth", nic.Name, k)
				calls[envgen.CableEnd{Node: n.ID, Port: nic.Name}] = nics[nic.Name]
				nic.Name = nics[nic.Name]
			}
		}
		for k := range inv.Devices {
			h := &inv.Devices[k]
			h.Name, h.Netdev = call("mlx5_", h.Name, k), nics[h.Netdev]
			h.GIDs = slices.Clone(h.GIDs)
			for g := range h.GIDs {
				h.GIDs[g].Netdev = nics[h.GIDs[g].Netdev]
			}
		}
		if inv.Cabling != nil {
			c := *inv.Cabling
			c.Probed = nil
			for _, name := range inv.Cabling.Probed {
				c.Probed = append(c.Probed, nics[name])
			}
			inv.Cabling = &c
		}
		n.Inventory = inv
	}
	out.Cables = slices.Clone(in.Cables)
	for i := range out.Cables {
		for _, e := range []*envgen.CableEnd{&out.Cables[i].A, &out.Cables[i].B} {
			if now, ok := calls[*e]; ok {
				e.Port = now
			}
		}
	}
	return out, was
}

// skeleton is what of a topology no name may change: by the names that were.
func skeleton(topo envgen.Topology, was map[string]string) string {
	old := func(node, name string) string {
		if before, ok := was[node+" "+name]; ok {
			return before
		}
		return name
	}
	var b strings.Builder
	fmt.Fprintln(&b, topo.Shape, topo.Order, topo.Groups)
	for _, n := range topo.Nodes {
		fmt.Fprintln(&b, n.ID, n.Network, n.Addr, old(n.ID, n.NIC))
		for _, p := range n.Ports {
			fmt.Fprintln(&b, p.Slot, p.Role, p.Live)
		}
	}
	for _, l := range topo.Links {
		fmt.Fprintln(&b, l.Ends, l.Role, l.Seen, l.Switched, l.Via, l.Up)
	}
	for _, l := range topo.Lanes {
		fmt.Fprintln(&b, l.Link, l.Subnet, l.Spoilt)
		for _, e := range l.Ends {
			fmt.Fprintln(&b, e.Node, old(e.Node, e.Path.HCA), old(e.Node, e.Path.NIC), e.Path.Addr)
		}
	}
	var findings []string
	for _, f := range topo.Findings {
		findings = append(findings, fmt.Sprintln(f.Severity, f.Code, f.Node, f.Port, old(f.Node, f.Device)))
	}
	slices.Sort(findings)
	return b.String() + strings.Join(findings, "")
}

// Names are udev's and the user's to change, on each node as they like: nothing is decided by them.
func TestPropertyNamesSayNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, 16)
		other, was := renamed(t, in)
		if diff := cmp.Diff(skeleton(derive2(t, in), nil), skeleton(derive2(t, other), was)); diff != "" {
			t.Fatalf("other names, another topology (-want +got):\n%s", diff)
		}
	})
}
