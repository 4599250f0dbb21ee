package lead

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// The messages of a gang's mailbox. They only note facts; step draws the
// consequences.

func (g *gang) seatOf(id launcher.NodeID) *seat {
	return g.find(func(s *seat) bool { return s.Node == id })
}

// nodeUp takes a node's ledger; the zero entry for this generation means that
// the node knows nothing of it.
func (g *gang) nodeUp(id launcher.NodeID, boot string, ledger map[launcher.Key]launcher.LedgerEntry) {
	s, e := g.seatOf(id), ledger[g.job.Key()]
	if s == nil {
		return
	}
	if !s.up {
		g.tell(rendezvous.Progress{Step: rendezvous.StepNodeUp, Host: s.Host})
	}
	back := boot != s.Boot && g.takesBack(s, e) // before it counts among the known
	s.up, s.since, s.known = true, time.Now(), true
	g.moved = s.since
	s.preparing, s.starting, s.asked, s.ending = false, 0, 0, nil
	for rank, next := range s.next { // what was sent may have been lost
		next.sent = false
		s.next[rank] = next
	}
	switch {
	case back:
		g.rejoin(s, boot)
		g.adoptEntry(s, e)
	case s.phase == launcher.PhaseEnded:
	case boot != s.Boot:
		// A new boot proves that nothing of the old one runs.
		if len(g.exitsOf(s)) < s.Ranks {
			s.lose("%s restarted", s.Host)
		}
		s.rebooted = true
		g.rise(s, launcher.PhaseEnded)
	case e.Phase == launcher.PhaseNone && s.phase != launcher.PhaseNone:
		s.lose("%s has lost its record of the job", s.Host)
	default:
		if g.replacesSeat(s) { // it had been given up for its silence
			s.lost = ""
		}
		g.adoptEntry(s, e)
	}
}

// lose marks a node as one that cannot do its part any more: for good, even if
// it comes back. The first reason stands.
func (s *seat) lose(format string, args ...any) {
	if s.lost == "" {
		s.lost = fmt.Sprintf(format, args...)
	}
}

func (g *gang) adoptEntry(s *seat, e launcher.LedgerEntry) {
	s.refused = cmp.Or(s.refused, e.Refused) // some refusals are in no ledger
	s.image = cmp.Or(e.Image, s.image)
	g.isStuck(s, e.Stuck)
	s.suspended = e.Suspended
	g.servedIs(s, e.Service)
	g.rise(s, e.Phase)
	if e.Port != 0 && (s.rank == 0 || e.Phase >= launcher.PhaseStarted) {
		g.port = e.Port
	}
	if s.rank == 0 && e.Ports != nil {
		g.ports = e.Ports
	}
	running := 0
	for _, r := range e.Ranks {
		if r.State >= launcher.RankRunning {
			running++
		}
		g.rankIs(s, r)
	}
	if running == s.Ranks {
		g.hasRun(s)
	}
}

func (g *gang) clockIs(id launcher.NodeID, ahead time.Duration) {
	if s := g.seatOf(id); s != nil {
		s.ahead = ahead
	}
}

func (g *gang) nodeDown(id launcher.NodeID) {
	s := g.seatOf(id)
	if s == nil || !s.up {
		return
	}
	s.up, s.since, s.heard, s.askAt = false, time.Now(), time.Now(), time.Now()
	if s.phase != launcher.PhaseEnded {
		g.tell(rendezvous.Progress{Step: rendezvous.StepNodeDown, Host: s.Host})
	}
}

// event takes one fact from a node's stream.
func (g *gang) event(ev launcher.Event) {
	s := g.seatOf(ev.Node)
	if s == nil || ev.Key != g.job.Key() { // it was sent to the generation before
		return
	}
	switch ev.Kind {
	case launcher.Preparing:
		// As long as it gets on, it is not late.
		if until := time.Now().Add(g.job.Spec.StartTimeout); s.phase == launcher.PhaseNone && until.After(g.deadline) {
			g.deadline = until
		}
		g.tell(rendezvous.Progress{Step: rendezvous.StepPreparing, Host: s.Host, Text: ev.Text})
	case launcher.Prepared:
		s.image = ev.Image
		if s.rank == 0 && ev.Port != 0 {
			g.port = ev.Port
		}
		if s.rank == 0 {
			g.ports = ev.Ports
		}
		if g.rise(s, launcher.PhasePrepared) {
			g.tell(rendezvous.Progress{Step: rendezvous.StepPrepared, Host: s.Host, Text: ev.Text})
		}
	case launcher.Refused:
		s.refused = ev.Text
		g.tell(rendezvous.Progress{Step: rendezvous.StepRefused, Host: s.Host, Text: ev.Text})
	case launcher.Started:
		if g.rise(s, launcher.PhaseStarted) {
			g.tell(rendezvous.Progress{Step: rendezvous.StepStarted, Host: s.Host})
		}
		g.stepRuns(s, ev)
	case launcher.Served:
		g.servedIs(s, ev.Service)
	case launcher.Probed:
		g.probedIs(s, ev)
	case launcher.Exited:
		g.rankIs(s, launcher.RankStatus{Rank: ev.Rank, Again: ev.Again, State: launcher.RankEnded, Exit: ev.Exit, Time: ev.Time})
	case launcher.Returned:
		g.returned(s, ev)
	case launcher.Stuck:
		g.isStuck(s, ev.Text)
	case launcher.Suspended:
		s.suspended = ev.Text != ""
	case launcher.Ended:
		g.rise(s, launcher.PhaseEnded)
	}
}

// rise moves a node's phase, forward only.
func (g *gang) rise(s *seat, to launcher.Phase) bool {
	if to <= s.phase {
		return false
	}
	s.phase = to
	if to == launcher.PhaseStarted {
		g.ordered = true
	}
	return true
}

// hasRun notes that a node has started all its ranks, and tells once all have.
func (g *gang) hasRun(s *seat) {
	if s.ran {
		return
	}
	s.ran = true
	if g.find(func(s *seat) bool { return !s.ran }) != nil || g.stepped() {
		return
	}
	g.tellRunning()
}

// stepRuns notes that a node has started all its ranks of a step.
func (g *gang) stepRuns(s *seat, ev launcher.Event) {
	if !g.stepped() {
		g.hasRun(s)
		return
	}
	if ev.Step < 0 || ev.Step >= len(g.steps) {
		return
	}
	g.moved = time.Now()
	for _, r := range g.ranksOf(s, ev.Step) {
		g.rankIs(s, launcher.RankStatus{Rank: r, State: launcher.RankRunning, Time: ev.Time})
	}
	if s.allBegun() {
		g.hasRun(s)
	}
}

// tellRunning tells that all ranks run; of several steps, that the last one is ready, too.
func (g *gang) tellRunning() {
	now := time.Now()
	g.viewMu.Lock()
	if g.found && g.wasReady() {
		now = *g.seen.Ready // an earlier leader saw it
	}
	g.started = &now
	g.viewMu.Unlock()
	if g.copying {
		g.ranAt = &now
		return
	}
	g.tell(rendezvous.Progress{Step: rendezvous.StepRunning, Time: now, Ports: g.ports})
}

// allBegun tells whether each of a node's ranks has been exec'd, or could not be.
func (s *seat) allBegun() bool {
	begun := 0
	for _, r := range s.ranks {
		if r.State > launcher.RankPending {
			begun++
		}
	}
	return s.ran || begun == s.Ranks
}

func (g *gang) rankIs(s *seat, r launcher.RankStatus) {
	// What a node says of a rank that is not its own, or of an end without an
	// exit, is nothing to act on.
	if r.Rank < s.FirstRank || r.Rank >= s.FirstRank+s.Ranks || r.State == launcher.RankEnded && r.Exit == nil {
		return
	}
	if r.State > launcher.RankPending {
		g.ordered = true
	}
	cur := s.ranks[r.Rank]
	if cur == nil {
		cur = &launcher.RankStatus{Rank: r.Rank}
		s.ranks[r.Rank] = cur
	}
	if cur.Advance(r) && r.State == launcher.RankEnded {
		g.tell(rendezvous.Progress{Step: rendezvous.StepExited, Time: r.Time, Host: s.Host, Rank: r.Rank, Exit: r.Exit})
	}
}

// stop takes a request to end the job, once it is recorded. It writes as Plan and End
// do, from the loop, so that no generation begins between the two.
func (g *gang) stop(grace time.Duration, reason string) error {
	if g.asked == nil || grace < g.asked.Grace {
		asked := rendezvous.Stop{At: time.Now(), Grace: grace, Reason: reason}
		if err := g.l.cfg.Recorder.Stop(g.l.ctx, rendezvous.JobStop{Job: g.job.Spec.ID, Stop: asked}); err != nil {
			return fmt.Errorf("stop job %s: %w", g.job.Spec.ID, err)
		}
		g.obeyStop(asked)
	}
	return nil
}

// obeyStop ends the job for a request that is in the record.
func (g *gang) obeyStop(asked rendezvous.Stop) {
	g.asked, g.noMore = &asked, true
	if g.verdict == nil {
		g.end(rendezvous.Outcome{End: rendezvous.Stopped, Cause: asked.Reason})
		g.grace = asked.Grace
	}
	g.grace = min(g.grace, asked.Grace)
}

// publish brings what status shows up to date.
func (g *gang) publish() {
	g.viewMu.Lock()
	defer g.viewMu.Unlock()
	g.away, g.awaySince, g.suspended, g.done = nil, nil, nil, nil
	if g.wait == nil {
		for _, e := range g.doneBefore(nil) {
			g.done = append(g.done, e.Rank)
		}
	}
	for _, s := range g.seats {
		if s.suspended && s.phase == launcher.PhaseStarted {
			g.suspended = append(g.suspended, s.Host)
		}
		if s.up {
			continue
		}
		if g.awaySince == nil {
			g.awaySince = map[string]time.Time{} // a new one: readers hold the last
		}
		g.away = append(g.away, s.Host)
		g.awaySince[s.Host] = s.since
	}
	g.againAt = nil
	switch {
	case g.wait != nil && !g.queued && g.text == "" && time.Now().Before(g.wait.from):
		at := g.wait.from // readers hold it
		g.state, g.againAt = rendezvous.StateAgain, &at
	case g.wait != nil || len(g.unproven()) > 0:
		g.state = rendezvous.StateWaits
	case g.verdict != nil || !g.failedAt.IsZero(): // or about to be, and an earlier leader may have said so
		g.state = rendezvous.StateEnds
		if g.comesAgain() {
			g.state = rendezvous.StateAgain
		}
	case g.started != nil, !g.fresh && g.allKnown() && g.find(func(s *seat) bool { return s.ran }) != nil:
		// The second: an earlier leader may have said so, and a node has been lost since.
		g.state = rendezvous.StateRuns
	case g.state == rendezvous.StatePlanned && g.allKnown():
		g.state = rendezvous.StateStarts
	}
}

func (g *gang) status(out *rendezvous.JobStatus) {
	g.viewMu.Lock()
	defer g.viewMu.Unlock()
	out.State, out.Started, out.Away, out.Waits = g.state, g.started, slices.Clone(g.away), g.text
	out.Service, out.AgainAt = g.seen, g.againAt
	out.AwaySince, out.Suspended, out.Done = g.awaySince, g.suspended, slices.Clone(g.done)
}
