package launcher

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Filter is what may reach a job's ranks on a node: TCP connections from the node itself
// and from the job's members, and to published ports from anybody.
type Filter struct {
	// Cgroup is the ranks' group of cgroup v2, as a path in its mounted tree: every socket
	// made in it is the job's. Empty if there is none; then only Ports are guarded.
	Cgroup string `json:"cgroup,omitempty"`
	// Containers is the group of their containers, if these are in another one.
	Containers string       `json:"boxes,omitempty"`
	Ports      []uint16     `json:"ports,omitempty"`     // known to be listened on here
	Members    []netip.Addr `json:"members"`             // of all the job's nodes, as planned
	Nodes      []NodeID     `json:"nodes,omitempty"`     // those nodes; none: not sent
	Published  []Ports      `json:"published,omitempty"` // open to anybody
	// Served are open to all members of the cluster, whose gateways send requests there.
	Served []Ports `json:"served,omitempty"`
	// Cluster are the members' addresses, where there are Served ones.
	Cluster map[NodeID][]netip.Addr `json:"cluster,omitempty"`
	// Moved are addresses that such a node has now and that are not in Members.
	Moved map[NodeID][]netip.Addr `json:"moved,omitempty"`
}

// Readdress returns the filter with the addresses that nodes have now, by all members that are known; those without an
// address there keep theirs. Planned addresses stay, as a node may get its address back. f itself is not changed.
func (f Filter) Readdress(addrs map[NodeID][]netip.Addr) (now Filter, changed bool) {
	now = f
	now.Moved = nil
	for _, id := range f.Nodes {
		known := addrs[id]
		if len(known) == 0 {
			known = f.Moved[id]
		}
		for _, a := range known {
			a = bare(a)
			if !slices.ContainsFunc(f.Members, func(m netip.Addr) bool { return bare(m) == a }) &&
				!slices.Contains(now.Moved[id], a) {
				if now.Moved == nil {
					now.Moved = map[NodeID][]netip.Addr{}
				}
				now.Moved[id] = append(now.Moved[id], a)
			}
		}
	}
	if len(f.Served) > 0 && len(addrs) > 0 {
		now.Cluster = map[NodeID][]netip.Addr{}
		for id, known := range addrs { // whoever is no member any more goes
			if len(known) == 0 {
				known = f.Cluster[id]
			}
			now.Cluster[id] = known
		}
	}
	return now, !maps.EqualFunc(f.Moved, now.Moved, slices.Equal) || !maps.EqualFunc(f.Cluster, now.Cluster, slices.Equal)
}

func bare(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// Admits lists the addresses whose connections are let in.
func (f Filter) Admits() []netip.Addr {
	out := slices.Clone(f.Members)
	for _, id := range f.Nodes {
		out = append(out, f.Moved[id]...)
	}
	return out
}

// Serves lists the addresses whose connections to Served ports are let in.
func (f Filter) Serves() (out []netip.Addr) {
	for _, addrs := range f.Cluster {
		out = append(out, addrs...)
	}
	return out
}

// Ports are consecutive TCP ports, from 1 to 65535, both ends included.
type Ports struct{ First, Last uint16 }

// MaxPublished bounds how many ranges of ports a job may publish.
const MaxPublished = 64

// ParsePorts reads PORT or FIRST-LAST.
func ParsePorts(text string) (Ports, error) {
	first, last, both := strings.Cut(text, "-")
	if !both {
		last = first
	}
	a, err1 := strconv.ParseUint(first, 10, 16)
	b, err2 := strconv.ParseUint(last, 10, 16)
	if err1 != nil || err2 != nil || a < 1 || b < a {
		return Ports{}, fmt.Errorf("%q: %w: want a port from 1 to 65535, or FIRST-LAST", text, ErrInvalid)
	}
	return Ports{uint16(a), uint16(b)}, nil
}

func (p Ports) String() string {
	if p.First == p.Last {
		return strconv.Itoa(int(p.First))
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}

// MarshalJSON writes them as text.
func (p Ports) MarshalJSON() ([]byte, error) { return json.Marshal(p.String()) }

// UnmarshalJSON reads that text.
func (p *Ports) UnmarshalJSON(b []byte) error {
	var text string
	err := json.Unmarshal(b, &text)
	if err == nil {
		*p, err = ParsePorts(text)
	}
	return err
}

func validPublished(all []Ports) error {
	if len(all) > MaxPublished {
		return fmt.Errorf("--publish: %w: %d ranges, at most %d", ErrInvalid, len(all), MaxPublished)
	}
	for _, p := range all {
		if p.First < 1 || p.Last < p.First {
			return fmt.Errorf("--publish %s: %w: want ports from 1 to 65535", p, ErrInvalid)
		}
	}
	return nil
}
