package lead

import (
	"fmt"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// A stage may be replaced: a rank of it that is lost comes again where it was, and on a machine
// that was booted anew all of them do, while the rest of the job runs on. How often is bounded by
// MaxRestarts, as tries are. Nothing of it is in the record: what a rank has been through is in its
// node's ledger, and another boot is proof that nothing of the last one runs.

// nextLife is a rank's next life, which has yet to begin.
type nextLife struct {
	again int
	at    time.Time // not before
	sent  bool      // the node was told
}

func (g *gang) replaces(s *seat, rank int) bool {
	if !g.stepped() || g.job.Spec.MaxRestarts == 0 {
		return false
	}
	k, _ := g.job.Spec.StepOf(s.rank, rank-s.FirstRank)
	return k >= 0 && g.steps[k].Replace
}

// replacesSeat tells that of all ranks of a node.
func (g *gang) replacesSeat(s *seat) bool {
	for r := s.FirstRank; r < s.FirstRank+s.Ranks; r++ {
		if !g.replaces(s, r) {
			return false
		}
	}
	return true
}

// replaced counts what was, or is about to be, brought back in this generation.
func (g *gang) replaced() (n int) {
	for _, s := range g.seats {
		n += s.rejoined
		for _, r := range s.ranks {
			n += max(r.Again, s.next[r.Rank].again)
		}
	}
	return n
}

func (g *gang) mayReplace() bool {
	return g.verdict == nil && g.proposed == nil && !g.noMore && g.job.Plan.Restarts+g.replaced() < g.job.Spec.MaxRestarts
}

// bringBack has ranks that were lost begin anew where they were.
func (g *gang) bringBack(now time.Time) {
	if !g.stepped() || !g.allKnown() {
		return
	}
	for _, s := range g.seats {
		if !s.up || s.phase != launcher.PhaseStarted {
			continue
		}
		for _, r := range s.ranks {
			if r.State != launcher.RankEnded || r.Exit == nil || r.Exit.ByUs || !g.replaces(s, r.Rank) || !g.spared(s, r.Rank) {
				continue
			}
			next, planned := s.next[r.Rank]
			if !planned || next.again <= r.Again {
				if !g.mayReplace() {
					continue
				}
				if s.next == nil {
					s.next = map[int]nextLife{}
				}
				next = nextLife{again: r.Again + 1, at: now.Add(pauseBefore(r.Again))}
			}
			if !next.sent && !now.Before(next.at) {
				next.sent = true
				g.send(s, launcher.Order{Again: &launcher.Again{Key: g.job.Key(), Rank: r.Rank, Again: next.again, Port: g.port, HeadPorts: g.ports}})
			}
			s.next[r.Rank] = next
		}
	}
}

// pauseBefore the next life of a rank doubles with those that it has had.
func pauseBefore(lives int) time.Duration { return min(time.Second<<min(lives, 6), time.Minute) }

// nextLifeAt is when the next of them is due; zero: none is.
func (g *gang) nextLifeAt() (at time.Time) {
	for _, s := range g.seats {
		for rank, next := range s.next {
			r := s.ranks[rank]
			due := s.up && s.phase == launcher.PhaseStarted && r != nil && r.State == launcher.RankEnded && next.again > r.Again && !next.sent
			if due && (at.IsZero() || next.at.Before(at)) {
				at = next.at
			}
		}
	}
	return at
}

// withoutIt says how the job goes on when it has lost a rank; -1: all of a machine.
func (g *gang) withoutIt(s *seat, rank int) string {
	next := s.next[rank]
	switch {
	case rank >= 0 && next.again > s.ranks[rank].Again:
		return fmt.Sprintf("; the job goes on, and it starts again in %s (%s)", pauseBefore(next.again-1), g.countOf())
	case rank < 0 && g.replacesSeat(s) && g.mayReplace():
		return "; the job goes on, and it starts again there once the machine was started anew"
	}
	return "; the job goes on without it"
}

func (g *gang) countOf() string {
	return fmt.Sprintf("%d of %d", g.job.Plan.Restarts+g.replaced(), g.job.Spec.MaxRestarts)
}

// takesBack tells whether a node that was booted anew may begin there again. One that has done so
// for an earlier leader has ranks, whatever became of the job since: the record knows its first
// boot alone.
func (g *gang) takesBack(s *seat, e launcher.LedgerEntry) bool {
	if !g.replacesSeat(s) {
		return false
	}
	if e.Phase == launcher.PhasePrepared || e.Phase == launcher.PhaseStarted {
		return true
	}
	return g.sparedSeat(s) && g.verdict == nil && g.job.Verdict == nil && g.job.Stop == nil && (e.Phase > launcher.PhaseNone || g.mayReplace())
}

// rejoin makes a node one that knows nothing of the job yet.
func (g *gang) rejoin(s *seat, boot string) {
	s.Boot, s.phase, s.ran = boot, launcher.PhaseNone, false
	s.lost, s.refused, s.stuck, s.image, s.suspended = "", "", "", nil, false
	s.ranks, s.probes, s.next = map[int]*launcher.RankStatus{}, nil, nil
	s.rejoined++
	delete(g.lost, "away "+s.Host)
	g.tell(rendezvous.Progress{Step: rendezvous.StepStage, Host: s.Host, Text: fmt.Sprintf("%s%s has been started anew, and takes part again (%s)", g.stageOf(s.FirstRank), s.Host, g.countOf())})
}

// returned tells that a rank lives again.
func (g *gang) returned(s *seat, ev launcher.Event) {
	g.rankIs(s, launcher.RankStatus{Rank: ev.Rank, Again: ev.Again, State: launcher.RankRunning, Time: ev.Time})
	g.tell(rendezvous.Progress{Step: rendezvous.StepStage, Host: s.Host, Text: fmt.Sprintf("%srank %d on %s runs again (%s)", g.stageOf(ev.Rank), ev.Rank, s.Host, g.countOf())})
}
