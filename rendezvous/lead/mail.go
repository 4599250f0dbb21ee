package lead

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// Messages in a run's mailbox. They only note facts; step acts on them.

func (r *run) placementOf(id launcher.NodeID) *placement {
	return r.find(func(p *placement) bool { return p.Node == id })
}

// nodeUp takes a node's ledger; a missing entry for this generation means that the node
// knows nothing of it.
func (r *run) nodeUp(id launcher.NodeID, boot string, ledger map[launcher.Key]launcher.LedgerEntry) {
	p, e := r.placementOf(id), ledger[r.job.Key()]
	if p == nil {
		return
	}
	if !p.up {
		r.tell(rendezvous.Progress{Step: rendezvous.StepNodeUp, Host: p.Host})
	}
	back := boot != p.Boot && r.takesBack(p, e) // computed before known is set
	p.up, p.since, p.known = true, time.Now(), true
	r.moved = p.since
	p.preparing, p.starting, p.asked, p.ending = false, 0, 0, nil
	for rank, next := range p.next { // what was sent may have been lost
		next.sent = false
		p.next[rank] = next
	}
	switch {
	case back:
		r.rejoin(p, boot)
		r.adoptEntry(p, e)
	case p.phase == launcher.PhaseEnded:
	case boot != p.Boot:
		// A new boot proves that nothing of the old one runs any more.
		if len(r.exitsOf(p)) < p.Ranks {
			p.lose("%s restarted", p.Host)
		}
		p.rebooted = true
		r.raisePhase(p, launcher.PhaseEnded)
	case e.Phase == launcher.PhaseNone && p.phase != launcher.PhaseNone:
		p.lose("%s has lost its record of the job", p.Host)
	default:
		if r.replacesAll(p) { // it had been given up for its silence
			p.lost = ""
		}
		r.adoptEntry(p, e)
	}
}

// lose marks a node as unable to do its part: for good, even if it comes back. The first
// reason stands.
func (p *placement) lose(format string, args ...any) {
	if p.lost == "" {
		p.lost = fmt.Sprintf(format, args...)
	}
}

func (r *run) adoptEntry(p *placement, e launcher.LedgerEntry) {
	p.refused = cmp.Or(p.refused, e.Refused) // some refusals are not in the ledger
	p.image = cmp.Or(e.Image, p.image)
	r.isStuck(p, e.Stuck)
	p.suspended = e.Suspended
	r.servedIs(p, e.Service)
	r.raisePhase(p, e.Phase)
	if e.Port != 0 && (p.rank == 0 || e.Phase >= launcher.PhaseStarted) {
		r.port = e.Port
	}
	if p.rank == 0 && e.Ports != nil {
		r.ports = e.Ports
	}
	running := 0
	for _, st := range e.Ranks {
		if st.State >= launcher.RankRunning {
			running++
		}
		r.rankIs(p, st)
	}
	if running == p.Ranks {
		r.hasRun(p)
	}
}

func (r *run) clockIs(id launcher.NodeID, ahead time.Duration) {
	if p := r.placementOf(id); p != nil {
		p.ahead = ahead
	}
}

func (r *run) nodeDown(id launcher.NodeID) {
	p := r.placementOf(id)
	if p == nil || !p.up {
		return
	}
	p.up, p.since, p.heard, p.askAt = false, time.Now(), time.Now(), time.Now()
	if p.phase != launcher.PhaseEnded {
		r.tell(rendezvous.Progress{Step: rendezvous.StepNodeDown, Host: p.Host})
	}
}

// event takes one fact from a node's stream.
func (r *run) event(ev launcher.Event) {
	p := r.placementOf(ev.Node)
	if p == nil || ev.Key != r.job.Key() { // it belongs to the generation before
		return
	}
	switch ev.Kind {
	case launcher.Preparing:
		// A node that makes progress is not late.
		if until := time.Now().Add(r.job.Spec.StartTimeout); p.phase == launcher.PhaseNone && until.After(r.deadline) {
			r.deadline = until
		}
		p.does = ev.Text
		r.tell(rendezvous.Progress{Step: rendezvous.StepPreparing, Host: p.Host, Text: ev.Text})
	case launcher.Prepared:
		p.image = ev.Image
		if p.rank == 0 && ev.Port != 0 {
			r.port = ev.Port
		}
		if p.rank == 0 {
			r.ports = ev.Ports
		}
		if r.raisePhase(p, launcher.PhasePrepared) {
			r.tell(rendezvous.Progress{Step: rendezvous.StepPrepared, Host: p.Host, Text: ev.Text})
		}
	case launcher.Refused:
		p.refused = ev.Text
		r.tell(rendezvous.Progress{Step: rendezvous.StepRefused, Host: p.Host, Text: ev.Text})
	case launcher.Started:
		if r.raisePhase(p, launcher.PhaseStarted) {
			r.tell(rendezvous.Progress{Step: rendezvous.StepStarted, Host: p.Host})
		}
		r.stepRuns(p, ev)
	case launcher.Served:
		r.servedIs(p, ev.Service)
	case launcher.Probed:
		r.probedIs(p, ev)
	case launcher.Exited:
		r.rankIs(p, launcher.RankStatus{Rank: ev.Rank, Again: ev.Again, State: launcher.RankEnded, Exit: ev.Exit,
			Time: ev.Time})
	case launcher.Returned:
		r.returned(p, ev)
	case launcher.Stuck:
		r.isStuck(p, ev.Text)
	case launcher.Left:
		who := "ranks"
		if ev.Rank >= 0 {
			who = r.job.Spec.Process(ev.Rank)
		}
		r.tell(rendezvous.Progress{Step: rendezvous.StepLeft, Host: p.Host,
			Text: fmt.Sprintf("%s on %s %s", who, p.Host, ev.Text)})
	case launcher.Suspended:
		p.suspended = ev.Text != ""
	case launcher.Ended:
		r.raisePhase(p, launcher.PhaseEnded)
	}
}

// raisePhase moves a node's phase, forward only.
func (r *run) raisePhase(p *placement, to launcher.Phase) bool {
	if to <= p.phase {
		return false
	}
	p.phase = to
	if to == launcher.PhaseStarted {
		r.ordered = true
	}
	return true
}

// hasRun notes that a node has started all its ranks, and reports it once all nodes have.
func (r *run) hasRun(p *placement) {
	if p.ran {
		return
	}
	p.ran = true
	if r.find(func(p *placement) bool { return !p.ran }) != nil || r.stepped() {
		return
	}
	r.tellRunning()
}

// stepRuns notes that a node has started all its ranks of a step.
func (r *run) stepRuns(p *placement, ev launcher.Event) {
	if !r.stepped() {
		r.hasRun(p)
		return
	}
	if ev.Step < 0 || ev.Step >= len(r.steps) {
		return
	}
	r.moved = time.Now()
	for _, rank := range r.ranksOf(p, ev.Step) {
		r.rankIs(p, launcher.RankStatus{Rank: rank, State: launcher.RankRunning, Time: ev.Time})
	}
	if p.allBegun() {
		r.hasRun(p)
	}
}

// tellRunning reports that all ranks run; with several steps, also that the last one is ready.
func (r *run) tellRunning() {
	now := time.Now()
	if since := r.runsSince(); r.found && !since.IsZero() && since.Before(now) {
		now = since // an earlier leader saw it
	}
	r.viewMu.Lock()
	if r.found && r.wasReady() {
		now = *r.seen.Ready
	}
	r.started = &now
	r.viewMu.Unlock()
	if r.copying {
		r.ranAt = &now
		return
	}
	r.tell(rendezvous.Progress{Step: rendezvous.StepRunning, Time: now, Ports: r.ports})
}

// runsSince is when the last of the ranks was started, by what nodes tell of those that run; zero: none has.
func (r *run) runsSince() (last time.Time) {
	for _, p := range r.placements {
		for _, st := range p.ranks {
			if at := st.Time.Add(-p.ahead); st.State == launcher.RankRunning && at.After(last) {
				last = at
			}
		}
	}
	return last
}

// allBegun tells whether each of a node's ranks was exec'd or could not be.
func (p *placement) allBegun() bool {
	begun := 0
	for _, st := range p.ranks {
		if st.State > launcher.RankPending {
			begun++
		}
	}
	return p.ran || begun == p.Ranks
}

func (r *run) rankIs(p *placement, st launcher.RankStatus) {
	// Ignore a rank of another node, and an end without an exit.
	if st.Rank < p.FirstRank || st.Rank >= p.FirstRank+p.Ranks || st.State == launcher.RankEnded && st.Exit == nil {
		return
	}
	if st.State > launcher.RankPending {
		r.ordered = true
	}
	cur := p.ranks[st.Rank]
	if cur == nil {
		cur = &launcher.RankStatus{Rank: st.Rank}
		p.ranks[st.Rank] = cur
	}
	if cur.Advance(st) && st.State == launcher.RankEnded {
		r.tell(rendezvous.Progress{Step: rendezvous.StepExited, Time: st.Time, Host: p.Host, Rank: &st.Rank, Exit: st.Exit})
	}
}

// stop records a request to end the job, then carries it out. Like Plan and End it is recorded from the loop, so
// that no generation begins in between.
func (r *run) stop(asked rendezvous.Stop) error {
	if r.asked == nil || asked.Grace < r.asked.Grace {
		asked.At = time.Now()
		if err := r.l.cfg.Recorder.Stop(r.l.ctx, rendezvous.JobStop{Job: r.job.Spec.ID, Stop: asked}); err != nil {
			return fmt.Errorf("stop job %s: %w", r.job.Spec.ID, err)
		}
		r.applyStop(asked)
	}
	return nil
}

// applyStop ends the job because of a request in the record.
func (r *run) applyStop(asked rendezvous.Stop) {
	r.asked, r.noMore = &asked, true
	if v := r.verdict; v == nil || v.Moved || v.Asleep { // it was to come back
		r.end(rendezvous.Outcome{End: rendezvous.Stopped, Cause: asked.Reason})
		r.grace = asked.Grace
	}
	r.grace = min(r.grace, asked.Grace)
}

// publish updates what status shows.
func (r *run) publish() {
	r.viewMu.Lock()
	defer r.viewMu.Unlock()
	r.away, r.awaySince, r.suspended, r.done = nil, nil, nil, nil
	if r.wait == nil {
		for _, e := range r.doneBefore(nil) {
			r.done = append(r.done, e.Rank)
		}
	}
	for _, p := range r.placements {
		if p.suspended && p.phase == launcher.PhaseStarted {
			r.suspended = append(r.suspended, p.Host)
		}
		if p.up {
			continue
		}
		if r.awaySince == nil {
			r.awaySince = map[string]time.Time{} // a new map: readers hold the last one
		}
		r.away = append(r.away, p.Host)
		r.awaySince[p.Host] = p.since
	}
	r.againAt, r.last = nil, nil
	if r.wait != nil && !r.queued {
		last := r.wait.done // readers hold it
		r.last = &last
	}
	switch {
	case r.asleep:
		r.state = rendezvous.StateAsleep
	case r.wait != nil && !r.queued && r.text == "" && time.Now().Before(r.wait.from):
		at := r.wait.from // readers hold it
		r.state, r.againAt = rendezvous.StateAgain, &at
	case r.wait != nil || len(r.unproven()) > 0:
		r.state = rendezvous.StateWaits
	case r.verdict != nil || !r.failedAt.IsZero(): // failedAt: about to end, and an earlier leader may have said so
		r.state = rendezvous.StateEnds
		if r.comesAgain() {
			r.state = rendezvous.StateAgain
		}
	case r.started != nil, !r.fresh && r.allKnown() && r.find(func(p *placement) bool { return p.ran }) != nil:
		// Second case: an earlier leader may have said so, and a node was lost since.
		r.state = rendezvous.StateRuns
	case r.state == rendezvous.StatePlanned && r.allKnown():
		r.state = rendezvous.StateStarts
	}
}

func (r *run) status(out *rendezvous.JobStatus) {
	r.viewMu.Lock()
	defer r.viewMu.Unlock()
	out.State, out.Started, out.Away, out.Waits = r.state, r.started, slices.Clone(r.away), r.text
	out.Service, out.AgainAt, out.Moves, out.Last = r.seen, r.againAt, r.moving != nil, r.last
	out.AwaySince, out.Suspended, out.Done = r.awaySince, r.suspended, slices.Clone(r.done)
}
