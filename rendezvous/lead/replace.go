package lead

import (
	"fmt"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// A stage may be replaced: a rank of it that is lost comes again where it was, and on a machine
// that was booted anew all of them do, while the rest of the job runs on. How often is bounded by
// MaxRestarts, as attempts are. Nothing of it is in the record: what a rank has been through is in its
// node's ledger, and another boot is proof that nothing of the last one runs.

// nextLife is a rank's next life, which has yet to begin.
type restart struct {
	again int
	at    time.Time // not before
	sent  bool      // the node was told
}

func (r *run) replaces(p *placement, rank int) bool {
	if !r.stepped() || r.job.Spec.MaxRestarts == 0 {
		return false
	}
	k, _ := r.job.Spec.StepOf(p.rank, rank-p.FirstRank)
	return k >= 0 && r.steps[k].Replace
}

// replacesSeat tells that of all ranks of a node.
func (r *run) replacesAll(p *placement) bool {
	for rank := p.FirstRank; rank < p.FirstRank+p.Ranks; rank++ {
		if !r.replaces(p, rank) {
			return false
		}
	}
	return true
}

// replaced counts what was, or is about to be, brought back in this generation.
func (r *run) replaced() (n int) {
	for _, p := range r.placements {
		n += p.rejoined
		for _, st := range p.ranks {
			n += max(st.Again, p.next[st.Rank].again)
		}
	}
	return n
}

func (r *run) mayReplace() bool {
	return r.verdict == nil && r.proposed == nil && !r.noMore && r.job.Plan.Restarts+r.replaced() < r.job.Spec.MaxRestarts
}

// bringBack has ranks that were lost begin anew where they were.
func (r *run) restartRanks(now time.Time) {
	if !r.stepped() || !r.allKnown() {
		return
	}
	for _, p := range r.placements {
		if !p.up || p.phase != launcher.PhaseStarted {
			continue
		}
		for _, st := range p.ranks {
			if st.State != launcher.RankEnded || st.Exit == nil || st.Exit.ByUs || !r.replaces(p, st.Rank) || !r.spared(p, st.Rank) {
				continue
			}
			next, planned := p.next[st.Rank]
			if !planned || next.again <= st.Again {
				if !r.mayReplace() {
					continue
				}
				if p.next == nil {
					p.next = map[int]restart{}
				}
				next = restart{again: st.Again + 1, at: now.Add(pauseBefore(st.Again))}
			}
			if !next.sent && !now.Before(next.at) {
				next.sent = true
				r.send(p, launcher.Order{Again: &launcher.Again{Key: r.job.Key(), Rank: st.Rank, Again: next.again, Port: r.port, HeadPorts: r.ports}})
			}
			p.next[st.Rank] = next
		}
	}
}

// pauseBefore the next life of a rank doubles with those that it has had.
func pauseBefore(lives int) time.Duration { return min(time.Second<<min(lives, 6), time.Minute) }

// nextLifeAt is when the next of them is due; zero: none is.
func (r *run) nextRestartAt() (at time.Time) {
	for _, p := range r.placements {
		for rank, next := range p.next {
			st := p.ranks[rank]
			due := p.up && p.phase == launcher.PhaseStarted && st != nil && st.State == launcher.RankEnded && next.again > st.Again && !next.sent
			if due && (at.IsZero() || next.at.Before(at)) {
				at = next.at
			}
		}
	}
	return at
}

// withoutIt says how the job goes on when it has lost a rank; -1: all of a machine.
func (r *run) withoutIt(p *placement, rank int) string {
	next := p.next[rank]
	switch {
	case rank >= 0 && next.again > p.ranks[rank].Again:
		return fmt.Sprintf("; the job goes on, and it starts again in %s (%s)", pauseBefore(next.again-1), r.countOf())
	case rank < 0 && r.replacesAll(p) && r.mayReplace():
		return "; the job goes on, and it starts again there once the machine was started anew"
	}
	return "; the job goes on without it"
}

func (r *run) countOf() string {
	return fmt.Sprintf("%d of %d", r.job.Plan.Restarts+r.replaced(), r.job.Spec.MaxRestarts)
}

// takesBack tells whether a node that was booted anew may begin there again. One that has done so
// for an earlier leader has ranks, whatever became of the job since: the record knows its first
// boot alone.
func (r *run) takesBack(p *placement, e launcher.LedgerEntry) bool {
	if !r.replacesAll(p) {
		return false
	}
	if e.Phase == launcher.PhasePrepared || e.Phase == launcher.PhaseStarted {
		return true
	}
	return r.sparedAll(p) && r.verdict == nil && r.job.Verdict == nil && r.job.Stop == nil && (e.Phase > launcher.PhaseNone || r.mayReplace())
}

// rejoin makes a node one that knows nothing of the job yet.
func (r *run) rejoin(p *placement, boot string) {
	p.Boot, p.phase, p.ran = boot, launcher.PhaseNone, false
	p.lost, p.refused, p.stuck, p.image, p.suspended = "", "", "", nil, false
	p.ranks, p.probes, p.next = map[int]*launcher.RankStatus{}, nil, nil
	p.rejoined++
	delete(r.lost, "away "+p.Host)
	r.tell(rendezvous.Progress{Step: rendezvous.StepStage, Host: p.Host, Text: fmt.Sprintf("%s%s has been started anew, and takes part again (%s)", r.stageOf(p.FirstRank), p.Host, r.countOf())})
}

// returned tells that a rank lives again.
func (r *run) returned(p *placement, ev launcher.Event) {
	r.rankIs(p, launcher.RankStatus{Rank: ev.Rank, Again: ev.Again, State: launcher.RankRunning, Time: ev.Time})
	r.tell(rendezvous.Progress{Step: rendezvous.StepStage, Host: p.Host, Text: fmt.Sprintf("%srank %d on %s runs again (%s)", r.stageOf(ev.Rank), ev.Rank, p.Host, r.countOf())})
}
