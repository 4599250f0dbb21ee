package survey

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/topology"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Rules give the leader the rules of envgen/topology.
type Rules struct{}

// Derive gives the topology of what the nodes see.
func (Rules) Derive(nodes []envgen.NodeView) (envgen.Topology, error) {
	return topology.Derive(topology.Observed(nodes))
}

// Preflight says what speaks against a job on these nodes.
func (Rules) Preflight(t envgen.Topology, nodes []envgen.NodeView, entries []envgen.Entry) []envgen.Finding {
	return topology.Preflight(t, nodes, entries)
}

// Env gives an agent the fabric's variables, from the hardware as it is now. It uses the
// view that netlink keeps up to date, since reading the whole tree takes as long as the
// rest of a launch. may can refuse a job.
func (s *Survey) Env(
	may func(launcher.Assignment, envgen.Inventory) error,
) func(launcher.Assignment) ([]launcher.Setting, error) {
	return func(a launcher.Assignment) ([]launcher.Setting, error) {
		inv := s.Inventory.Load()
		if err := may(a, inv); err != nil {
			return nil, err
		}
		return Settings(inv, a)
	}
}

// Settings are the fabric's variables for what a node will start.
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

// Vars gives the variables of a node's place in a job: from its hardware, the links to
// its peers, the number of nodes, and the NCCL of the spec.
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

// Preview says where a job would go in the cluster that st shows, and what the fabric has
// against it. It works out here what the leader would answer.
func Preview(st wire.Status, spec launcher.Spec) (rendezvous.Plan, []envgen.Finding, error) {
	if st.Leader == "" {
		return rendezvous.Plan{}, nil, fmt.Errorf("%w: %s", wire.ErrNoLeader, st.Problem)
	}
	var roster rendezvous.Roster
	for _, n := range st.Nodes {
		roster = append(roster, rendezvous.Member{
			Node:  rendezvous.Node{ID: n.ID, Host: n.Host, Addr: netip.AddrPortFrom(n.Addr, 0), Witness: n.Witness},
			Ready: n.State == "ready" || n.State == "drained", Drained: n.Why, Since: n.Since, Inventory: n.Inventory,
		})
	}
	spec.Stages = []launcher.Stage{{Name: "preview", Main: true, RanksPerNode: 1}}
	t, err := Rules{}.Derive(roster.Views())
	if err != nil {
		return rendezvous.Plan{}, nil, err
	}
	plan, err := rendezvous.MakePlan(spec.WithDefaults(), roster, t, 1)
	if err != nil {
		return rendezvous.Plan{}, nil, err
	}
	views, entries := plan.Sides(roster)
	return plan, topology.Preflight(t, views, entries), nil
}
