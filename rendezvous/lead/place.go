package lead

import (
	"slices"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// Fabric knows what joins the members: envgen/topology's rules.
type Fabric interface {
	// Derive works out how the nodes are joined.
	Derive([]envgen.NodeView) (envgen.Topology, error)
	// Preflight says what a job on the nodes, which meet at the entries, would
	// run into: errors stop it.
	Preflight(envgen.Topology, []envgen.NodeView, []envgen.Entry) []envgen.Finding
}

// derived is a topology and the roster it is of.
type derived struct {
	topology envgen.Topology
	changed  <-chan struct{} // the members' state it was made of: closed by the next
	nodes    []rendezvous.Node
}

// Place says where a job would go and what the fabric has against it: an error
// among the findings would refuse it. It starts nothing.
func (l *Leader) Place(spec launcher.Spec) (rendezvous.Plan, []envgen.Finding, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.place(spec, 1)
}

// place makes a plan and its preflight. l.mu is held.
func (l *Leader) place(spec launcher.Spec, gen launcher.Generation) (rendezvous.Plan, []envgen.Finding, error) {
	roster := l.roster()
	topology, err := l.topology(roster)
	if err != nil {
		return rendezvous.Plan{}, nil, err
	}
	for i, m := range roster {
		if s := l.members[m.ID]; s != nil && s.retired {
			roster[i].Ready = false
		}
	}
	plan, err := rendezvous.MakePlan(spec, roster, topology, gen)
	if err != nil || l.cfg.Fabric == nil {
		return plan, nil, err
	}
	views, entries := plan.Sides(roster)
	findings := l.cfg.Fabric.Preflight(topology, views, entries)
	if spec.Force {
		findings = rendezvous.Forced(findings)
	}
	return plan, findings, nil
}

// topology is how the members that are ready are joined, worked out once for
// each change of the roster. l.mu is held.
func (l *Leader) topology(roster rendezvous.Roster) (envgen.Topology, error) {
	if l.cfg.Fabric == nil {
		return envgen.Topology{}, nil
	}
	var nodes []rendezvous.Node
	for _, m := range roster {
		nodes = append(nodes, m.Node)
	}
	if l.derived.changed == l.changed && slices.Equal(l.derived.nodes, nodes) {
		return l.derived.topology, nil
	}
	t, err := l.cfg.Fabric.Derive(roster.Views())
	if err != nil {
		return envgen.Topology{}, err
	}
	l.derived = derived{topology: t, changed: l.changed, nodes: nodes}
	return t, nil
}
