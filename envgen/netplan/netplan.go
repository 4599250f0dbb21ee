// Package netplan decides which addresses the fabric ports of a cluster get, writes them as one netplan file per
// node, says what other netplan files do to the same interfaces, and puts a file in force such that a mistake
// undoes itself. The plan is pure: the same input in any order gives the same answer, and an address once given
// stays.
//
// It must not find out the cabling (the caller says which ports are joined), must not touch a netplan file other
// than its own, must never configure the interface the cluster talks over, and must not decide which nodes apply
// together: that is the caller's decision, through Order.Agree.
package netplan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// Path is the only file that this package writes; NVIDIA's playbooks call it so.
const Path = "/etc/netplan/40-cx7.yaml"

// Kind is the shape of the cabling, as the caller found it.
type Kind string

const (
	KindPair1   Kind = "pair1"   // two nodes, one cable
	KindPair2   Kind = "pair2"   // two nodes, two cables
	KindSwitch  Kind = "switch"  // every node on one switch
	KindRing    Kind = "ring"    // three nodes or more, each cabled to the next, without a switch
	KindChain   Kind = "chain"   // a ring with one cable missing
	KindMixed   Kind = "mixed"   // some ports cabled to members, others to a LAN; or cables and switches side by side
	KindIslands Kind = "islands" // groups of nodes with no cable between them
)

// Input is what a plan is made from: whole values, no references to the machine it runs
// on.
type Input struct {
	Kind  Kind
	Nodes []Node
	Links []Link
	// Reserved are subnets that no fabric address may be in: those of management, docker0 and the LAN, of
	// every node.
	Reserved []Reserved
	// Previous is the Allocation of the last plan; nil where there was none.
	Previous *Allocation
	// LinkLocal asks for the short form without addresses, for one cable between two nodes: each chooses its own
	// address in 169.254/16, only on the primary twins, so that a job gets half the cable's rate.
	LinkLocal bool
}

// Node is one member of the cluster.
type Node struct {
	// ID is unique and permanent; Host is for people and gives new nodes their order.
	ID   string
	Host string
	// Management is the interface the cluster talks over. Empty where it is not known, which Applier refuses.
	Management string
	// Ports are the node's fabric ports, cabled or not. A port with the role lan is not listed.
	Ports []Port
}

// Port is one physical socket.
type Port struct {
	// Slot identifies the port within its node: bus:device.function.
	Slot string
	// Number is the port's number on its card (0 is beside the RJ-45 socket of a GB10 machine); nil where it has none.
	Number *int
	// Twins are the port's interfaces by PCI domain, the primary first.
	Twins []Twin
}

// Twin is one interface of a port.
type Twin struct {
	// NIC is the interface's current name. netplan files name it, so a plan is valid as long as the name
	// is.
	NIC string
	// MAC finds definitions that name the interface by its MAC; empty where it is not known.
	MAC string
	// PCI is the twin's identity in an Allocation: its PCI address. Where it is empty, NIC is
	// used.
	PCI string
}

func (t Twin) key() string { return cmp.Or(t.PCI, t.NIC) }

// End is a port of a node, as links and allocations name it.
type End struct {
	Node string `json:"node"`
	Slot string `json:"slot"`
}

// Link is a set of ports that hear one another: two ends of a cable, or all ports of a switch. A link with one end
// is a port whose peer is away.
type Link struct{ Ends []End }

// Reserved is a subnet that is in use for something else.
type Reserved struct {
	Prefix netip.Prefix
	// Why completes "overlaps": "docker0 of spark2".
	Why string
}

// maxTwins bounds a port: GB10 has two, and a block of subnets has room for ten.
const maxTwins = 8

// nicName matches an interface's name in a plan. The kernel allows nearly anything; udev makes these, and other
// names would need escaping in netplan's globs.
var nicName = plain.Pattern(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$`)

// slotName matches a port's slot: it is written into a comment of the file.
var slotName = plain.Pattern(`^[A-Za-z0-9_.:-]{1,64}$`)

// check refuses input that fits no topology; each message names the port at fault.
func (in Input) check() error {
	nodes := map[string]Node{}
	ports := map[End]Port{}
	for _, n := range in.Nodes {
		if n.ID == "" {
			return fmt.Errorf("plan netplan: node %q has no id", n.Host)
		}
		if other, dup := nodes[n.ID]; dup {
			return fmt.Errorf("plan netplan: %s and %s have the same id %s", other.Host, n.Host, n.ID)
		}
		nodes[n.ID] = n
		if err := n.check(ports); err != nil {
			return err
		}
	}
	cabled := map[End]bool{}
	for _, l := range in.Links {
		if len(l.Ends) == 0 {
			return fmt.Errorf("plan netplan: a link without ends")
		}
		for _, e := range l.Ends {
			if _, ok := ports[e]; !ok {
				return fmt.Errorf("plan netplan: a link ends at port %s of node %s, which is no fabric port of a "+
					"member", e.Slot, e.Node)
			}
			if cabled[e] {
				return fmt.Errorf("plan netplan: port %s of %s is on two links", e.Slot, nodes[e.Node].Host)
			}
			cabled[e] = true
		}
	}
	for _, r := range in.Reserved {
		if !r.Prefix.IsValid() {
			return fmt.Errorf("plan netplan: the reserved subnet of %s is not set", r.Why)
		}
	}
	if err := in.checkKind(); err != nil {
		return err
	}
	return in.Previous.check()
}

func (n Node) check(ports map[End]Port) error {
	nics := map[string]bool{}
	keys := map[string]bool{}
	for _, p := range n.Ports {
		end := End{n.ID, p.Slot}
		if _, dup := ports[end]; dup || !slotName().MatchString(p.Slot) {
			return fmt.Errorf("plan netplan: %s has a port %q, twice or misnamed (want bus:device.function)", n.Host, p.Slot)
		}
		ports[end] = p
		if len(p.Twins) == 0 || len(p.Twins) > maxTwins {
			return fmt.Errorf("plan netplan: port %s of %s has %d interfaces, want 1 to %d", p.Slot, n.Host,
				len(p.Twins), maxTwins)
		}
		for _, t := range p.Twins {
			switch {
			case !nicName().MatchString(t.NIC):
				return fmt.Errorf("plan netplan: %s has an interface %q on port %s: rename it to letters, digits, - and "+
					"_", n.Host, t.NIC, p.Slot)
			case nics[t.NIC] || keys[t.key()]:
				return fmt.Errorf("plan netplan: %s has the interface %s twice", n.Host, t.NIC)
			case t.NIC == n.Management:
				return fmt.Errorf("plan netplan: %s of %s: %w; move the cluster to another interface (--management)",
					t.NIC, n.Host, ErrManagement)
			}
			nics[t.NIC], keys[t.key()] = true, true
		}
	}
	return nil
}

// checkKind compares the kind with the links. The composed shapes (mixed, chain, islands) have no rule of their
// own.
func (in Input) checkKind() error {
	fail := func(want string) error {
		return fmt.Errorf("plan netplan: the cabling is called %s, which is %s, but there are %d nodes and %d links",
			in.Kind, want, len(in.Nodes), len(in.Links))
	}
	cables := !slices.ContainsFunc(in.Links, func(l Link) bool {
		return len(l.Ends) != 2 || l.Ends[0].Node == l.Ends[1].Node
	})
	switch in.Kind {
	case KindPair1:
		if len(in.Nodes) != 2 || len(in.Links) != 1 || !cables {
			return fail("two nodes and one cable")
		}
	case KindPair2:
		if len(in.Nodes) != 2 || len(in.Links) != 2 || !cables {
			return fail("two nodes and two cables")
		}
	case KindRing:
		if len(in.Nodes) < 3 || len(in.Links) != len(in.Nodes) || !cables {
			return fail("three nodes or more and as many cables")
		}
	case KindSwitch, KindChain, KindMixed, KindIslands:
	default:
		return fmt.Errorf("plan netplan: unknown cabling %q, want %s", in.Kind,
			strings.Join([]string{string(KindPair1), string(KindPair2), string(KindSwitch), string(KindRing),
				string(KindChain), string(KindMixed), string(KindIslands)}, ", "))
	}
	if in.LinkLocal && in.Kind != KindPair1 {
		return fmt.Errorf("plan netplan: link-local addresses do not say which cable leads where, so they are for one "+
			"cable between two nodes (%s), not for %s", KindPair1, in.Kind)
	}
	return nil
}
