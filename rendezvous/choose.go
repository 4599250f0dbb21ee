package rendezvous

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
)

// choose picks the nodes of a job, in rank order: those of --on as they are named, else
// those that the fabric joins best, in the topology's order. Nodes that the job had
// before come first and keep their ranks.
func choose(spec launcher.Spec, roster Roster, topology envgen.Topology, former Former) ([]Member, error) {
	byHost := map[string]Member{}
	for _, m := range roster {
		byHost[m.Host] = m
	}
	for _, h := range spec.On {
		if byHost[h].Witness {
			return nil, fmt.Errorf("%w: host %s is a witness: it votes and gets no ranks", ErrCannotPlace, h)
		}
	}
	roster = slices.DeleteFunc(slices.Clone(roster), func(m Member) bool { return m.Witness })
	for _, h := range slices.Concat(spec.On, spec.Exclude) {
		if _, ok := byHost[h]; !ok {
			return nil, fmt.Errorf("%w: host %q is not in this cluster: %s", ErrCannotPlace, h, whoIsThere(roster))
		}
	}
	var candidates []Member
	if len(spec.On) > 0 {
		for _, h := range spec.On {
			m := byHost[h]
			if m.Drained != "" {
				return nil, fmt.Errorf("%w: host %s gets no ranks: %s", ErrCannotPlace, h, m.Drained)
			}
			if !m.Ready {
				return nil, fmt.Errorf("%w: host %s does not answer (since %s); start its agent or leave it out of --on",
					ErrCannotPlace, h, m.Since.Format(time.TimeOnly))
			}
			candidates = append(candidates, m)
		}
	} else {
		for _, m := range roster {
			if m.Ready && m.Drained == "" && !slices.Contains(spec.Exclude, m.Host) {
				candidates = append(candidates, m)
			}
		}
	}
	if len(candidates) < spec.Nodes {
		excluded := ""
		if len(spec.Exclude) > 0 {
			excluded = " without the excluded ones"
		}
		return nil, fmt.Errorf("%w: %s wanted, %d ready%s: %s", ErrCannotPlace,
			count(spec.Nodes, "node"), len(candidates), excluded, whoIsThere(roster))
	}
	candidates, stay := former.first(candidates)
	if stay > 0 {
		chosen := candidates[:spec.Nodes]
		if len(spec.On) == 0 && spec.Nodes > 1 {
			chosen = bestJoined(candidates, spec.Nodes, topology, min(stay, spec.Nodes))
		}
		return former.arrange(chosen), nil
	}
	if len(spec.On) > 0 {
		return candidates[:spec.Nodes], nil
	}
	// A user on a node expects the job on that node, where the user's files are.
	if near := slices.IndexFunc(candidates, func(m Member) bool { return m.Host == spec.Near }); near > 0 {
		candidates = slices.Concat(candidates[near:near+1], candidates[:near], candidates[near+1:])
	}
	if spec.Nodes < 2 {
		return candidates[:spec.Nodes], nil
	}
	must := 0
	if candidates[0].Host == spec.Near {
		must = 1
	}
	chosen := bestJoined(candidates, spec.Nodes, topology, must)
	return inRankOrder(chosen, topology), nil
}

// crew is a possible choice of nodes for a job.
type crew struct {
	members []int // indices of candidates, ascending
	// tier is how well the fabric joins them: all by RoCE, all in one piece of the fabric, or not.
	tier int
	// lanes is how many subnets join them; more are faster.
	lanes int
}

const (
	tierRoCE = iota
	tierJoined
	tierAny
)

// bestJoined takes n (2 or more) of the candidates, which come in the order of
// preference: nodes that one subnet of the fabric joins or that are a whole ring, else
// nodes in one piece of the fabric, else the first n. The first must of the candidates
// are always among them.
func bestJoined(candidates []Member, n int, t envgen.Topology, must int) []Member {
	at := make(map[string]int, len(candidates))
	for i, m := range candidates {
		at[string(m.ID)] = i
	}
	present := func(ids []string) []int {
		var found []int
		for _, id := range ids {
			if i, ok := at[id]; ok && !slices.Contains(found, i) {
				found = append(found, i)
			}
		}
		return found
	}
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	crews := []crew{{members: all, tier: tierAny}}
	propose := func(members []int, tier int) {
		if slices.Sort(members); len(members) >= n {
			crews = append(crews, crew{members: members[:n], tier: tier})
		}
	}
	for _, l := range t.Lanes {
		if !l.Spoilt {
			propose(present(laneNodes(l)), tierRoCE)
		}
	}
	for _, g := range t.Groups {
		if g.Shape == envgen.ShapeRing && len(g.Nodes) == n {
			propose(present(g.Nodes), tierRoCE)
		}
		if len(g.Nodes) > 1 {
			propose(present(g.Nodes), tierJoined)
		}
	}
	if must > 0 { // ascending: the first must are all there if the last of them is at its place
		crews = slices.DeleteFunc(crews, func(c crew) bool { return c.members[must-1] != must-1 })
	}
	for i := range crews {
		crews[i].lanes = lanesOf(t, candidates, crews[i].members)
	}
	// The first n are always among the crews.
	best := slices.MinFunc(crews, func(a, b crew) int {
		return cmp.Or(cmp.Compare(a.tier, b.tier), cmp.Compare(b.lanes, a.lanes), slices.Compare(a.members, b.members))
	})
	var chosen []Member
	for _, i := range best.members {
		chosen = append(chosen, candidates[i])
	}
	return chosen
}

func laneNodes(l envgen.Lane) []string {
	var ids []string
	for _, e := range l.Ends {
		ids = append(ids, e.Node)
	}
	return ids
}

// lanesOf counts the subnets that have all the members.
func lanesOf(t envgen.Topology, candidates []Member, members []int) (joined int) {
	for _, l := range t.Lanes {
		ids := laneNodes(l)
		if !l.Spoilt && !slices.ContainsFunc(members,
			func(i int) bool { return !slices.Contains(ids, string(candidates[i].ID)) }) {
			joined++
		}
	}
	return joined
}

// inRankOrder sorts nodes into the order of ranks: along a ring.
func inRankOrder(chosen []Member, t envgen.Topology) []Member {
	byID := make(map[string]Member, len(chosen))
	ids := make([]string, len(chosen))
	for i, m := range chosen {
		ids[i] = string(m.ID)
		byID[ids[i]] = m
	}
	ordered := make([]Member, len(chosen))
	for i, id := range t.RankOrder(ids) {
		ordered[i] = byID[id]
	}
	return ordered
}
