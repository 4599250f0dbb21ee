package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/topology"
)

// Fallbacks says what of the fabric works less well than its links promise: strangers on its network, and ready
// members that no other one meets there. It needs Derive.
func (c *Cluster) Fallbacks() []string {
	var out []string
	for _, f := range c.Topology.Findings {
		if f.Code == topology.CodeStranger {
			out = append(out, f.Text)
		}
	}
	var linked []envgen.NodeView
	for _, v := range c.views() {
		if c.ready(v.ID) && c.hasFabric(v) {
			linked = append(linked, v)
		}
	}
	var hosts []string
	why := ""
	for i, v := range linked {
		if on, reason := c.meetsOne(v, slices.Delete(slices.Clone(linked), i, i+1)); !on && reason != "" {
			hosts, why = append(hosts, v.Host), reason
		}
	}
	if len(hosts) > 0 {
		out = append(out, fmt.Sprintf("jobs meet %s over management, although the fabric has a link there: %s; "+
			"see `sparkrun doctor`", strings.Join(hosts, ", "), why))
	}
	return out
}

func (c *Cluster) ready(id string) bool {
	return slices.ContainsFunc(c.Nodes, func(n Node) bool {
		return n.ID == id && (n.State == "ready" || n.State == "drained")
	})
}

// hasFabric reports whether a RoCE port of the node is the fabric's and has a link. (InfiniBand is met by no address.)
func (c *Cluster) hasFabric(v envgen.NodeView) bool {
	n, _ := c.Topology.Node(v.ID)
	return slices.ContainsFunc(n.Ports, func(p envgen.PortState) bool {
		return p.Role == envgen.RoleFabric && p.Live && slices.ContainsFunc(v.Inventory.Devices, func(h envgen.HCA) bool {
			return h.RoCE() && slices.ContainsFunc(p.Devices, func(d envgen.DeviceState) bool { return d.HCA == h.Name })
		})
	})
}

// meetsOne reports whether a node meets one of the others on the fabric, and if not, why.
func (c *Cluster) meetsOne(v envgen.NodeView, others []envgen.NodeView) (on bool, why string) {
	for _, o := range others {
		m, err := c.Topology.Meet([]envgen.NodeView{v, o})
		if err != nil {
			continue
		}
		if m.Kind != envgen.NetworkManagement || len(m.Entries[0].Paths) > 0 {
			return true, ""
		}
		why = strings.TrimPrefix(m.Why, "the management network is used: ")
	}
	return false, why
}
