package shim

import (
	"fmt"
	"slices"
	"time"
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

// returning are ranks that come again once nothing of their last lives is left.
type returning struct {
	ranks  []Rank
	answer func(error)
}

// latest is a rank's present life, or its last one.
func (g *gang) latest(n int) *rank {
	for _, r := range slices.Backward(g.ranks) {
		if r.Rank.Rank == n {
			return r
		}
	}
	return nil
}

// startAgain takes ranks that are to come again.
func (g *gang) startAgain(ranks []Rank, answer func(error)) {
	var more []Rank
	for _, r := range ranks {
		switch old := g.latest(r.Rank); {
		case old != nil && old.Again >= r.Again:
		case old == nil:
			answer(fmt.Errorf("rank %d: %w: it has had no first life", r.Rank, ErrRefused))
			return
		default:
			more = append(more, r)
		}
	}
	switch {
	case len(more) > 0 && g.phase >= ending:
		answer(ErrEnded)
	case len(more) > 0:
		g.returns = append(g.returns, returning{more, answer})
	case g.unborn > 0:
		g.starters = append(g.starters, answer)
	default:
		answer(nil)
	}
}

// bringBack begins the next life of ranks, and tells whether it did. Where others live beside
// them, what these have left is not told apart, and only their output has to have ended.
func (g *gang) bringBack(allExited, gone bool) (did bool) {
	for len(g.returns) > 0 {
		next := g.returns[0]
		switch {
		case g.phase >= ending:
			next.answer(ErrEnded)
		case slices.ContainsFunc(next.ranks, func(r Rank) bool { return g.latest(r.Rank).Again >= r.Again }):
			next.answer(nil) // asked for twice
		case slices.ContainsFunc(next.ranks, func(r Rank) bool { return !g.latest(r.Rank).told }) || allExited && !gone:
			return did
		default:
			g.begin(next.ranks, next.answer)
			did = true
		}
		g.returns = g.returns[1:]
	}
	return did
}

// sweepUp ends what is left when every rank has exited: with the gang or, where that stays, in it.
func (g *gang) sweepUp() {
	if !g.cfg.Stays {
		g.advance(killing, "every rank has exited, and left processes behind")
		g.lastPass = time.Time{}
		return
	}
	if g.died && g.due(g.lastPass.Add(killPause)) || g.due(g.lastPass.Add(killAgain)) {
		g.kill()
		g.lastPass, g.died = g.now, false
		g.due(g.now.Add(killAgain))
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
