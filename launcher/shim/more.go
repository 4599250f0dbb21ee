package shim

import (
	"fmt"
	"slices"
)

// startMore begins to exec ranks that may come after the first ones, and passes over
// those that have come: each number is exec'd once in the life of this gang.
func (g *gang) startMore(ranks []Rank, answer func(error)) {
	more := slices.DeleteFunc(slices.Clone(ranks), func(r Rank) bool {
		return slices.ContainsFunc(g.ranks, func(old *rank) bool { return old.Rank.Rank == r.Rank })
	})
	switch {
	case len(more) > 0 && g.phase >= ending:
		answer(ErrEnded)
	case len(more) > 0:
		g.begin(more, answer)
	case g.unborn > 0:
		g.starters = append(g.starters, answer)
	default:
		answer(nil)
	}
}

// begin has ranks exec'd, and answers once each was, or could not be.
func (g *gang) begin(ranks []Rank, answer func(error)) {
	files, err := g.openOutputs(ranks)
	if err == nil {
		err = g.j.reserve(len(ranks))
	}
	if err == nil && g.phase == waiting {
		// From this line on a successor must assume that ranks have run.
		err = g.j.write(Event{Kind: Starting, Rank: Gang, Trace: &g.trace})
	}
	if err != nil {
		for _, f := range files {
			f[0].Close()
			f[1].Close()
		}
		answer(fmt.Errorf("%w: %w", ErrRefused, err))
		return
	}
	g.starters = append(g.starters, answer)
	g.advance(starting, "told to")
	g.protect(false)
	g.unborn += len(ranks)
	g.openSpace(ranks)
	first := len(g.ranks)
	for _, r := range ranks {
		g.ranks = append(g.ranks, &rank{Rank: r})
	}
	go g.bearAll(first, ranks, files)
}
