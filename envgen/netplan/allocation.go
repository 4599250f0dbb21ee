package netplan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
)

// Allocation is what a plan must remember so that the next one changes no address. It also keeps nodes and ports
// that are away, until Forget.
type Allocation struct {
	// Numbers are the nodes' own, from 1: node N's address ends in 10+N where that was free.
	Numbers map[string]int `json:"numbers"`
	// Rails are in order of creation.
	Rails []Rail `json:"rails"`
}

// Rail is one set of subnets, a subnet for each lane, that joins at most one port of each node. A cable or a switch
// has one rail; a switch with both ports of a node on it has two, for two interfaces of one node in one subnet
// answer for each other.
type Rail struct {
	Subnets []netip.Prefix `json:"subnets"`
	Ports   []RailPort     `json:"seats"`
}

// RailPort is a port on a rail, with the addresses of its interfaces.
type RailPort struct {
	End
	Twins []RailTwin `json:"twins"`
}

// RailTwin is the address of one interface.
type RailTwin struct {
	// Key is the twin's PCI address, or its name where it has none.
	Key string `json:"key"`
	// Lane is the index of the subnet. It stays when the other twin is missing.
	Lane int        `json:"lane"`
	Addr netip.Addr `json:"addr"`
}

// ParseAllocation reads what json.Marshal made of an Allocation. It refuses unknown fields: what a newer version
// remembers must not be lost when it is written back.
func ParseAllocation(data []byte) (Allocation, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var a Allocation
	if err := dec.Decode(&a); err != nil {
		return Allocation{}, fmt.Errorf("parse netplan allocation: %w", err)
	}
	if err := a.check(); err != nil {
		return Allocation{}, err
	}
	return a, nil
}

// Forget drops nodes that have left the cluster, so that their numbers and subnets can be given to others.
func (a Allocation) Forget(nodes ...string) Allocation {
	out := Allocation{Numbers: map[string]int{}}
	for id, n := range a.Numbers {
		if !slices.Contains(nodes, id) {
			out.Numbers[id] = n
		}
	}
	for _, r := range a.Rails {
		kept := Rail{Subnets: slices.Clone(r.Subnets)}
		for _, s := range r.Ports {
			if !slices.Contains(nodes, s.Node) {
				kept.Ports = append(kept.Ports, s)
			}
		}
		if len(kept.Ports) > 0 {
			out.Rails = append(out.Rails, kept)
		}
	}
	return out
}

// check verifies that this package could have written the allocation: it may come from another node.
func (a *Allocation) check() error {
	if a == nil {
		return nil
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("check netplan allocation: %s; forget it and plan anew", fmt.Sprintf(format, args...))
	}
	numbers := map[int]string{}
	for id, n := range a.Numbers {
		if other, dup := numbers[n]; dup || n < 1 {
			return bad("nodes %s and %s have number %d", id, other, n)
		}
		numbers[n] = id
	}
	var subnets []netip.Prefix
	ends := map[End]bool{}
	for _, r := range a.Rails {
		for _, s := range r.Subnets {
			if !s.IsValid() || !s.Addr().Is4() || s.Bits() < 8 || s.Bits() > 30 || s.Masked() != s {
				return bad("%s is no IPv4 subnet of /8 to /30", s)
			}
			if i := slices.IndexFunc(subnets, s.Overlaps); i >= 0 {
				return bad("subnet %s overlaps %s", s, subnets[i])
			}
			subnets = append(subnets, s)
		}
		if err := r.check(ends, bad); err != nil {
			return err
		}
	}
	return nil
}

func (r Rail) check(ends map[End]bool, bad func(string, ...any) error) error {
	nodes := map[string]bool{}
	addrs := map[netip.Addr]bool{}
	for _, s := range r.Ports {
		if ends[s.End] || nodes[s.Node] {
			return bad("port %s of node %s is on two rails, or its node has two ports on one link", s.Slot, s.Node)
		}
		ends[s.End], nodes[s.Node] = true, true
		lanes := map[int]bool{}
		keys := map[string]bool{}
		for _, t := range s.Twins {
			if t.Lane < 0 || t.Lane >= len(r.Subnets) || lanes[t.Lane] || keys[t.Key] {
				return bad("interface %s of node %s is on lane %d, which is not there or taken", t.Key, s.Node, t.Lane)
			}
			if !usableHost(r.Subnets[t.Lane], t.Addr) || addrs[t.Addr] {
				return bad("address %s of node %s is not in %s, or taken", t.Addr, s.Node, r.Subnets[t.Lane])
			}
			lanes[t.Lane], keys[t.Key], addrs[t.Addr] = true, true, true
		}
	}
	return nil
}

// usableHost reports whether addr is in the subnet and neither its first nor its last address.
func usableHost(subnet netip.Prefix, addr netip.Addr) bool {
	return addr.Is4() && subnet.Contains(addr) && addr != subnet.Addr() && subnet.Contains(addr.Next())
}

// clone copies what a new plan will change.
func (a *Allocation) clone() Allocation {
	out := Allocation{Numbers: map[string]int{}}
	if a == nil {
		return out
	}
	for id, n := range a.Numbers {
		out.Numbers[id] = n
	}
	for _, r := range a.Rails {
		c := Rail{Subnets: slices.Clone(r.Subnets)}
		for _, s := range r.Ports {
			c.Ports = append(c.Ports, RailPort{s.End, slices.Clone(s.Twins)})
		}
		out.Rails = append(out.Rails, c)
	}
	return out
}

// find returns the index of a port's rail and of the port on it.
func (a Allocation) find(e End) (rail, at int, ok bool) {
	for i, r := range a.Rails {
		if j := slices.IndexFunc(r.Ports, func(s RailPort) bool { return s.End == e }); j >= 0 {
			return i, j, true
		}
	}
	return 0, 0, false
}
