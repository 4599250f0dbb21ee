package rollout

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/netplan"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// ErrNoCabling says that there is nothing to plan addresses for.
var ErrNoCabling = errors.New("no cable or switch that the probe sees joins two nodes")

// Addresses plans the addresses for the topology that the views show, from the recorded
// allocation (nil: none) and what the nodes hold, by node id. away are the members that
// cannot take part now: nothing may overlap their addresses.
func Addresses(t envgen.Topology, views, away []envgen.NodeView, recorded json.RawMessage,
	held map[string][]netplan.Held) (netplan.Plan, error) {
	in, err := input(t, views, away)
	if err != nil {
		return netplan.Plan{}, err
	}
	var members []string
	for _, v := range slices.Concat(views, away) {
		members = append(members, v.ID)
	}
	if in.Previous, err = remembered(recorded, members); err != nil {
		return netplan.Plan{}, err
	}
	plan, err := addresses(in, held)
	plan.Notes = slices.Concat(plan.Notes, unanswered(t, in.Links))
	return plan, err
}

// input is what a plan needs of the topology that the views show; it is pure. Only links
// that a probe has seen count, and of them only the ends with the role fabric; all other
// ports keep what they have. others are the members that cannot take part now: nothing
// may overlap their addresses.
func input(t envgen.Topology, views, others []envgen.NodeView) (in netplan.Input, err error) {
	planned := map[netplan.End]bool{}
	nics := map[string]bool{} // node id and name
	for i, n := range t.Nodes {
		inv := views[slices.IndexFunc(views, func(v envgen.NodeView) bool { return v.ID == n.ID })].Inventory
		in.Nodes = append(in.Nodes, netplan.Node{ID: n.ID, Host: n.Host, Management: n.MgmtNIC})
		cabled := cableTwins(inv)
		for _, p := range n.Ports {
			// A fabric port without a link has a peer that is away, and keeps its
			// addresses; an unused port with a link is unused because of --fabric-port.
			if p.Role != envgen.RoleFabric && (p.Role != envgen.RoleUnused || p.Live) {
				continue
			}
			port := netplan.Port{Slot: p.Slot, Number: p.Number}
			for _, d := range p.Devices {
				if at := slices.IndexFunc(cabled, func(t netplan.Twin) bool { return t.NIC == d.NIC }); at >= 0 {
					port.Twins = append(port.Twins, cabled[at])
				}
			}
			if len(port.Twins) == 0 {
				continue // a bond, or InfiniBand
			}
			in.Nodes[i].Ports = append(in.Nodes[i].Ports, port)
			planned[netplan.End{Node: n.ID, Slot: p.Slot}] = true
			for _, twin := range port.Twins {
				nics[n.ID+" "+twin.NIC] = true
			}
		}
	}
	if in.Links, err = linksOf(t, planned); err != nil {
		return in, err
	}
	in.Kind = kindOf(t.Shape, in)
	for _, v := range slices.Concat(views, others) {
		in.Reserved = append(in.Reserved, reserved(v, nics)...)
	}
	return in, nil
}

// linksOf are the links between planned ports of different nodes.
func linksOf(t envgen.Topology, planned map[netplan.End]bool) ([]netplan.Link, error) {
	var links []netplan.Link
	for _, l := range t.Links {
		if !l.Up || l.Role != envgen.RoleFabric {
			continue
		}
		var link netplan.Link
		apart := false
		for _, e := range l.Ends {
			if end := (netplan.End{Node: e.Node, Slot: e.Slot}); planned[end] {
				link.Ends = append(link.Ends, end)
				apart = apart || e.Node != link.Ends[0].Node
			}
		}
		if !apart {
			continue
		}
		if !l.Seen {
			return nil, fmt.Errorf("plan netplan: %s are joined as their addresses have it, but no probe has seen the cable: "+
				"it needs the agent of each node to run as root, and some seconds", portWords(t, link.Ends))
		}
		links = append(links, link)
	}
	if len(links) == 0 {
		return nil, fmt.Errorf("plan netplan: %w (%s); plug one in, or look at `sparkrun status`", ErrNoCabling, t.Why)
	}
	return links, nil
}

// unanswered says which fabric ports have a link and no member at its other end.
func unanswered(t envgen.Topology, links []netplan.Link) []string {
	var notes []string
	for _, n := range t.Nodes {
		for _, p := range n.Ports {
			end := netplan.End{Node: n.ID, Slot: p.Slot}
			linked := func(l netplan.Link) bool { return slices.Contains(l.Ends, end) }
			if p.Role != envgen.RoleFabric || slices.ContainsFunc(links, linked) {
				continue
			}
			notes = append(notes, portWords(t, []netplan.End{end})+
				" has a link, but no member answers the probe there: it gets no new address")
		}
	}
	return notes
}

func portWords(t envgen.Topology, ends []netplan.End) string {
	var words []string
	for _, e := range ends {
		n, _ := t.Node(e.Node)
		name := e.Slot
		if p, ok := n.Port(e.Slot); ok && p.Number != nil {
			name = fmt.Sprint(*p.Number)
		}
		words = append(words, fmt.Sprintf("%s port %s", n.Host, name))
	}
	return strings.Join(words, " and ")
}

// kindOf maps the topology's shape to netplan's kinds. What fits none of them exactly
// (three cables between two servers) is mixed, which has no rule.
func kindOf(shape envgen.Shape, in netplan.Input) netplan.Kind {
	cables := !slices.ContainsFunc(in.Links, func(l netplan.Link) bool { return len(l.Ends) != 2 })
	switch n := len(in.Links); {
	case shape == envgen.ShapePair && cables && len(in.Nodes) == 2 && n == 1:
		return netplan.KindPair1
	case shape == envgen.ShapePair && cables && len(in.Nodes) == 2 && n == 2:
		return netplan.KindPair2
	case shape == envgen.ShapeRing && cables && n == len(in.Nodes):
		return netplan.KindRing
	case shape == envgen.ShapeSwitch:
		return netplan.KindSwitch
	case shape == envgen.ShapeChain:
		return netplan.KindChain
	case shape == envgen.ShapeIslands:
		return netplan.KindIslands
	}
	return netplan.KindMixed
}

// reserved are the networks of a node's interfaces that get no addresses here. A virtual
// function shares the network of its port, so it is left out.
func reserved(v envgen.NodeView, planned map[string]bool) []netplan.Reserved {
	var out []netplan.Reserved
	for _, nic := range v.Inventory.NICs {
		virtual := slices.ContainsFunc(v.Inventory.Devices, func(h envgen.HCA) bool {
			return h.PhysFn != nil && h.Netdev == nic.Name
		})
		if nic.Loopback || virtual || planned[v.ID+" "+nic.Name] {
			continue
		}
		for _, p := range nic.Addresses {
			if p.Addr().Is4() && !p.Addr().IsLinkLocalUnicast() {
				out = append(out, netplan.Reserved{Prefix: p.Masked(), Why: nic.Name + " of " + v.Host})
			}
		}
	}
	return out
}

// remembered is the recorded allocation without nodes that have left.
func remembered(data json.RawMessage, members []string) (*netplan.Allocation, error) {
	if data == nil {
		return nil, nil
	}
	a, err := netplan.ParseAllocation(data)
	if err != nil {
		return nil, err
	}
	var gone []string
	for id := range a.Numbers {
		if !slices.Contains(members, id) {
			gone = append(gone, id)
		}
	}
	return new(a.Forget(gone...)), nil
}

// addresses plans from the recorded allocation, or where there is none, from addresses
// that work already.
func addresses(in netplan.Input, held map[string][]netplan.Held) (netplan.Plan, error) {
	adopted, apart, err := netplan.Adopt(in, held)
	if err != nil {
		return netplan.Plan{}, err
	}
	in.Previous = &adopted
	plan, err := netplan.Make(in)
	if err != nil {
		return netplan.Plan{}, err
	}
	for _, why := range apart {
		plan.Notes = append(plan.Notes, "the addresses there are do not stay: "+why)
	}
	return plan, nil
}

// orderOf is a planned file as the leader sends it to its node.
func orderOf(f netplan.File) wire.NetplanOrder {
	o := wire.NetplanOrder{Text: &f.Text}
	for _, p := range f.Peers {
		o.Peers = append(o.Peers, wire.NetplanPeer{Host: p.Host, NIC: p.NIC, Addr: p.Addr})
	}
	return o
}

// newChange makes the id of a change.
func newChange() string { return rand.Text() }

// digestOf identifies what a person agrees to: every node's new file and what it
// replaces.
func digestOf(nodes []wire.NetplanNode) string {
	h := sha256.New()
	for _, n := range nodes {
		text := ""
		if n.Text != nil {
			text = "file " + *n.Text
		}
		diff := ""
		if n.Verdict != nil {
			diff = n.Verdict.Diff
		}
		fmt.Fprintf(h, "%q %q %q\n", n.Node, text, diff)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// lastChange is the change that was begun last on any node, and the ids of its nodes.
// Nodes that were already as ordered had no part in it.
func lastChange(facts map[string]wire.NetplanFacts) (change string, ids []string) {
	var last wire.NetplanFacts
	for _, id := range slices.Sorted(maps.Keys(facts)) {
		if f := facts[id]; f.Change != "" && f.Begun.After(last.Begun) {
			last = f
		}
	}
	for id, f := range facts {
		if f.Change != "" && f.Change == last.Change {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return last.Change, ids
}
