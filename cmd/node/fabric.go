package node

import (
	"fmt"
	"net/netip"

	"github.com/sparkrun/sparkrun/cmd/node/rollout"
	"github.com/sparkrun/sparkrun/cmd/node/survey"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/topology"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// fabricEnv works out the fabric's variables from the hardware as it is now:
// the view that netlink keeps up to date, since a read of the whole tree takes
// as long as the rest of a launch.
func (n *node) fabricEnv(locked *rollout.Lock) func(launcher.Assignment) ([]launcher.Setting, error) {
	return func(a launcher.Assignment) ([]launcher.Setting, error) {
		inv := n.inventory.Load()
		if err := locked.Refuse(a, inv); err != nil {
			return nil, err
		}
		return survey.Settings(inv, a)
	}
}

// Preview says where a job would go in the cluster that st shows, and what the
// fabric has against it: what the leader would answer, worked out here.
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
	t, err := survey.Rules{}.Derive(roster.Views())
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
