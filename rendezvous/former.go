package rendezvous

import (
	"cmp"
	"slices"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
)

// Former is where a job was. Its next generation goes back there: users of a service know the
// machine of rank 0 by name, and what the ranks have loaded is in their machines' caches. The
// zero value is a job that was nowhere yet.
type Former struct {
	Nodes   []launcher.NodeID // of the main stage, by node rank
	Spare   []launcher.NodeID // that it kept in reserve
	Network string            // where they met
}

// Former gives it for a job's present generation.
func (j Job) Former() Former {
	f := Former{Network: j.Plan.Network}
	for _, p := range j.Plan.Nodes {
		f.Nodes = append(f.Nodes, p.Node)
	}
	spare := len(j.Plan.Held)
	if j.Plan.Stage == launcher.StageBefore { // as MainHosts has it
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

// Replan is MakePlan for a job that was somewhere. Its nodes that are available stay, each with
// its ranks; others replace those that are not. Only where the fabric joined the job before and
// would not join these nodes, and joins others, is the job placed anew.
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

// first sorts candidates: those that were in the job by their ranks, its spare ones, then the
// others as they come. It counts the first of these.
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

// arrange gives each node the rank that it had, and those that are new the ranks of the others.
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

// MovedFrom names the machine where rank 0 was in the generation before, if it is on another
// one now: where a service answers has changed with it. Empty: it has stayed.
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
