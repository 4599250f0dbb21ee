package doctor

import (
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/topology"
)

// Tally counts what is wrong with one machine.
type Tally struct {
	Errors   int `json:"errors,omitempty"`
	Warnings int `json:"warnings,omitempty"`
}

// Known are the faults that the inventories show by themselves, without a question to any machine: what a list of
// machines may say of each. It derives the topology where Derive has not.
func (c *Cluster) Known() []envgen.Finding {
	if c.Topology.Nodes == nil && c.Derive() != nil {
		return nil // Findings is asked by doctor, which tells why
	}
	away := func(f envgen.Finding) bool {
		return slices.ContainsFunc(c.Nodes, func(n Node) bool { return n.ID == f.Node && n.State == "away" })
	}
	// Their last known state is no finding of now; and who still looks may be wrong in a moment.
	return slices.DeleteFunc(slices.Concat(c.FabricOnly(), c.Topology.Findings), func(f envgen.Finding) bool {
		return away(f) || f.Code == topology.CodeStillLooking
	})
}

// Counts are those of Known by host; what is about no single machine counts under the empty one.
func (c *Cluster) Counts() map[string]Tally {
	out := map[string]Tally{}
	for _, f := range c.Known() {
		t := out[f.Host]
		switch f.Severity {
		case envgen.SeverityError:
			t.Errors++
		case envgen.SeverityWarning:
			t.Warnings++
		default:
			continue
		}
		out[f.Host] = t
	}
	return out
}

// Together makes one finding of those that say the same of several machines, whose names it has.
func Together(findings []envgen.Finding) (out []envgen.Finding) {
	at, hosts := map[envgen.Finding]int{}, map[int][]string{}
	for _, f := range findings {
		same := f
		same.Node, same.Host = "", ""
		if f.Host != "" {
			same.Text = strings.ReplaceAll(f.Text, f.Host, "\x00")
		}
		i, seen := at[same]
		if !seen || f.Host == "" {
			i = len(out)
			at[same], out = i, append(out, same)
		}
		hosts[i] = append(hosts[i], f.Host)
	}
	for i, f := range out {
		out[i].Host = strings.Join(hosts[i], ", ")
		out[i].Text = strings.ReplaceAll(f.Text, "\x00", out[i].Host)
	}
	return out
}
