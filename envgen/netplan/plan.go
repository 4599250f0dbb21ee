package netplan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/envgen"
)

// Plan is the result of Make.
type Plan struct {
	// Allocation must be remembered for the next plan, even before the files are applied.
	Allocation Allocation
	// Files are one for each node that has a port with an address, by the nodes' numbers.
	Files []File
	// Notes are sentences on what the plan could not do, or had to change.
	Notes []string
}

// File is the netplan file of one node.
type File struct {
	Node string
	Host string
	// Text is the content of Path. Its mode must be 0600.
	Text string
	// Interfaces are the content of Text, by port and twin.
	Interfaces []Interface
	// Peers are the addresses of others that must answer once all nodes have applied their files.
	Peers []Peer
}

// Interface is one interface's part of a file.
type Interface struct {
	Twin
	// Port is the name of its port, Second true for all twins but the primary.
	Port   string
	Second bool
	// Address is invalid in the link-local form.
	Address netip.Prefix
}

// Peer is a node that must be reachable over an interface of this node.
type Peer struct {
	Node string
	Host string
	// NIC is the interface of this node, Addr the peer's address. Addr is invalid in the link-local form: there the
	// peer is found by asking who answers on NIC.
	NIC  string
	Addr netip.Addr
}

// String names the peer for an error.
func (p Peer) String() string {
	if p.Addr.IsValid() {
		return fmt.Sprintf("%s (%s over %s)", p.Host, p.Addr, p.NIC)
	}
	return fmt.Sprintf("%s (over %s)", p.Host, p.NIC)
}

// Make plans the addresses and files of a cluster. It is pure: any order of nodes, ports and links gives the same
// answer, and with the last plan's Allocation no interface that is still on its link gets another address.
func Make(in Input) (Plan, error) {
	if err := in.check(); err != nil {
		return Plan{}, err
	}
	a := newAllocator(in)
	if in.LinkLocal {
		return a.linkLocal(), nil
	}
	if err := a.allocate(); err != nil {
		return Plan{}, err
	}
	plan := Plan{Allocation: a.next, Notes: a.notes}
	for _, n := range a.byNumber() {
		f := File{Node: n.ID, Host: n.Host}
		for _, p := range sortedPorts(n) {
			a.addPort(&f, n, p)
		}
		if len(f.Interfaces) > 0 {
			f.Text = render(f.Interfaces)
			plan.Files = append(plan.Files, f)
		}
	}
	return plan, nil
}

// addPort adds a port's interfaces to the file, and all ports on the same subnets as peers.
func (a *allocator) addPort(f *File, n Node, p Port) {
	end := End{n.ID, p.Slot}
	rail, at, ok := a.next.find(end)
	if !ok {
		return
	}
	r := a.next.Rails[rail]
	for i, twin := range p.Twins {
		mine := r.Ports[at].Twins[slices.IndexFunc(r.Ports[at].Twins, func(t RailTwin) bool { return t.Key == twin.key() })]
		f.Interfaces = append(f.Interfaces, Interface{Twin: twin, Port: p.name(), Second: i > 0,
			Address: netip.PrefixFrom(mine.Addr, r.Subnets[mine.Lane].Bits())})
		if !a.live(end) {
			continue
		}
		for _, s := range r.Ports {
			if s.Node == n.ID || !a.live(s.End) {
				continue
			}
			for _, t := range a.liveTwins(s) {
				if t.Lane == mine.Lane {
					f.Peers = append(f.Peers, Peer{Node: s.Node, Host: a.nodes[s.Node].Host, NIC: twin.NIC, Addr: t.Addr})
				}
			}
		}
	}
}

// linkLocal is the form of NVIDIA's playbook for two nodes and one cable: both ports' primary twins choose
// their own addresses, so that the cable may be in either port.
func (a *allocator) linkLocal() Plan {
	a.number()
	plan := Plan{Allocation: a.next, Notes: []string{
		"link-local addresses are on the primary twins alone: a job gets about half the cable's rate, and the MTU stays " +
			"as it is"}}
	link := a.links()[0]
	for _, n := range a.byNumber() {
		f := File{Node: n.ID, Host: n.Host}
		for _, p := range sortedPorts(n) {
			f.Interfaces = append(f.Interfaces, Interface{Twin: p.Twins[0], Port: p.name()})
			for _, e := range link {
				if e.Node != n.ID && slices.Contains(link, End{n.ID, p.Slot}) {
					f.Peers = append(f.Peers, Peer{Node: e.Node, Host: a.nodes[e.Node].Host, NIC: p.Twins[0].NIC})
				}
			}
		}
		f.Text = render(f.Interfaces)
		plan.Files = append(plan.Files, f)
	}
	return plan
}

func (a *allocator) byNumber() []Node {
	nodes := slices.Clone(a.in.Nodes)
	slices.SortStableFunc(nodes, func(x, y Node) int { return a.next.Numbers[x.ID] - a.next.Numbers[y.ID] })
	return nodes
}

func sortedPorts(n Node) []Port {
	ports := slices.Clone(n.Ports)
	slices.SortStableFunc(ports, comparePorts)
	return ports
}

// render writes the file as text, without an encoder, so that a new version of the encoder never looks like a
// change to apply, and so that it says no and not "no".
func render(interfaces []Interface) string {
	var b strings.Builder
	b.WriteString("# Written by sparkrun netplan apply, which writes it anew: do not edit. Name these interfaces in no\n" +
		"# other netplan file, for netplan adds up the addresses of all files.\n" +
		"network:\n  version: 2\n  ethernets:\n")
	for _, i := range interfaces {
		what := ""
		if i.Second {
			what = ", twin"
		}
		fmt.Fprintf(&b, "    %s: # port %s%s\n", quote(i.NIC), i.Port, what)
		if !i.Address.IsValid() {
			b.WriteString("      link-local: [ipv4]\n")
			continue
		}
		fmt.Fprintf(&b, "      dhcp4: no\n      dhcp6: no\n      link-local: []\n      mtu: %d\n      addresses: "+
			"[%s]\n", envgen.JumboMTU, i.Address)
	}
	return b.String()
}

// quote writes a name as a YAML key. Names that look like a number or a boolean need quotes to be strings; nothing
// that nicName allows needs escaping within them.
func quote(name string) string {
	switch strings.ToLower(name) {
	case "y", "n", "yes", "no", "on", "off", "true", "false", "null":
		return `"` + name + `"`
	}
	if name[0] >= '0' && name[0] <= '9' {
		return `"` + name + `"`
	}
	return name
}
