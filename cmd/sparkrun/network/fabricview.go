package network

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/topology"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// fabricView is the cluster's fabric at one moment.
type fabricView struct {
	status   wire.Status
	counters []wire.NodeCounters
	scene    topology.Scene
	// notes tell people what is missing in the view, and why.
	notes []string
}

// newFabricView derives the topology of those nodes about which something is known,
// except witnesses.
func newFabricView(st wire.Status, counters []wire.NodeCounters) (*fabricView, error) {
	v := &fabricView{status: st, counters: counters, scene: topology.Scene{Inventories: map[string]envgen.Inventory{}}}
	if st.Problem != "" {
		v.notes = append(v.notes, st.Problem)
	}
	var views []envgen.NodeView
	var unheard []string
	for _, n := range st.Nodes {
		if n.Witness {
			continue
		}
		if len(n.Inventory.NICs) == 0 {
			unheard = append(unheard, n.Host)
			continue
		}
		v.scene.Inventories[string(n.ID)] = n.Inventory
		views = append(views, envgen.NodeView{ID: string(n.ID), Host: n.Host, Mgmt: n.Addr, Inventory: n.Inventory})
	}
	if len(unheard) > 0 {
		v.notes = append(v.notes, fmt.Sprintf("nothing is known of %s", strings.Join(unheard, ", ")))
	}
	in := topology.Observed(views)
	for i := range in.Nodes {
		for _, c := range counters {
			if string(c.ID) == in.Nodes[i].ID {
				in.Nodes[i].Counters = c.Counters
			}
		}
	}
	var err error
	v.scene.Topology, err = topology.Derive(in)
	return v, err
}

// fabricObject is what --json prints. Scripts read it: fields may be added, none may be
// removed.
type fabricObject struct {
	Self     string              `json:"self"`
	Leader   string              `json:"leader"`
	Problem  string              `json:"problem,omitempty"`
	Topology envgen.Topology     `json:"topology"`
	Nodes    []wire.NodeStatus   `json:"nodes"`
	Counters []wire.NodeCounters `json:"counters,omitempty"`
}

func (v *fabricView) object() fabricObject {
	return fabricObject{
		Self: v.status.Self, Leader: v.status.Leader, Problem: v.status.Problem,
		Topology: v.scene.Topology, Nodes: v.status.Nodes, Counters: v.counters,
	}
}

// tables are the text for people.
func (v *fabricView) tables() string {
	var b strings.Builder
	t := v.scene.Topology
	fmt.Fprintf(&b, "%s: %s\n", t.Shape, plain.Text(t.Why))
	for _, n := range v.status.Nodes {
		node, known := t.Node(string(n.ID))
		fmt.Fprintf(&b, "\n%s\n", plain.Text(v.heading(n)))
		switch {
		case n.Witness:
			b.WriteString("a witness: it votes, gets no ranks, and has no part in the fabric\n")
		case !known:
			b.WriteString("nothing is known of it\n")
		case len(node.Ports) == 0:
			b.WriteString("no RDMA device\n")
		default:
			app.Columns(&b, portRows(node, n.Inventory))
		}
	}
	if links := topology.Words(t); len(links) > 0 {
		rows := [][]string{{"LINK", "KIND", "SPEED", "PORTS", "SUBNETS"}}
		for _, l := range links {
			rows = append(rows, []string{l.Letter, l.Kind, l.Speed, l.Ends, cmp.Or(strings.Join(l.Subnets, ", "), "none")})
		}
		b.WriteString("\n")
		app.Columns(&b, rows)
	}
	if found := countFindings(t.Findings); found != "" {
		fmt.Fprintf(&b, "\n%s: `sparkrun doctor` tells which, and how to mend them\n", found)
	}
	return b.String()
}

// heading is a node's name, address and state.
func (v *fabricView) heading(n wire.NodeStatus) string {
	text := n.Host
	if n.Addr.IsValid() {
		text += ", " + n.Addr.String()
	}
	switch n.State {
	case "ready", "drained", "":
	case "unknown":
		if n.Host != v.status.Self {
			text += ", state unknown"
		}
	default:
		text += ", " + n.State
		if len(n.Inventory.NICs) > 0 {
			text += ": this is what was known of it last"
		}
	}
	return text
}

// portRows has a line for each device; the first of a port has its role.
func portRows(n envgen.TopologyNode, inv envgen.Inventory) [][]string {
	rows := [][]string{{"PORT", "ROLE", "PCI", "HCA", "NIC", "STATE", "SPEED", "MTU", "ADDRESSES", "GID", "PCIE",
		"FIRMWARE", "WHY"}}
	for _, p := range n.Ports {
		name, role, why := strings.TrimPrefix(topology.PortName(n, p), "port "), string(p.Role), p.Why
		for _, d := range p.Devices {
			h, _ := inv.Device(d.HCA)
			rows = append(rows, []string{
				name, role, pciText(d.PCI), d.HCA, cmp.Or(d.NIC, "none"), deviceState(d), speedText(d.SpeedMbps), number(d.MTU),
				cmp.Or(spaced(d.Addresses), "-"), gidText(h), pcieText(h), cmp.Or(h.Firmware, "-"), why,
			})
			name, role, why = "", "", ""
		}
	}
	return rows
}

// deviceState joins RDMA's state of the device with that of its interface, where the two
// differ.
func deviceState(d envgen.DeviceState) string {
	state := cmp.Or(d.State, "unknown")
	switch {
	case d.NIC == "":
		return state + ", no interface"
	case !d.Up:
		return state + ", set down"
	case d.State == envgen.StateActive && (d.Carrier == nil || !*d.Carrier):
		return state + ", no carrier"
	case d.State != envgen.StateActive && d.Carrier != nil && *d.Carrier:
		return state + " with a carrier"
	}
	return state
}

func pciText(a *envgen.PCIAddress) string {
	if a == nil {
		return "-"
	}
	return a.String()
}

func speedText(mbps *int) string {
	if mbps == nil {
		return "-"
	}
	return strconv.FormatFloat(float64(*mbps)/1000, 'f', -1, 64) + " Gb/s"
}

func number(n *int) string {
	if n == nil {
		return "-"
	}
	return strconv.Itoa(*n)
}

func spaced[T fmt.Stringer](all []T) string {
	var words []string
	for _, x := range all {
		words = append(words, x.String())
	}
	return strings.Join(words, " ")
}

// gidText are the indices of the RoCE v2 rows with an IPv4 address.
func gidText(h envgen.HCA) string {
	var at []string
	for _, g := range h.GIDs {
		if g.Type == envgen.GIDTypeRoCEv2 && g.Addr.Is4In6() {
			at = append(at, strconv.Itoa(g.Index))
		}
	}
	return cmp.Or(strings.Join(at, " "), "-")
}

func pcieText(h envgen.HCA) string {
	if h.PCIeGTps == nil || h.PCIeLanes == nil {
		return "-"
	}
	return fmt.Sprintf("%g GT/s x%d", *h.PCIeGTps, *h.PCIeLanes)
}

// countFindings says how many faults there are; empty where none needs action.
func countFindings(all []envgen.Finding) string {
	var words []string
	for _, s := range []envgen.Severity{envgen.SeverityError, envgen.SeverityWarning} {
		n := len(slices.DeleteFunc(slices.Clone(all), func(f envgen.Finding) bool { return f.Severity != s }))
		switch n {
		case 0:
		case 1:
			words = append(words, "1 "+string(s))
		default:
			words = append(words, fmt.Sprintf("%d %ss", n, s))
		}
	}
	return strings.Join(words, ", ")
}
