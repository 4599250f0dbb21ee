package node

import (
	"encoding/json"
	"fmt"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/topology"
	"github.com/sparkrun/sparkrun/launcher"
)

// fabricRules lets a leader ask envgen/topology.
type fabricRules struct{}

func (fabricRules) Derive(nodes []envgen.NodeView) (envgen.Topology, error) {
	return topology.Derive(topology.Observed(nodes))
}

func (fabricRules) Preflight(t envgen.Topology, nodes []envgen.NodeView, entries []envgen.Entry) []envgen.Finding {
	return topology.Preflight(t, nodes, entries)
}

// fabricEnv works out the fabric's variables from the hardware as it is now:
// the view that netlink keeps up to date, since a read of the whole tree takes
// as long as the rest of a launch.
func (n *node) fabricEnv(a launcher.Assignment) ([]launcher.Setting, error) {
	inv, _ := n.view()
	return fabricSettings(inv, a)
}

func fabricSettings(inv envgen.Inventory, a launcher.Assignment) ([]launcher.Setting, error) {
	place := envgen.Place{Inventory: inv, Nodes: a.NodeCount, SubnetAware: a.Spec.NCCLSubnetAware}
	if err := json.Unmarshal(a.Meeting, &place.Entry); err != nil {
		return nil, fmt.Errorf("read the plan's meeting: %w", err)
	}
	if a.Spec.NCCL != "" {
		v, err := envgen.ParseNCCLVersion(a.Spec.NCCL)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", launcher.ErrInvalid, err)
		}
		place.NCCL = &v
	}
	var out []launcher.Setting
	for _, v := range envgen.Env(place) {
		out = append(out, launcher.Setting(v))
	}
	return out, nil
}
