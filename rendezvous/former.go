package rendezvous

import (
	"cmp"
	"slices"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
)

// Former is where a job ran. Its next generation goes back there: users of a service know rank 0's machine by name,
// and the machines' caches hold what the ranks have loaded. The zero value is a job that has not run yet.
type Former struct {
	Nodes   []launcher.NodeID // of the main stage, by node rank
	Spare   []launcher.NodeID // kept in reserve
	Network string            // where they met
}

// Former says where a job's current generation is.
func (j Job) Former() Former {
	f := Former{Network: j.Plan.Network}
	for _, p := range j.Plan.Nodes {
		f.Nodes = append(f.Nodes, p.Node)
	}
	spare := len(j.Plan.Held)
	if j.Plan.Stage == launcher.StageBefore { // as in MainHosts
		spare = min(j.Spec.Spare, spare)
	}
	for i, h := range j.Plan.Held {
		if i < spare {
			f.Spare = append(f.Spare, h.Node)
		} else {
			f.Nodes = append(f.Nodes, h.Node)
		}
	}
	return f
}

// Replan is MakePlan for a job that has run before. Its nodes that are available stay, each with its ranks; others
// replace those that are not. The job is placed anew only if the fabric joined it before, would not join these
// nodes, and does join others.
func Replan(spec launcher.Spec, roster Roster, topology envgen.Topology, gen launcher.Generation, former Former) (Plan,
	error) {
	plan, err := makePlan(spec, roster, topology, gen, former)
	fabric := string(envgen.NetworkFabric)
	if len(former.Nodes) == 0 || err == nil && (former.Network != fabric || plan.Network == fabric) {
		return plan, err
	}
	anew, anewErr := makePlan(spec, roster, topology, gen, Former{})
	if anewErr != nil || err == nil && anew.Network != fabric {
		return plan, err
	}
	return anew, nil
}

// first sorts candidates: those that were in the job by rank, then its spare ones, then the others in the order
// given. stay counts those that were in the job.
func (f Former) first(candidates []Member) (sorted []Member, stay int) {
	place := func(m Member) int {
		if i := slices.Index(f.Nodes, m.ID); i >= 0 {
			return i
		}
		if slices.Contains(f.Spare, m.ID) {
			return len(f.Nodes)
		}
		return len(f.Nodes) + 1
	}
	sorted = slices.Clone(candidates)
	slices.SortStableFunc(sorted, func(a, b Member) int { return cmp.Compare(place(a), place(b)) })
	for stay < len(sorted) && place(sorted[stay]) < len(f.Nodes) {
		stay++
	}
	return sorted, stay
}

// arrange gives each former node the rank that it had, and new nodes the ranks that are left.
func (f Former) arrange(chosen []Member) (arranged []Member) {
	isNew := func(m Member) bool { return !slices.Contains(f.Nodes, m.ID) }
	var news []Member
	for _, m := range chosen {
		if isNew(m) {
			news = append(news, m)
		}
	}
	for _, id := range f.Nodes {
		if i := slices.IndexFunc(chosen, func(m Member) bool { return m.ID == id }); i >= 0 {
			arranged = append(arranged, chosen[i])
		} else if len(news) > 0 {
			arranged, news = append(arranged, news[0]), news[1:]
		}
	}
	return append(arranged, news...)
}

// MovedFrom names the machine of rank 0 in the generation before, if rank 0 is on another one now: a service's
// address has changed then. Empty: it has not moved.
func (j Job) MovedFrom() string {
	for _, a := range slices.Backward(j.Attempts) {
		if a.Stage == "" && len(a.Hosts) > 0 && len(j.Plan.Nodes) > 0 {
			if a.Hosts[0] == j.Plan.Nodes[0].Host {
				return ""
			}
			return a.Hosts[0]
		}
	}
	return ""
}
