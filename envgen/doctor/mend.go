package doctor

import (
	"fmt"
	"slices"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/topology"
)

// The kinds of Mend: there are no others.
const (
	MendUp    = "up"    // set a fabric NIC up
	MendMTU   = "mtu"   // set a fabric NIC's MTU to envgen.JumboMTU, until the next reboot
	MendCache = "cache" // drop the page cache
)

// Mend is one repair that a node may make on itself.
type Mend struct {
	Kind string `json:"kind"`
	NIC  string `json:"nic,omitempty"`
}

// Command is the shell command that does the same.
func (m Mend) Command() string {
	switch m.Kind {
	case MendUp:
		return "ip link set dev " + m.NIC + " up"
	case MendMTU:
		return fmt.Sprintf("ip link set dev %s mtu %d", m.NIC, envgen.JumboMTU)
	}
	return "sync; echo 3 >/proc/sys/vm/drop_caches"
}

// Mends derives from findings what each node may repair: by the state of its hardware, not by a finding's text.
func (c *Cluster) Mends(findings []envgen.Finding) map[string][]Mend {
	out := map[string][]Mend{}
	do := func(node string, m Mend) {
		if !slices.Contains(out[node], m) {
			out[node] = append(out[node], m)
		}
	}
	views := c.views()
	for _, f := range findings {
		i := slices.IndexFunc(views, func(v envgen.NodeView) bool { return v.ID == f.Node })
		if i < 0 {
			continue
		}
		inv := views[i].Inventory
		switch f.Code {
		case topology.CodeNoLink, topology.CodeTwinDown:
			for _, name := range netdevsAt(inv, f.Port) {
				if nic, ok := inv.NIC(name); ok && !nic.Up {
					do(f.Node, Mend{Kind: MendUp, NIC: name})
				}
			}
		case topology.CodeMTULow, topology.CodeMTUUnequal, codePathMTU:
			if nic, ok := inv.NIC(f.Device); ok && nic.MTU < envgen.JumboMTU {
				do(f.Node, Mend{Kind: MendMTU, NIC: f.Device})
			}
		case codePageCache:
			do(f.Node, Mend{Kind: MendCache})
		}
	}
	return out
}

// Troubled reports whether the topology still has a finding about a port with a NIC that was
// set up.
func (c *Cluster) Troubled(mends map[string][]Mend) bool {
	for _, v := range c.views() {
		for _, m := range mends[v.ID] {
			if m.Kind == MendUp && slices.ContainsFunc(c.Topology.Findings, func(f envgen.Finding) bool {
				return f.Node == v.ID && f.Severity != envgen.SeverityInfo && slices.Contains(netdevsAt(v.Inventory, f.Port), m.NIC)
			}) {
				return true
			}
		}
	}
	return false
}

func netdevsAt(inv envgen.Inventory, slot string) []string {
	var out []string
	for _, p := range envgen.Ports(inv) {
		for _, h := range p.Twins {
			if p.Slot == slot && h.Netdev != "" {
				out = append(out, h.Netdev)
			}
		}
	}
	return out
}
