package shim

import (
	"fmt"
	"slices"
	"time"
)

// startMore begins to exec ranks that may come after the first ones, and skips those that
// have come: each number is exec'd once in an attempt.
func (a *attempt) startMore(ranks []Rank, answer func(error)) {
	more := slices.DeleteFunc(slices.Clone(ranks), func(r Rank) bool {
		return slices.ContainsFunc(a.ranks, func(old *rank) bool { return old.Rank.Rank == r.Rank })
	})
	switch {
	case len(more) > 0 && a.phase >= ending:
		answer(ErrEnded)
	case len(more) > 0:
		a.begin(more, answer)
	case a.pending > 0:
		a.starters = append(a.starters, answer)
	default:
		answer(nil)
	}
}

// returning are ranks that start again once nothing of their last incarnations is left.
type returning struct {
	ranks  []Rank
	answer func(error)
}

// latest is a rank's present incarnation, or its last one.
func (a *attempt) latest(n int) *rank {
	for _, r := range slices.Backward(a.ranks) {
		if r.Rank.Rank == n {
			return r
		}
	}
	return nil
}

// startAgain takes ranks that are to start again.
func (a *attempt) startAgain(ranks []Rank, answer func(error)) {
	var more []Rank
	for _, r := range ranks {
		switch old := a.latest(r.Rank); {
		case old != nil && old.Again >= r.Again:
		case old == nil:
			answer(fmt.Errorf("rank %d: %w: it has had no first incarnation", r.Rank, ErrRefused))
			return
		default:
			more = append(more, r)
		}
	}
	switch {
	case len(more) > 0 && a.phase >= ending:
		answer(ErrEnded)
	case len(more) > 0:
		a.returns = append(a.returns, returning{more, answer})
	case a.pending > 0:
		a.starters = append(a.starters, answer)
	default:
		answer(nil)
	}
}

// bringBack begins the next incarnation of ranks, and reports whether it did. If other ranks run, the
// leftovers of these cannot be told from theirs, and only the output of these must have ended.
func (a *attempt) bringBack(allExited, gone bool) (did bool) {
	for len(a.returns) > 0 {
		next := a.returns[0]
		switch {
		case a.phase >= ending:
			next.answer(ErrEnded)
		case slices.ContainsFunc(next.ranks, func(r Rank) bool { return a.latest(r.Rank).Again >= r.Again }):
			next.answer(nil) // asked for twice
		case slices.ContainsFunc(next.ranks, func(r Rank) bool { return !a.latest(r.Rank).told }) || allExited && !gone:
			return did
		default:
			a.begin(next.ranks, next.answer)
			did = true
		}
		a.returns = a.returns[1:]
	}
	return did
}

// sweepUp ends what is left when every rank has exited: by ending the attempt or, if it
// stays, within it.
func (a *attempt) sweepUp() {
	rank, sessions := AllRanks, map[int]bool{}
	if len(a.ranks) == 1 {
		rank = a.ranks[0].Rank.Rank
	}
	for pid := range a.bySession { // these were not left behind by a rank
		sessions[pid] = true
	}
	a.tellLeft(rank, descendants(sessions))
	if !a.cfg.Stays {
		a.advance(killing, "every rank has exited, and left processes behind")
		a.lastPass = time.Time{}
		return
	}
	if a.died && a.due(a.lastPass.Add(killPause)) || a.due(a.lastPass.Add(killAgain)) {
		a.kill()
		a.lastPass, a.died = a.now, false
		a.due(a.now.Add(killAgain))
	}
}

// begin execs ranks, and answers once each was exec'd, or could not be.
func (a *attempt) begin(ranks []Rank, answer func(error)) {
	files, err := a.openOutputs(ranks)
	if err == nil {
		err = a.j.reserve(len(ranks))
	}
	if err == nil && a.phase == waiting {
		// From here on a successor must assume that ranks have run.
		err = a.j.write(Event{Kind: Starting, Rank: AllRanks, Trace: &a.trace})
	}
	if err != nil {
		for _, f := range files {
			f[0].Close()
			f[1].Close()
		}
		answer(fmt.Errorf("%w: %w", ErrRefused, err))
		return
	}
	a.starters = append(a.starters, answer)
	a.advance(starting, "told to")
	a.protect(false)
	a.pending += len(ranks)
	a.openSpace(ranks)
	first := len(a.ranks)
	for _, r := range ranks {
		a.ranks = append(a.ranks, &rank{Rank: r})
	}
	go a.spawnAll(first, ranks, files)
}
