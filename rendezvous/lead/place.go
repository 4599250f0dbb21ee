package lead

import (
	"errors"
	"fmt"
	"slices"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// Fabric knows how the members are joined: envgen/topology's rules.
type Fabric interface {
	// Derive works out how the nodes are joined.
	Derive([]envgen.NodeView) (envgen.Topology, error)
	// Preflight says which problems a job on the nodes, meeting at the entries, would
	// have: errors stop it.
	Preflight(envgen.Topology, []envgen.NodeView, []envgen.Entry) []envgen.Finding
}

// derived is a topology and the roster that it was derived from.
type derived struct {
	topology envgen.Topology
	changed  <-chan struct{} // closed when the members' state has changed since
	nodes    []rendezvous.Node
}

// Place says where a job would go and what is wrong with the fabric there: with an error
// among the findings the job would be refused. GPUs that are taken may be free at the
// launch: Place says which job has them and plans as if they were free. It starts
// nothing.
func (l *Leader) Place(spec launcher.Spec) (rendezvous.Plan, []envgen.Finding, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	plan, findings, err := l.placeJob(spec, nil)
	if busy := new(busyError); err == nil || !errors.As(err, &busy) && !errors.Is(err, rendezvous.ErrFabricUnfit) {
		return plan, findings, err
	}
	roster := l.available(spec)
	plan, findings, err = l.place(spec, roster, rendezvous.Former{})
	if err != nil {
		return plan, findings, err
	}
	then, remedy := "a launch would be refused", "use "+remedyFor(spec)
	if spec.Wait {
		then, remedy = "a launch would queue", "sparkrun ps"
	}
	taken := func(p rendezvous.Place, text string) {
		findings = append(findings,
			envgen.Finding{Code: rendezvous.CodeGPUsTaken, Severity: envgen.SeverityWarning, Node: string(p.Node), Host: p.Host,
				Text: text + ": " + then, Remedy: remedy})
	}
	held := l.holders(nil)
	for _, p := range plan.Nodes {
		if by := l.inTheWay(spec, p.Node, held[p.Node]); by != "" && spec.Memory == nil {
			taken(p, "its GPUs are taken now "+by)
		} else if by != "" {
			taken(p, "its memory is taken now "+by)
		}
	}
	if first := l.before(spec, nil, roster); first != nil {
		taken(rendezvous.Place{}, describe(first.job)+" is before it in the queue")
	}
	return plan, findings, nil
}

// placeJob plans a job's first generation, or with the job's run a later one: with as
// many nodes as are available, down to its minimum, plus the spare ones, as if gone had ended. l.mu is held.
func (l *Leader) placeJob(spec launcher.Spec, r *run, gone ...*run) (rendezvous.Plan, []envgen.Finding, error) {
	var former rendezvous.Former
	if r != nil && r.job.Plan.Generation > 0 {
		former = r.job.Former()
	}
	least := spec.Nodes
	if spec.MinNodes > 0 {
		least = spec.MinNodes
	}
	roster := l.available(spec)
	if first := l.before(spec, r, roster); first != nil {
		return rendezvous.Plan{}, nil, &busyError{describe(first.job) + " is before it in the queue", remedyFor(spec)}
	}
	free, taken := l.free(spec, r, roster, gone...)
	plan, findings, err := l.fit(spec, free, former, least)
	if err != nil && taken != "" {
		if _, _, err = l.fit(spec, roster, former, least); err == nil { // an error that calls none away who is taken
			err = &busyError{taken, remedyFor(spec)}
		}
	}
	return plan, findings, err
}

// fit plans a job on the ready nodes of a roster. l.mu is held.
func (l *Leader) fit(spec launcher.Spec, roster rendezvous.Roster, former rendezvous.Former,
	least int) (rendezvous.Plan, []envgen.Finding, error) {
	again := len(former.Nodes) > 0
	if again || spec.Spare > 0 || least < spec.Nodes { // other hosts may replace those that are away
		spec.On = slices.DeleteFunc(slices.Clone(spec.On), func(h string) bool {
			return !slices.ContainsFunc(roster,
				func(m rendezvous.Member) bool { return m.Host == h && m.Ready && m.Drained == "" }) && len(spec.On) > least
		})
	}
	var last error // of the attempt with the fewest nodes
	for n := spec.Nodes; n >= least; n-- {
		spec.Nodes = n
		plan, findings, err := l.place(spec, roster, former)
		if err == nil {
			err = rendezvous.Unfit(findings)
		}
		if err == nil {
			plan.Held, err = spares(spec, roster, plan, again)
		}
		if err == nil {
			return plan, findings, nil
		}
		last = err
	}
	return rendezvous.Plan{}, nil, last
}

// spares picks ready nodes that the plan does not use. A first attempt needs all of them;
// later ones take what is left.
func spares(spec launcher.Spec, roster rendezvous.Roster, plan rendezvous.Plan, again bool) ([]rendezvous.Holding,
	error) {
	var held []rendezvous.Holding
	for _, m := range roster {
		used := slices.ContainsFunc(plan.Nodes, func(p rendezvous.Place) bool { return p.Node == m.ID })
		allowed := !slices.Contains(spec.Exclude, m.Host) && (len(spec.On) == 0 || slices.Contains(spec.On, m.Host))
		if len(held) < spec.Spare && m.Ready && m.Drained == "" && !m.Witness && allowed && !used {
			held = append(held, rendezvous.Holding{Node: m.ID, Host: m.Host})
		}
	}
	if len(held) < spec.Spare && !again {
		drained := ""
		for _, m := range roster {
			if m.Drained != "" {
				drained += fmt.Sprintf("; %s is drained: %s", m.Host, m.Drained)
			}
		}
		return nil, fmt.Errorf("%w: %d nodes and %d spare ones wanted, %d of these are ready%s",
			rendezvous.ErrCannotPlace, len(plan.Nodes), spec.Spare, len(plan.Nodes)+len(held), drained)
	}
	return held, nil
}

// available is the roster that placement may use for a job. l.mu is held.
func (l *Leader) available(spec launcher.Spec) rendezvous.Roster {
	roster := l.roster()
	l.tooSmall(spec, roster)
	for i, m := range roster {
		switch s := l.members[m.ID]; {
		case s == nil:
		case s.retired:
			roster[i].Ready = false
		case spec.Lease() > 0 && !s.leases && m.Ready && m.Drained == "":
			roster[i].Drained = "--on-partition end needs a newer sparkrun there"
		}
	}
	return roster
}

// place makes a plan and its preflight: on the job's former nodes, unless the fabric
// refuses these and accepts another choice. l.mu is held.
func (l *Leader) place(spec launcher.Spec, roster rendezvous.Roster, former rendezvous.Former) (rendezvous.Plan,
	[]envgen.Finding, error) {
	plan, findings, err := l.placeAt(spec, roster, former)
	if len(former.Nodes) == 0 || err == nil && rendezvous.Unfit(findings) == nil {
		return plan, findings, err
	}
	if anew, warned, anewErr := l.placeAt(spec, roster, rendezvous.Former{}); anewErr == nil &&
		rendezvous.Unfit(warned) == nil {
		return anew, warned, nil
	}
	return plan, findings, err
}

// placeAt is place for one choice of former nodes. l.mu is held.
func (l *Leader) placeAt(spec launcher.Spec, roster rendezvous.Roster, former rendezvous.Former) (rendezvous.Plan,
	[]envgen.Finding, error) {
	topology, err := l.topology(l.roster())
	if err != nil {
		return rendezvous.Plan{}, nil, err
	}
	plan, err := rendezvous.Replan(spec, roster, topology, 1, former)
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

// topology is how the ready members are joined, derived once for each change of the
// roster. l.mu is held.
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
