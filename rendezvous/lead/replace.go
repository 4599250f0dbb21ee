package lead

import (
	"fmt"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// Ranks of a stage with Replace are restarted where they were while the rest of the job runs on: a rank that is
// lost, and all ranks of a machine that was rebooted. MaxRestarts bounds this as it bounds attempts. None of this
// is in the record: a node's ledger counts the restarts of its ranks, and a new boot proves that nothing of the
// last one runs.

// restart is a rank's next restart, which has not begun yet.
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

// replacesAll tells whether all ranks of a node are replaced.
func (r *run) replacesAll(p *placement) bool {
	for rank := p.FirstRank; rank < p.FirstRank+p.Ranks; rank++ {
		if !r.replaces(p, rank) {
			return false
		}
	}
	return true
}

// replaced counts the restarts of ranks and nodes in this generation, including those that are about to begin.
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

// restartRanks restarts lost ranks where they were.
func (r *run) restartRanks(now time.Time) {
	if !r.stepped() || !r.allKnown() {
		return
	}
	for _, p := range r.placements {
		if !p.up || p.phase != launcher.PhaseStarted {
			continue
		}
		for _, st := range p.ranks {
			if st.State != launcher.RankEnded || st.Exit == nil || st.Exit.ByUs || !r.replaces(p, st.Rank) ||
				!r.spared(p, st.Rank) {
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
				r.send(p, launcher.Order{Again: &launcher.Again{Key: r.job.Key(), Rank: st.Rank, Again: next.again,
					Port: r.port, HeadPorts: r.ports}})
			}
			p.next[st.Rank] = next
		}
	}
}

// pauseBefore is the pause before a rank's restart: it doubles with each restart that the
// rank has had.
func pauseBefore(restarts int) time.Duration {
	return min(time.Second<<min(restarts, 6), time.Minute)
}

// nextRestartAt is when the next restart is due; zero: none is.
func (r *run) nextRestartAt() (at time.Time) {
	for _, p := range r.placements {
		for rank, next := range p.next {
			st := p.ranks[rank]
			due := p.up && p.phase == launcher.PhaseStarted && st != nil && st.State == launcher.RankEnded &&
				next.again > st.Again && !next.sent
			if due && (at.IsZero() || next.at.Before(at)) {
				at = next.at
			}
		}
	}
	return at
}

// withoutIt says how the job goes on after the loss of a rank; -1: of all ranks of a machine.
func (r *run) withoutIt(p *placement, rank int) string {
	next := p.next[rank]
	switch {
	case rank >= 0 && next.again > p.ranks[rank].Again:
		return fmt.Sprintf("; the job goes on, and it starts again in %s (%s)", pauseBefore(next.again-1), r.countOf())
	case rank < 0 && r.replacesAll(p) && r.mayReplace():
		return "; the job goes on, and it starts again there once the machine is back"
	}
	return "; the job goes on without it"
}

func (r *run) countOf() string {
	return fmt.Sprintf("%d of %d", r.job.Plan.Restarts+r.replaced(), r.job.Spec.MaxRestarts)
}

// takesBack tells whether a rebooted node may start its ranks again. If an earlier leader had it do so, it has
// ranks, whatever happened to the job since: the record knows only the boot that was planned.
func (r *run) takesBack(p *placement, e launcher.LedgerEntry) bool {
	if !r.replacesAll(p) {
		return false
	}
	if e.Phase == launcher.PhasePrepared || e.Phase == launcher.PhaseStarted {
		return true
	}
	return r.sparedAll(p) && r.verdict == nil && r.job.Verdict == nil && r.job.Stop == nil &&
		(e.Phase > launcher.PhaseNone || r.mayReplace())
}

// rejoin resets the placement of a node that has nothing of the job yet.
func (r *run) rejoin(p *placement, boot string) {
	p.Boot, p.phase, p.ran = boot, launcher.PhaseNone, false
	p.lost, p.refused, p.stuck, p.image, p.suspended = "", "", "", nil, false
	p.ranks, p.probes, p.next = map[int]*launcher.RankStatus{}, nil, nil
	p.rejoined++
	delete(r.lost, "away "+p.Host)
	r.tell(rendezvous.Progress{Step: rendezvous.StepStage, Host: p.Host,
		Text: fmt.Sprintf("%s%s was rebooted and takes part again (%s)", r.stageOf(p.FirstRank), p.Host,
			r.countOf())})
}

// returned notes that a rank runs again.
func (r *run) returned(p *placement, ev launcher.Event) {
	r.rankIs(p, launcher.RankStatus{Rank: ev.Rank, Again: ev.Again, State: launcher.RankRunning, Time: ev.Time})
	r.tell(rendezvous.Progress{Step: rendezvous.StepStage, Host: p.Host,
		Text: fmt.Sprintf("%srank %d on %s runs again (%s)", r.stageOf(ev.Rank), ev.Rank, p.Host, r.countOf())})
}
