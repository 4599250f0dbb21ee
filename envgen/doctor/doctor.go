// Package doctor decides whether the machines of a cluster are fit for jobs: host, memory, GPU, cables, and whether
// packets pass. Each finding has a code that never changes its meaning.
//
// Reader reads the facts about one machine other than its NICs. Plan says what each node has to probe, and Probe
// does it there: it finds what no inventory shows, such as a switch with a smaller MTU, an address that another
// host has too, or a firewall. Cluster.Findings evaluates all of it; like Plan it is pure.
//
// It must not change anything, must not read NICs (envgen/fabric does), must not run a program that may hang
// without a time limit, and must not let one unreadable fact keep the rest from being read. Of users' files it
// reads only NCCL's settings. Probe sends only to addresses of members, a few packets each, and is done within
// Patience; what it had no right to do is told apart from what failed.
//
// Probe joins every goroutine that it starts. An echo leaves by one NIC (IP_UNICAST_IF) and may return by any:
// twins share a wire, and a peer may answer to the sibling's MAC, which a socket bound to the NIC would never see.
// A large packet that is lost between equal MTUs is an error, since jobs hang; between unequal ones it is a
// warning.
package doctor

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/topology"
)

// Node is one member and what is known of it.
type Node struct {
	ID   string
	Host string
	Addr netip.Addr // of management; invalid where there is none
	// State is as the leader says: ready, away, ...
	State string
	// FabricOnly: the fabric joins it and the leader, and management does not.
	FabricOnly bool
	// Witness: it never has a rank, so that it needs nothing that ranks need.
	Witness   bool
	Inventory envgen.Inventory
	Counters  []envgen.Counters
	Facts     *Facts // nil where it sent none
	Err       error  // why it did not answer
}

// Cluster is what Findings evaluates.
type Cluster struct {
	Leader  string // its host; empty without a leader, and then Problem may say why
	Problem string
	Removed bool // the only node is this machine, which the cluster has removed
	Nodes   []Node
	// Topology is set by Derive; Reports are the results of its Plan, by node.
	Topology envgen.Topology
	Reports  map[string]Report
	// NoAgent is set where the only node is this machine: what proves that no agent runs. Enrolled: it is in a
	// cluster, where an agent should run.
	NoAgent  error
	Enrolled bool
}

// Derive works out the topology from the inventories and the counters.
func (c *Cluster) Derive() error {
	in := topology.Observed(c.views())
	for i := range in.Nodes {
		for _, n := range c.Nodes {
			if n.ID == in.Nodes[i].ID {
				in.Nodes[i].Counters = n.Counters
			}
		}
	}
	var err error
	c.Topology, err = topology.Derive(in)
	return err
}

// views are the nodes whose hardware is known, except witnesses, which have no part in the fabric.
func (c *Cluster) views() []envgen.NodeView {
	var out []envgen.NodeView
	for _, n := range c.Nodes {
		if len(n.Inventory.NICs) > 0 && !n.Witness {
			out = append(out, envgen.NodeView{ID: n.ID, Host: n.Host, Mgmt: n.Addr, Inventory: n.Inventory})
		}
	}
	return out
}

// Findings are all faults of a host, or of all where it is empty: worst first, each fault once.
func (c *Cluster) Findings(host string) []envgen.Finding {
	var out []envgen.Finding
	if c.NoAgent != nil {
		out = append(out, noAgent(c.Nodes[0], c.NoAgent, c.Enrolled))
	}
	if c.Removed {
		out = append(out, envgen.Finding{Code: codeRemoved, Severity: envgen.SeverityError, Node: c.Nodes[0].ID,
			Host:     c.Nodes[0].Host,
			Text:     "this machine was removed from its cluster: nothing can be launched here, and only it was looked at",
			Evidence: c.Problem, Remedy: "sudo sparkrun leave"})
	} else if c.Leader == "" && c.Problem != "" {
		out = append(out, envgen.Finding{Code: codeNoLeader, Severity: envgen.SeverityError,
			Text:     "the cluster has no leader: nothing can be launched or stopped",
			Evidence: c.Problem, Remedy: "sparkrun status"})
	}
	var nodes []Node
	gone := map[string]bool{}
	for _, n := range c.Nodes {
		if n.Err != nil || n.Facts == nil {
			gone[n.ID] = true
			out = append(out, away(n))
			continue
		}
		nodes = append(nodes, n)
		if n.State == "away" {
			out = append(out, envgen.Finding{Code: codeNodeAway, Severity: envgen.SeverityWarning, Node: n.ID, Host: n.Host,
				Text:     n.Host + " answers here, and the leader does not hear it",
				Evidence: "state away", Remedy: "sudo systemctl restart sparkrun"})
		}
	}
	out = append(out, c.FabricOnly()...)
	// The last known state of a node that does not answer is no finding of now.
	seen := slices.Clone(c.Topology.Findings)
	out = append(out, slices.DeleteFunc(seen, func(f envgen.Finding) bool { return gone[f.Node] })...)
	out = append(out, machines(nodes, c.Topology.Shape)...)
	out = append(out, packets(c.Reports, c.views())...)
	return slices.DeleteFunc(once(out), func(f envgen.Finding) bool { return host != "" && f.Host != host })
}

func noAgent(n Node, why error, enrolled bool) envgen.Finding {
	f := envgen.Finding{Code: codeNoAgent, Severity: envgen.SeverityError, Node: n.ID, Host: n.Host,
		Text: "no agent runs here: only what this machine itself shows was looked at, and nothing can be " +
			"launched on it",
		Evidence: why.Error(), Remedy: "sudo systemctl start sparkrun"}
	if !enrolled {
		f.Text = "this machine is in no cluster, so that no agent runs here: only what it shows by itself was looked at; " +
			"`sudo sparkrun init` makes a cluster, `sudo sparkrun join` joins one"
		f.Remedy = "sudo sparkrun init"
	}
	return f
}

func away(n Node) envgen.Finding {
	why := "it said nothing"
	if n.Err != nil {
		why = n.Err.Error()
	}
	f := envgen.Finding{Code: codeNodeAway, Severity: envgen.SeverityError, Node: n.ID, Host: n.Host,
		Text:     n.Host + " does not answer: nothing can be launched there, and nothing was learnt of it",
		Evidence: why, Remedy: "sudo systemctl start sparkrun"}
	if n.Witness {
		f.Severity = envgen.SeverityWarning
		f.Text = n.Host + ", a witness, does not answer: jobs go on, and until it is back the loss of another " +
			"machine " +
			"leaves the cluster without a leader"
	}
	return f
}

// once sorts findings and drops those that another finding explains better: unequal MTUs where lost packets
// were seen.
func once(all []envgen.Finding) []envgen.Finding {
	out := slices.DeleteFunc(all, func(f envgen.Finding) bool {
		return f.Code == topology.CodeMTUUnequal && slices.ContainsFunc(all, func(o envgen.Finding) bool {
			return o.Code == codePathMTU && o.Node == f.Node && o.Device == f.Device
		})
	})
	slices.SortStableFunc(out, func(a, b envgen.Finding) int {
		return cmp.Or(cmp.Compare(a.Severity.Rank(), b.Severity.Rank()),
			cmp.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port),
			cmp.Compare(a.Device, b.Device), cmp.Compare(a.Code, b.Code))
	})
	return out
}
