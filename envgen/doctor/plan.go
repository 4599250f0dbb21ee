package doctor

import (
	"net/netip"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
)

// Patience bounds all probes of one node.
const Patience = 5 * time.Second

// Orders are what one node is to probe, all at once.
type Orders struct {
	Echoes []Echo  `json:"echoes,omitempty"`
	Claims []Claim `json:"claims,omitempty"`
	Dials  []Dial  `json:"dials,omitempty"`
}

// End is an address of a node on one of its NICs.
type End struct {
	Node string     `json:"node"`
	Host string     `json:"host"`
	Port string     `json:"port,omitempty"` // slot; empty for management
	NIC  string     `json:"nic"`
	MTU  int        `json:"mtu"` // bytes
	Addr netip.Addr `json:"addr"`
}

// Echo is a ping to a peer, forced out of one NIC: a small one and one as large as the NIC's MTU, both with the
// don't-fragment bit.
type Echo struct {
	From End `json:"from"`
	To   End `json:"to"`
}

// Claim asks who else has an address (RFC 5227).
type Claim struct {
	End End `json:"end"`
}

// Dial is a connection to make to a port of a peer's agent.
type Dial struct {
	To   End            `json:"to"`
	Addr netip.AddrPort `json:"addr"`
	// What listens there: calls or gossip.
	What string `json:"what"`
}

// Report is the result of one node's orders. Trouble says why something could not be
// probed.
type Report struct {
	Echoes  []EchoResult  `json:"echoes,omitempty"`
	Claims  []ClaimResult `json:"claims,omitempty"`
	Dials   []DialResult  `json:"dials,omitempty"`
	Trouble []string      `json:"trouble,omitempty"`
}

// EchoResult tells which of the two pings came back. Why is the kernel's error where it refused to
// send.
type EchoResult struct {
	Echo
	Small bool   `json:"small"`
	Large bool   `json:"large"`
	Why   string `json:"why,omitempty"`
}

// ClaimResult lists the MACs of other hosts that claim the address.
type ClaimResult struct {
	Claim
	Holders []string `json:"holders,omitempty"`
}

// DialResult is OK, or says why not.
type DialResult struct {
	Dial
	OK  bool   `json:"ok"`
	Why string `json:"why,omitempty"`
}

// Listener is a port of a node's agent.
type Listener struct {
	Node string
	Addr netip.AddrPort
	What string
}

// Plan says what each node has to probe, by node id: pings along every lane of the topology both ways, a claim of
// each fabric and management address, and a connection to each listener of the others. Lanes in which an address
// occurs twice are left to the claims. A node for which present is false is known to be away, and is left out on
// both sides.
func Plan(t envgen.Topology, listeners []Listener, present func(node string) bool) map[string]Orders {
	out := map[string]Orders{}
	order := func(node string, change func(*Orders)) {
		o := out[node]
		change(&o)
		out[node] = o
	}
	for _, l := range t.Lanes {
		for _, a := range l.Ends {
			for _, b := range l.Ends {
				if a.Node != b.Node && a.Path.Addr != b.Path.Addr && present(a.Node) && present(b.Node) {
					order(a.Node, func(o *Orders) { o.Echoes = append(o.Echoes, Echo{From: fabricEnd(t, a), To: fabricEnd(t, b)}) })
				}
			}
		}
	}
	for _, n := range t.Nodes {
		if !present(n.ID) {
			continue
		}
		for _, p := range n.Ports {
			if p.Role != envgen.RoleFabric {
				continue
			}
			for _, d := range p.Devices {
				for _, a := range d.Addresses {
					if d.Carrier != nil && *d.Carrier {
						end := End{Node: n.ID, Host: n.Host, Port: p.Slot, NIC: d.NIC, Addr: a.Addr()}
						order(n.ID, func(o *Orders) { o.Claims = append(o.Claims, Claim{end}) })
					}
				}
			}
		}
		if n.Mgmt.Is4() && n.MgmtNIC != "" && !n.Mgmt.IsLoopback() {
			order(n.ID, func(o *Orders) { o.Claims = append(o.Claims, Claim{mgmtEnd(n)}) })
		}
		for _, l := range listeners {
			if to, ok := t.Node(l.Node); ok && l.Node != n.ID && present(l.Node) {
				order(n.ID, func(o *Orders) { o.Dials = append(o.Dials, Dial{To: mgmtEnd(to), Addr: l.Addr, What: l.What}) })
			}
		}
	}
	return out
}

func mgmtEnd(n envgen.TopologyNode) End {
	return End{Node: n.ID, Host: n.Host, NIC: n.MgmtNIC, Addr: n.Mgmt}
}

func fabricEnd(t envgen.Topology, e envgen.LaneEnd) End {
	n, _ := t.Node(e.Node)
	end := End{Node: e.Node, Host: n.Host, Port: e.Path.Slot, NIC: e.Path.NIC, Addr: e.Path.Addr}
	if p, ok := n.Port(e.Path.Slot); ok {
		for _, d := range p.Devices {
			if d.NIC == e.Path.NIC && d.MTU != nil {
				end.MTU = *d.MTU
			}
		}
	}
	return end
}
