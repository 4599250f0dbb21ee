package netplan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// sound checks what must hold of every plan.
func sound(t interface {
	Helper()
	Errorf(string, ...any)
}, in Input, plan Plan) {
	t.Helper()
	owners := map[netip.Addr]string{}
	subnetOf := map[End][]netip.Prefix{}
	for _, f := range plan.Files {
		mine := map[netip.Prefix]string{}
		for _, i := range f.Interfaces {
			who := f.Host + " " + i.NIC
			if !i.Address.IsValid() {
				continue // link-local
			}
			if !i.Address.Addr().Is4() || !usableHost(i.Address.Masked(), i.Address.Addr()) {
				t.Errorf("%s has %s, which is no host's", who, i.Address)
			}
			if other, dup := owners[i.Address.Addr()]; dup {
				t.Errorf("%s and %s both have %s", other, who, i.Address)
			}
			owners[i.Address.Addr()] = who
			for subnet, other := range mine {
				if subnet.Overlaps(i.Address) {
					t.Errorf("%s and %s are both in %s", who, other, subnet)
				}
			}
			mine[i.Address.Masked()] = i.NIC
			for _, r := range in.Reserved {
				if r.Prefix.Overlaps(i.Address.Masked()) {
					t.Errorf("%s has %s, which overlaps %s (%s)", who, i.Address, r.Prefix, r.Why)
				}
			}
			for _, n := range in.Nodes {
				for _, p := range n.Ports {
					if n.ID == f.Node && slices.ContainsFunc(p.Twins, func(w Twin) bool { return w.NIC == i.NIC }) {
						subnetOf[End{n.ID, p.Slot}] = append(subnetOf[End{n.ID, p.Slot}], i.Address.Masked())
					}
				}
			}
		}
		if doc, err := Parse(Source{Path, []byte(f.Text)}); err != nil || len(doc.Definitions) != len(f.Interfaces) {
			t.Errorf("%s: our own file does not parse: %v, %d definitions for %d interfaces", f.Host, err, len(doc.Definitions), len(f.Interfaces))
		}
	}
	if in.LinkLocal {
		return
	}
	// Any two nodes of a link share a subnet, or the plan says that they do not.
	apart := slices.ContainsFunc(plan.Notes, func(n string) bool { return strings.HasPrefix(n, "no subnet joins") })
	for _, l := range in.Links {
		for _, x := range l.Ends {
			for _, y := range l.Ends {
				if x.Node != y.Node && !shareSubnet(nodeSubnets(l, x.Node, subnetOf), nodeSubnets(l, y.Node, subnetOf)) && !apart {
					t.Errorf("nodes %s and %s are on one link and in no common subnet: %v and %v", x.Node, y.Node, subnetOf[x], subnetOf[y])
				}
			}
		}
	}
	if err := plan.Allocation.check(); err != nil {
		t.Errorf("the allocation does not stand its own check: %v", err)
	}
}

func nodeSubnets(l Link, node string, of map[End][]netip.Prefix) (out []netip.Prefix) {
	for _, e := range l.Ends {
		if e.Node == node {
			out = append(out, of[e]...)
		}
	}
	return out
}

func shareSubnet(x, y []netip.Prefix) bool {
	return slices.ContainsFunc(x, func(p netip.Prefix) bool { return slices.Contains(y, p) })
}

// drawCluster makes machines with one or two ports, most of two twins, cabled and switched at random.
func drawCluster(t *rapid.T) Input {
	in := Input{Kind: KindMixed, Nodes: sparks(rapid.IntRange(1, 9).Draw(t, "nodes"))}
	in.Reserved = drawReserved(t)
	var ends []End
	for i, n := range in.Nodes {
		if rapid.IntRange(0, 3).Draw(t, "one port") == 0 {
			in.Nodes[i].Ports = n.Ports[:1]
		}
		for j, p := range in.Nodes[i].Ports {
			ends = append(ends, End{n.ID, p.Slot})
			switch rapid.IntRange(0, 7).Draw(t, "port's make") {
			case 0: // a twin is missing
				in.Nodes[i].Ports[j].Twins = p.Twins[:1]
			case 1: // an ordinary server's card
				in.Nodes[i].Ports[j].Number, in.Nodes[i].Ports[j].Twins = nil, []Twin{{NIC: fmt.Sprintf("ens%d", j)}}
			}
		}
	}
	ends = rapid.Permutation(ends).Draw(t, "cabling")
	for len(ends) > 0 {
		size := min(len(ends), rapid.SampledFrom([]int{0, 1, 2, 2, 2, 3, 5, 8}).Draw(t, "ends"))
		if size == 0 {
			ends = ends[1:] // not cabled
			continue
		}
		in.Links = append(in.Links, Link{Ends: slices.Clone(ends[:size])})
		ends = ends[size:]
	}
	return in
}

func drawReserved(t *rapid.T) []Reserved {
	all := []string{"192.168.0.0/24", "172.17.0.0/16", "192.168.177.0/24", "192.168.188.0/22", "192.168.0.0/16", "10.0.0.0/8",
		"10.177.0.0/20", "192.168.178.64/26", "172.16.0.0/12", "fd00::/8"}
	var out []Reserved
	for _, s := range rapid.SliceOfNDistinct(rapid.SampledFrom(all), 0, 4, rapid.ID).Draw(t, "reserved") {
		out = append(out, Reserved{pfx(s), "somebody"})
	}
	return out
}

func shuffled(t *rapid.T, in Input) Input {
	in.Nodes = rapid.Permutation(in.Nodes).Draw(t, "node order")
	in.Links = rapid.Permutation(in.Links).Draw(t, "link order")
	for i := range in.Links {
		in.Links[i].Ends = rapid.Permutation(in.Links[i].Ends).Draw(t, "end order")
	}
	for i := range in.Nodes {
		in.Nodes[i].Ports = rapid.Permutation(in.Nodes[i].Ports).Draw(t, "port order")
	}
	return in
}

func TestPropertyAnyOrderSamePlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawCluster(t)
		plan, err := Make(in)
		if err != nil {
			t.Fatal(err)
		}
		sound(t, in, plan)
		other, err := Make(shuffled(t, in))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(plan, other, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
			t.Errorf("another order, another plan:\n%s", diff)
		}
	})
}

// A cluster grows node by node: whoever is there keeps what it has.
func TestPropertyJoiningMovesNobody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawCluster(t)
		plan, err := Make(in)
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 4).Draw(t, "joins") {
			prev := plan.Allocation
			in.Previous = &prev
			in.Nodes = append(slices.Clone(in.Nodes), spark(len(in.Nodes)+1))
			in.Links = slices.Clone(in.Links)
			for p := range 2 {
				at := rapid.IntRange(0, len(in.Links)).Draw(t, "link")
				if at == len(in.Links) {
					in.Links = append(in.Links, Link{})
				}
				in.Links[at].Ends = append(slices.Clone(in.Links[at].Ends), port(len(in.Nodes), p))
			}
			after, err := Make(shuffled(t, in))
			if err != nil {
				t.Fatal(err)
			}
			sound(t, in, after)
			is := addresses(after)
			for nic, addr := range addresses(plan) {
				if is[nic] != addr {
					t.Errorf("%s had %s and has %s because %s joined", nic, addr, is[nic], fmt.Sprintf("spark%d", len(in.Nodes)))
				}
			}
			plan = after
		}
	})
}

// Cables are moved at random, nodes come and go: each plan is sound, and planning again changes nothing.
func TestPropertyRecablingStaysSound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var prev *Allocation
		for range 4 {
			in := drawCluster(t)
			in.Previous = prev
			plan, err := Make(in)
			if err != nil {
				t.Fatal(err)
			}
			sound(t, in, plan)
			in.Previous = &plan.Allocation
			again, err := Make(in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(addresses(plan), addresses(again)); diff != "" {
				t.Errorf("the same cluster planned again:\n%s", diff)
			}
			prev = &again.Allocation
		}
	})
}
