package survey

import (
	"encoding/json"
	"fmt"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/topology"
	"github.com/sparkrun/sparkrun/launcher"
)

// Rules let a leader ask envgen/topology.
type Rules struct{}

// Derive gives the topology of what the nodes see.
func (Rules) Derive(nodes []envgen.NodeView) (envgen.Topology, error) {
	return topology.Derive(topology.Observed(nodes))
}

// Preflight says what speaks against a job on these nodes.
func (Rules) Preflight(t envgen.Topology, nodes []envgen.NodeView, entries []envgen.Entry) []envgen.Finding {
	return topology.Preflight(t, nodes, entries)
}

// Settings are the fabric's variables for what a node is to start.
func Settings(inv envgen.Inventory, a launcher.Assignment) ([]launcher.Setting, error) {
	var entry envgen.Entry
	if err := json.Unmarshal(a.Meeting, &entry); err != nil {
		return nil, fmt.Errorf("read the plan's meeting: %w", err)
	}
	vars, err := Vars(inv, entry, a.NodeCount, a.Spec)
	var out []launcher.Setting
	for _, v := range vars {
		out = append(out, launcher.Setting(v))
	}
	return out, err
}

// Vars gives the variables of a node's place in a job: its hardware, where it
// meets the others, how many nodes there are, and the NCCL of the spec.
func Vars(inv envgen.Inventory, entry envgen.Entry, nodes int, spec launcher.Spec) ([]envgen.Var, error) {
	place := envgen.Place{Inventory: inv, Entry: entry, Nodes: nodes, SubnetAware: spec.NCCLSubnetAware}
	if spec.NCCL != "" {
		v, err := envgen.ParseNCCLVersion(spec.NCCL)
		if err != nil {
			return nil, fmt.Errorf("--nccl: %w: %w", launcher.ErrInvalid, err)
		}
		place.NCCL = &v
	}
	return envgen.Env(place), nil
}
