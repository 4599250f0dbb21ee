package witness

import (
	"cmp"
	"maps"
	"slices"
)

// How far a state is in the life of one generation. "planned" means that the
// asked node does not know, and is no position.
const (
	unknown = iota
	starting
	running
	ending // or waiting for the next generation
	ended
)

func rankOf(state string) int {
	switch state {
	case "starting":
		return starting
	case "running":
		return running
	case "ending", "waiting", "restarting":
		return ending
	case "completed", "failed", "stopped", "rejected":
		return ended
	}
	return unknown
}

// forward is P4: an answer is never behind one that had been given before it was
// asked for, by whichever node, and an end is not taken back.
func (c *checker) forward() {
	byJob := map[string][]Record{}
	for _, r := range c.Records {
		if r.Kind == State && rankOf(r.State) != unknown {
			byJob[r.Job] = append(byJob[r.Job], r)
		}
	}
	for _, job := range slices.Sorted(maps.Keys(byJob)) {
		asked := byJob[job]
		slices.SortStableFunc(asked, func(a, b Record) int { return cmp.Compare(a.Boot, b.Boot) })
		told := slices.SortedStableFunc(slices.Values(asked), func(a, b Record) int { return cmp.Compare(a.Until, b.Until) })
		var best *Record
		for _, r := range asked {
			for len(told) > 0 && told[0].Until < r.Boot {
				if best == nil || behind(*best, told[0]) {
					best = &told[0]
				}
				told = told[1:]
			}
			switch {
			case best == nil:
			case behind(r, *best):
				c.broken("P4", r.Boot, "job %s was %s in generation %d, as %s was told, and %s later %s in generation %d, as "+
					"%s was told",
					job, best.State, best.Generation, best.Host, span(r.Boot-best.Until), r.State, r.Generation, r.Host)
				return
			case rankOf(best.State) == ended && (best.State != r.State || best.Code != r.Code):
				c.broken("P4", r.Boot, "job %s had ended as %s (%d), and now it has as %s (%d)", job, best.State,
					best.Code, r.State, r.Code)
				return
			}
		}
	}
}

// behind tells whether a is earlier in a job's life than b.
func behind(a, b Record) bool {
	if rankOf(a.State) == ended || rankOf(b.State) == ended {
		return rankOf(a.State) < rankOf(b.State)
	}
	return cmp.Or(cmp.Compare(a.Generation, b.Generation), cmp.Compare(rankOf(a.State), rankOf(b.State))) < 0
}
