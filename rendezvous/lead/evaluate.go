package lead

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// collectWait is how long the first failure waits for others before the run is ended. What ranks do until then they
// do by themselves, and it may explain the failure better; what they do afterwards may be caused by the teardown.
const collectWait = 50 * time.Millisecond

// causeWait is how long a run waits for the exit of the peer that ranks report as lost: it has closed its
// connections and may still be exiting, such as an interpreter that has to unload PyTorch.
const causeWait = time.Second

// evaluate decides whether the run must end, and why: the first reason stands. A verdict that follows from exits of
// ranks can be derived from the nodes' ledgers; every other verdict has to be recorded.
func (r *run) evaluate(now time.Time) {
	goOn := r.job.Spec.OnFailure == launcher.ContinueOnFailure
	if r.stepped() && r.culprit() == nil {
		r.failedAt = time.Time{} // the first failure turned out to be spared
	}
	switch {
	case r.deserted() != nil && r.rootCause() == nil:
		if !r.collecting(now) {
			r.endFor(*r.culprit())
		}
	case r.mainDone(): // what the other ranks did since does not matter
		r.end(rendezvous.Outcome{End: rendezvous.Completed})
	case r.anyRefused() != nil && r.ordered: // it refused the start
		r.decide(failed(r.anyRefused().refusal()))
	case r.anyRefused() != nil:
		if !r.moreAnswers(now) {
			r.decide(rejected(r.refusals()))
		}
	case !r.ordered && r.unlikeImages() != "":
		r.decide(rejected(r.unlikeImages()))
	case r.anyLost() != nil && !r.ordered && r.fresh:
		r.decide(rejected(r.anyLost().lost + " before the start: no rank was started"))
	case r.anyLost() != nil && (!goOn || !r.ordered && r.allKnown()): // the others have not started ranks
		r.decide(failed(r.anyLost().lost))
	case r.anyStuck() != nil && !goOn && r.rootCause() == nil:
		r.decide(failed(r.anyStuck().trouble()))
	case r.rootCause() != nil && !goOn:
		if !r.collecting(now) {
			r.endFor(*r.culprit())
		}
	case !r.movedAt().IsZero() && !now.Before(r.movedAt()):
		r.decide(r.moving.out)
	case r.timedOut(now):
		r.decide(r.outOfTime())
	case r.wedged(now) != "":
		r.decide(failed(r.wedged(now)))
	case r.leftEarly() != nil && !goOn:
		r.decide(failed(r.blame(*r.leftEarly()) + ", while the job needs it"))
	case r.stalled(now):
		r.decide(failed(r.whyStalled()))
	case r.beingEnded():
		r.inherited = true
		r.end(rendezvous.Outcome{End: rendezvous.Stopped, Cause: "it was being ended when the leader changed"})
	case r.allDone():
		r.conclude()
	case r.endedEarly() != nil:
		r.decide(failed(r.endedEarly().Host + " ended its ranks before they had exited: see its agent's log"))
	case !r.ordered && r.downBeforeStart() != nil:
		r.decide(rejected(r.downBeforeStart().Host + " was lost before the start: no rank was started"))
	case r.traceless() != "":
		if now.After(r.deadline) {
			r.decide(failed(r.job.NoTrace(r.traceless())))
		}
	case now.After(r.deadline) && !r.awaits && r.notStarted() != "":
		r.decide(failed(fmt.Sprintf("not started within %s: %s", r.job.Spec.StartTimeout, r.notStarted())))
	}
}

// endFor ends the run because of a rank's exit. An exit with 0 that counts as a failure has to be recorded, because
// the ledger does not show that.
func (r *run) endFor(e launcher.RankExit) {
	if e.Exit.Failed() {
		r.end(r.failedBy(e))
	} else {
		r.decide(r.failedBy(e))
	}
}

func failed(cause string) rendezvous.Outcome {
	return rendezvous.Outcome{End: rendezvous.Failed, Cause: cause}
}

func rejected(cause string) rendezvous.Outcome {
	return rendezvous.Outcome{End: rendezvous.Rejected, Cause: cause}
}

func (r *run) failedBy(e launcher.RankExit) rendezvous.Outcome {
	out := rendezvous.Outcome{End: rendezvous.Failed, ExitCode: e.Exit.Status(), Cause: r.blame(e), Root: &e}
	if !e.Exit.Failed() {
		out.ExitCode = launcher.ExitOwnFailure
	}
	return out
}

func (r *run) outOfTime() rendezvous.Outcome {
	out := failed(fmt.Sprintf("the time limit of %s has passed (--timeout)", r.job.Spec.Timeout))
	out.ExitCode = launcher.ExitTimedOut
	return out
}

// collecting tells whether the first failure is too recent to be evaluated.
func (r *run) collecting(now time.Time) bool {
	if r.failedAt.IsZero() {
		r.failedAt = now
	}
	return now.Before(r.collectUntil()) && !r.allDone()
}

func (r *run) collectUntil() time.Time {
	if root := r.culprit(); root != nil && root.Exit.LostPeer {
		return r.failedAt.Add(causeWait)
	}
	return r.failedAt.Add(collectWait)
}

// conclude ends a run whose ranks have all ended by themselves, except those on nodes that were given up. If the
// others were to go on after a failure, that failure becomes the verdict now.
func (r *run) conclude() {
	switch root, lost := r.culprit(), r.anyLost(); {
	case root != nil && lost != nil:
		r.decide(r.failedBy(*root))
	case root != nil:
		r.end(r.failedBy(*root))
	case lost != nil:
		r.decide(failed(lost.lost))
	default:
		r.end(rendezvous.Outcome{End: rendezvous.Completed})
	}
}

// timeLimit is when the job must have ended; zero means never.
func (r *run) timeLimit() time.Time {
	if r.job.Spec.Timeout == 0 {
		return time.Time{}
	}
	return r.job.Planned.Add(r.job.Spec.Timeout)
}

func (r *run) timedOut(now time.Time) bool {
	limit := r.timeLimit()
	return !limit.IsZero() && !now.Before(limit)
}

// decide ends the run for a reason that only this leader may know: a silence, a time limit. The verdict is recorded
// before it is reported or acted upon. Otherwise the next leader, if the silent node answers it, might report the
// job as running after its end was announced, or might think that a person stopped ranks which we told to end, and
// make no other attempt.
func (r *run) decide(out rendezvous.Outcome) {
	out.At = time.Now()
	r.proposed = &out
	r.propose()
}

// propose records the verdict. If it is unknown whether that worked, the same verdict is proposed again.
func (r *run) propose() {
	if err := r.l.cfg.Recorder.Verdict(r.l.ctx, rendezvous.JobEnd{Key: r.job.Key(), Outcome: *r.proposed}); err != nil {
		r.l.cfg.Logger.Warn("record verdict", "job", r.job.Spec.ID, "error", err)
		r.proposeAt = time.Now().Add(time.Second)
		return
	}
	r.end(*r.proposed)
}

// end sets the verdict: from here on the run is torn down.
func (r *run) end(out rendezvous.Outcome) {
	r.verdict, r.proposed, r.ended = &out, nil, time.Now()
	r.l.cfg.Logger.Info("job ends", "job", r.job.Spec.ID, "end", out.End, "cause", out.Cause)
	if out.End != rendezvous.Completed {
		r.tell(rendezvous.Progress{Step: rendezvous.StepEnding, Text: out.Cause})
	}
}

// applyVerdict continues with what an earlier leader decided.
func (r *run) applyVerdict(v rendezvous.Outcome) {
	stopped := v.End == rendezvous.Stopped // so no other attempt follows, and a queued job does not begin
	r.noMore = r.noMore || stopped
	if r.verdict == nil && (r.wait == nil || stopped) {
		r.end(v)
	}
}

func (r *run) find(is func(*placement) bool) *placement {
	if i := slices.IndexFunc(r.placements, is); i >= 0 {
		return r.placements[i]
	}
	return nil
}

// anyRefused ignores a node that came back to a job that runs without it.
func (r *run) anyRefused() *placement {
	return r.find(func(p *placement) bool { return p.refused != "" && p.rejoined == 0 })
}

func (r *run) anyLost() *placement {
	return r.find(func(p *placement) bool { return p.lost != "" && !r.sparedAll(p) })
}

func (r *run) endedEarly() *placement {
	return r.find(func(p *placement) bool {
		return p.phase == launcher.PhaseEnded && p.lost == "" && p.rejoined == 0 && len(r.exitsOf(p)) < p.Ranks
	})
}

// beingEnded tells whether an earlier leader had begun to end the run. Its reason was lost with it, unless a rank's
// exit or a refusal shows it.
func (r *run) beingEnded() bool {
	for _, p := range r.placements {
		if slices.ContainsFunc(r.exitsOf(p), func(e launcher.RankExit) bool { return e.Exit.ByUs }) {
			return true
		}
	}
	return !r.fresh && r.endedEarly() != nil
}

// allDone tells whether no rank is left to wait for: each has exited or is on a node that
// was given up.
func (r *run) allDone() bool {
	return r.find(func(p *placement) bool { return p.lost == "" && len(r.exitsOf(p)) < p.Ranks }) == nil
}

// downBeforeStart finds a node that is away, once all ledgers are there: a new leader has to wait for them, because
// ranks may run.
func (r *run) downBeforeStart() *placement {
	if !r.allKnown() {
		return nil
	}
	return r.find(func(p *placement) bool { return !p.up })
}

// notStarted names the nodes whose ranks have not all started. A node whose stream broke before, or whose disk
// hangs, counts too: the others wait for it only until the deadline. A node that a new leader has not heard yet
// does not count: its ranks may have run for days.
func (r *run) notStarted() string {
	var late []string
	for _, p := range r.placements {
		switch {
		case !p.known || p.rejoined > 0 || p.phase == launcher.PhaseEnded || p.allBegun() ||
			p.phase >= launcher.PhasePrepared && r.waitsItsTurn(p):
		case !p.up:
			late = append(late, p.Host+" does not answer")
		case p.phase == launcher.PhasePrepared:
			late = append(late, p.Host+" is prepared and waiting")
		case p.phase == launcher.PhaseStarted:
			late = append(late, p.Host+" was told to start and has not started all its ranks")
		case p.does != "":
			late = append(late, fmt.Sprintf("%s is still preparing (%s)", p.Host, p.does))
		default:
			late = append(late, p.Host+" is still preparing")
		}
	}
	return strings.Join(late, ", ")
}

// exitsOf lists a node's ended ranks.
func (r *run) exitsOf(p *placement) []launcher.RankExit {
	var out []launcher.RankExit
	for _, st := range p.ranks {
		if st.State == launcher.RankEnded && st.Exit != nil {
			out = append(out, launcher.RankExit{Rank: st.Rank, Host: p.Host, Time: st.Time.Add(-p.ahead), Exit: *st.Exit})
		}
	}
	return out
}

func (r *run) rootCause() *launcher.RankExit {
	var exits []launcher.RankExit
	for _, p := range r.placements {
		for _, e := range r.exitsOf(p) {
			if !r.spared(p, e.Rank) {
				exits = append(exits, e)
			}
		}
	}
	return launcher.RootCause(exits)
}

func (p *placement) refusal() string { return p.Host + ": " + p.refused }

// answersWait is how long a refusal waits for refusals of other nodes: a user whose program is missing on one node
// wants to know every node that lacks it.
const answersWait = 500 * time.Millisecond

// moreAnswers tells whether a node may still say that it refuses, too.
func (r *run) moreAnswers(now time.Time) bool {
	if r.refusedAt.IsZero() {
		r.refusedAt = now
	}
	return now.Sub(r.refusedAt) < answersWait && !now.After(r.deadline) &&
		r.find(func(p *placement) bool { return p.up && p.refused == "" && p.phase == launcher.PhaseNone }) != nil
}

// refusals says which nodes refused and why; a reason that several share is given once.
func (r *run) refusals() string {
	var reasons []string
	hosts := map[string][]string{}
	words := map[string]string{} // by reason, as the first node put it
	for _, p := range r.placements {
		if p.refused == "" {
			continue
		}
		// Texts of rules name their machine; without the name, equal refusals can be
		// merged.
		reason := strings.NewReplacer(" on "+p.Host+":", " there:", " on "+p.Host+" ", " there ").Replace(p.refused)
		if hosts[reason] == nil {
			reasons = append(reasons, reason)
			words[reason] = p.refused
		}
		hosts[reason] = append(hosts[reason], p.Host)
	}
	for i, r := range reasons {
		text := r
		if len(hosts[r]) == 1 {
			text = words[r]
		}
		reasons[i] = strings.Join(hosts[r], ", ") + ": " + text
	}
	return strings.Join(reasons, "; ")
}

func (r *run) blame(e launcher.RankExit) string {
	who := r.job.Spec.Process(e.Rank)
	if s := r.job.Plan.Stage; s == launcher.StageBefore || s == launcher.StageAfter {
		who = fmt.Sprintf("rank %d", e.Rank)
	}
	text := r.stageOf(e.Rank) + fmt.Sprintf("%s on %s: %s", who, e.Host, e.Exit)
	if r.serves() && !e.Exit.Failed() {
		text += "; the server ended by itself"
	}
	return text
}

// outcome adds to the verdict what the ranks reported since.
func (r *run) outcome() rendezvous.Outcome {
	out := *r.verdict
	out.Exits = nil
	out.At, out.Started = time.Now(), r.started
	if r.inherited {
		switch {
		case r.mainDone(): // found out late: that node's ledger came after the others'
			out.End, out.Cause = rendezvous.Completed, ""
		case r.rootCause() != nil:
			out.End = rendezvous.Failed
		case r.anyRefused() != nil && !r.ordered:
			out.End, out.Cause = rendezvous.Rejected, r.anyRefused().refusal()
		case r.anyRefused() != nil:
			out.End, out.Cause = rendezvous.Failed, r.anyRefused().refusal()
		case r.anyLost() != nil:
			out.End, out.Cause = rendezvous.Failed, r.anyLost().lost
		}
	}
	out.Asleep = out.Asleep || r.leaves && out.End == rendezvous.Failed // whatever happened to it since
	switch out.End {
	case rendezvous.Failed, rendezvous.Rejected:
		r.losses(&out)
		out.ExitCode = cmp.Or(out.ExitCode, launcher.ExitOwnFailure)
	case rendezvous.Stopped:
		out.ExitCode = launcher.Exit{Signal: 15}.Status()
		if r.grace == 0 {
			out.ExitCode = launcher.Exit{Signal: 9}.Status()
		}
	}
	// The earliest failure may have been reported after a later one. A verdict
	// that is not about ranks stands: what failed since is a consequence.
	if root := r.culprit(); root != nil && out.End != rendezvous.Completed && (out.Root != nil || r.inherited) {
		by := r.failedBy(*root)
		out.Root, out.ExitCode, out.Cause = by.Root, by.ExitCode, by.Cause
		if lost := r.anyLost(); lost != nil && root.Exit.LostPeer {
			out.Root, out.ExitCode, out.Cause = nil, launcher.ExitOwnFailure,
				lost.lost+"; seen as: "+r.blame(*root)
		} else if told := r.toldLate(); told != nil && root.Exit.LostPeer {
			out.Root, out.Cause = told, r.blameLate(*told)+"; seen as: "+r.blame(*root)
		}
	}
	for _, text := range r.leftovers() {
		if !strings.Contains(out.Cause, text) {
			out.Cause = strings.TrimPrefix(out.Cause+"; "+text, "; ")
		}
	}
	for _, p := range r.placements {
		if p.lost != "" && p.phase != launcher.PhaseEnded && (r.ordered || !r.allKnown()) {
			out.Doubt(p.lost)
		}
		for _, e := range r.exitsOf(p) {
			if e.Exit.Failed() {
				e.Exit = e.Exit.Bare() // the root's is given in full
				out.Exits = append(out.Exits, e)
			}
		}
	}
	slices.SortStableFunc(out.Exits, func(a, b launcher.RankExit) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Rank, b.Rank))
	})
	out.Exits = out.Exits[:min(len(out.Exits), rendezvous.MaxExits)]
	if out.End == rendezvous.Completed {
		out.Exits = nil
	} else {
		done := r.doneBefore(out.Root)
		out.Exits = append(out.Exits, done[:min(len(done), rendezvous.MaxExits-len(out.Exits))]...)
	}
	return out
}

// doneBefore lists the ranks that had exited with 0 by themselves; if a rank is the cause, only those before it:
// others may have waited for them in vain.
func (r *run) doneBefore(root *launcher.RankExit) (done []launcher.RankExit) {
	for _, p := range r.placements {
		for _, e := range r.exitsOf(p) {
			if !e.Exit.Failed() && !e.Exit.ByUs && (root == nil || e.Time.Before(root.Time)) {
				e.Exit = e.Exit.Bare()
				done = append(done, e)
			}
		}
	}
	slices.SortStableFunc(done, func(a, b launcher.RankExit) int { return cmp.Compare(a.Rank, b.Rank) })
	return done
}
