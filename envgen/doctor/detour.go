package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/envgen"
)

// FabricOnly says which members the leader reaches only over the fabric, and what to look at; a single finding
// about the leader itself where it reaches no member otherwise.
func (c *Cluster) FabricOnly() []envgen.Finding {
	var over []Node
	var leader Node
	others := 0
	for _, n := range c.Nodes {
		switch {
		case n.Host == c.Leader:
			leader = n
		case n.FabricOnly:
			over = append(over, n)
		case n.State == "ready":
			others++
		}
	}
	if len(over) > 1 && others == 0 || len(over) > 0 && unplugged(leader) != "" {
		var hosts []string
		for _, n := range over {
			hosts = append(hosts, n.Host)
		}
		what := fmt.Sprintf("%s, which leads, reaches %s over the fabric only", leader.Host, strings.Join(hosts, ", "))
		return []envgen.Finding{fabricOnly(leader, what, unplugged(leader), over)}
	}
	var out []envgen.Finding
	for _, n := range over {
		what := fmt.Sprintf("%s, which leads, reaches %s over the fabric only", c.Leader, n.Host)
		out = append(out, fabricOnly(n, what, unplugged(n), over))
	}
	return out
}

func fabricOnly(n Node, what, nic string, over []Node) envgen.Finding {
	f := envgen.Finding{Code: codeFabricOnly, Severity: envgen.SeverityWarning,
		Node: n.ID, Host: n.Host, Device: nic,
		Text: what + ": the management network between them carries nothing; jobs and commands go on"}
	var seen []string
	for _, o := range over {
		seen = append(seen, fmt.Sprintf("%s does not answer at %s", o.Host, o.Addr))
	}
	f.Evidence = strings.Join(seen, "; ")
	if nic != "" {
		f.Text += fmt.Sprintf("; %s of %s has no link: look at its cable and at the switch", nic, n.Host)
		f.Remedy = "ip link show dev " + nic
	} else {
		f.Text += "; look at the switch and at the cables of the management network"
		f.Remedy = "ping -c 3 " + over[0].Addr.String()
	}
	return f
}

// unplugged names the management interface of a node if it is known to have no link; otherwise empty.
func unplugged(n Node) string {
	i := slices.IndexFunc(n.Inventory.NICs, func(nic envgen.NIC) bool {
		return nic.Carrier != nil && !*nic.Carrier &&
			slices.ContainsFunc(nic.Addresses, func(p netip.Prefix) bool { return p.Addr() == n.Addr })
	})
	if i < 0 {
		return ""
	}
	return n.Inventory.NICs[i].Name
}
