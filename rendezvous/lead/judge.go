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

// collectWait is how long the first failure waits for others before the gang is
// ended: what the ranks do by themselves until then may explain it better, what
// they do afterwards is our doing.
const collectWait = 50 * time.Millisecond

// causeWait is how long ranks that only report a lost peer wait for the one they
// lost: it has closed its connections, and may still be on its way out, as an
// interpreter is that has PyTorch to unload.
const causeWait = time.Second

// judge decides whether the gang must end, and why: the first reason stands. What
// the exits of ranks tell needs no record but the nodes' ledgers; all else does.
func (g *gang) judge(now time.Time) {
	goOn := g.job.Spec.OnFailure == launcher.ContinueOnFailure
	if g.stepped() && g.culprit() == nil {
		g.failedAt = time.Time{} // what was seen first is spared, as has turned out
	}
	switch {
	case g.deserted() != nil && g.rootCause() == nil:
		if !g.collecting(now) {
			g.laidTo(*g.culprit())
		}
	case g.mainDone(): // what the others did since is of no account
		g.end(rendezvous.Outcome{End: rendezvous.Completed})
	case g.anyRefused() != nil && g.ordered: // refused the start itself
		g.decide(failed(g.anyRefused().refusal()))
	case g.anyRefused() != nil:
		if !g.moreAnswers(now) {
			g.decide(rejected(g.refusals()))
		}
	case !g.ordered && g.unlikeImages() != "":
		g.decide(rejected(g.unlikeImages()))
	case g.anyLost() != nil && !g.ordered && g.fresh:
		g.decide(rejected(g.anyLost().lost + " before the start: no rank was started"))
	case g.anyLost() != nil && (!goOn || !g.ordered && g.allKnown()): // the others have not begun
		g.decide(failed(g.anyLost().lost))
	case g.anyStuck() != nil && !goOn && g.rootCause() == nil:
		g.decide(failed(g.anyStuck().trouble()))
	case g.rootCause() != nil && !goOn:
		if !g.collecting(now) {
			g.laidTo(*g.culprit())
		}
	case g.timedOut(now):
		g.decide(g.outOfTime())
	case g.wedged(now) != "":
		g.decide(failed(g.wedged(now)))
	case g.leftEarly() != nil && !goOn:
		g.decide(failed(g.blame(*g.leftEarly()) + ", while the job needs it"))
	case g.stalled(now):
		g.decide(failed(g.whyStalled()))
	case g.beingEnded():
		g.inherited = true
		g.end(rendezvous.Outcome{End: rendezvous.Stopped, Cause: "it was being ended when the leader changed"})
	case g.allDone():
		g.conclude()
	case g.endedEarly() != nil:
		g.decide(failed(g.endedEarly().Host + " ended its ranks before they had exited: see its agent's log"))
	case !g.ordered && g.downBeforeStart() != nil:
		g.decide(rejected(g.downBeforeStart().Host + " was lost before the start: no rank was started"))
	case g.traceless() != "":
		if now.After(g.deadline) {
			g.decide(failed(g.job.NoTrace(g.traceless())))
		}
	case now.After(g.deadline) && g.notStarted() != "":
		g.decide(failed(fmt.Sprintf("not started within %s: %s", g.job.Spec.StartTimeout, g.notStarted())))
	}
}

// laidTo ends the gang for a rank's exit. That one with 0 was no way to end is not in its ledger.
func (g *gang) laidTo(r launcher.RankExit) {
	if r.Exit.Failed() {
		g.end(g.failedBy(r))
	} else {
		g.decide(g.failedBy(r))
	}
}

func failed(cause string) rendezvous.Outcome {
	return rendezvous.Outcome{End: rendezvous.Failed, Cause: cause}
}

func rejected(cause string) rendezvous.Outcome {
	return rendezvous.Outcome{End: rendezvous.Rejected, Cause: cause}
}

func (g *gang) failedBy(r launcher.RankExit) rendezvous.Outcome {
	out := rendezvous.Outcome{End: rendezvous.Failed, ExitCode: r.Exit.Status(), Cause: g.blame(r), Root: &r}
	if !r.Exit.Failed() {
		out.ExitCode = launcher.ExitOwnFailure
	}
	return out
}

func (g *gang) outOfTime() rendezvous.Outcome {
	out := failed(fmt.Sprintf("the time limit of %s has passed (--timeout)", g.job.Spec.Timeout))
	out.ExitCode = launcher.ExitTimedOut
	return out
}

// collecting tells whether the first failure is too fresh to be judged.
func (g *gang) collecting(now time.Time) bool {
	if g.failedAt.IsZero() {
		g.failedAt = now
	}
	return now.Before(g.collectUntil()) && !g.allDone()
}

func (g *gang) collectUntil() time.Time {
	if root := g.culprit(); root != nil && root.Exit.LostPeer {
		return g.failedAt.Add(causeWait)
	}
	return g.failedAt.Add(collectWait)
}

// conclude is for a gang whose ranks have all ended by themselves, but for those
// on nodes that were given up. Where they were to go on after a failure, it is
// told now.
func (g *gang) conclude() {
	switch root, lost := g.culprit(), g.anyLost(); {
	case root != nil && lost != nil:
		g.decide(g.failedBy(*root))
	case root != nil:
		g.end(g.failedBy(*root))
	case lost != nil:
		g.decide(failed(lost.lost))
	default:
		g.end(rendezvous.Outcome{End: rendezvous.Completed})
	}
}

// timeLimit is when the job must have ended; zero means never.
func (g *gang) timeLimit() time.Time {
	if g.job.Spec.Timeout == 0 {
		return time.Time{}
	}
	return g.job.Planned.Add(g.job.Spec.Timeout)
}

func (g *gang) timedOut(now time.Time) bool {
	limit := g.timeLimit()
	return !limit.IsZero() && !now.Before(limit)
}

// decide ends the gang for what this leader alone may know: a silence, a time that
// is over. It is recorded before it is told or acted upon. Else the next leader,
// whom the node answers again, would say that what was said to end runs; and of ranks
// that were told to end, that somebody had asked for it, so that no other try followed.
func (g *gang) decide(out rendezvous.Outcome) {
	out.At = time.Now()
	g.proposed = &out
	g.propose()
}

// propose records the verdict that was decided on. One of which it is not known
// whether it was recorded stays the one.
func (g *gang) propose() {
	if err := g.l.cfg.Recorder.Verdict(g.l.ctx, rendezvous.JobEnd{Key: g.job.Key(), Outcome: *g.proposed}); err != nil {
		g.l.cfg.Logger.Warn("record verdict", "job", g.job.Spec.ID, "error", err)
		g.proposeAt = time.Now().Add(time.Second)
		return
	}
	g.end(*g.proposed)
}

// end sets the verdict: from here on the gang only winds down.
func (g *gang) end(out rendezvous.Outcome) {
	g.verdict, g.proposed, g.ended = &out, nil, time.Now()
	g.l.cfg.Logger.Info("gang ends", "job", g.job.Spec.ID, "end", out.End, "cause", out.Cause)
	if out.End != rendezvous.Completed {
		g.tell(rendezvous.Progress{Step: rendezvous.StepEnding, Text: out.Cause})
	}
}

// obeyVerdict goes on with what an earlier leader has decided.
func (g *gang) obeyVerdict(v rendezvous.Outcome) {
	stopped := v.End == rendezvous.Stopped // so nothing follows, and nothing begins that waits in line
	g.noMore = g.noMore || stopped
	if g.verdict == nil && (g.wait == nil || stopped) {
		g.end(v)
	}
}

func (g *gang) find(is func(*seat) bool) *seat {
	if i := slices.IndexFunc(g.seats, is); i >= 0 {
		return g.seats[i]
	}
	return nil
}

// anyRefused passes over a node that came back to a job that runs without it.
func (g *gang) anyRefused() *seat {
	return g.find(func(s *seat) bool { return s.refused != "" && s.rejoined == 0 })
}

func (g *gang) anyLost() *seat {
	return g.find(func(s *seat) bool { return s.lost != "" && !g.sparedSeat(s) })
}

func (g *gang) endedEarly() *seat {
	return g.find(func(s *seat) bool {
		return s.phase == launcher.PhaseEnded && s.lost == "" && s.rejoined == 0 && len(g.exitsOf(s)) < s.Ranks
	})
}

// beingEnded tells whether an earlier leader had begun to end the gang. Its
// reason is gone with it, unless a rank's exit or a refusal still tells.
func (g *gang) beingEnded() bool {
	for _, s := range g.seats {
		if slices.ContainsFunc(g.exitsOf(s), func(e launcher.RankExit) bool { return e.Exit.ByUs }) {
			return true
		}
	}
	return !g.fresh && g.endedEarly() != nil
}

// allDone tells whether no rank is left to wait for: each has exited, or is on a
// node that was given up.
func (g *gang) allDone() bool {
	return g.find(func(s *seat) bool { return s.lost == "" && len(g.exitsOf(s)) < s.Ranks }) == nil
}

// downBeforeStart is meant for a gang whose nodes were all heard of: a new
// leader has to wait for the ledgers, which may say that ranks run.
func (g *gang) downBeforeStart() *seat {
	if !g.allKnown() {
		return nil
	}
	return g.find(func(s *seat) bool { return !s.up })
}

// notStarted names the nodes whose ranks have not all started, as far as they
// have told: one whose stream broke before is no reason to let the others wait
// for it, nor is one that was told and whose disk hangs. One that a new leader
// has not heard yet may have run for days.
func (g *gang) notStarted() string {
	var late []string
	for _, s := range g.seats {
		switch {
		case !s.known || s.rejoined > 0 || s.phase == launcher.PhaseEnded || s.allBegun() || s.phase >= launcher.PhasePrepared && g.waitsItsTurn(s):
		case !s.up:
			late = append(late, s.Host+" does not answer")
		case s.phase == launcher.PhasePrepared:
			late = append(late, s.Host+" is prepared and waiting")
		case s.phase == launcher.PhaseStarted:
			late = append(late, s.Host+" was told to start and has not started all its ranks")
		default:
			late = append(late, s.Host+" is still preparing")
		}
	}
	return strings.Join(late, ", ")
}

// exitsOf lists a node's ended ranks.
func (g *gang) exitsOf(s *seat) []launcher.RankExit {
	var out []launcher.RankExit
	for _, r := range s.ranks {
		if r.State == launcher.RankEnded && r.Exit != nil {
			out = append(out, launcher.RankExit{Rank: r.Rank, Host: s.Host, Time: r.Time.Add(-s.ahead), Exit: *r.Exit})
		}
	}
	return out
}

func (g *gang) rootCause() *launcher.RankExit {
	var exits []launcher.RankExit
	for _, s := range g.seats {
		for _, e := range g.exitsOf(s) {
			if !g.spared(s, e.Rank) {
				exits = append(exits, e)
			}
		}
	}
	return launcher.RootCause(exits)
}

func (s *seat) refusal() string { return s.Host + ": " + s.refused }

// answersWait is how long a refusal waits for the other nodes': who misses a
// program on one node wants to hear of all that lack it.
const answersWait = 500 * time.Millisecond

// moreAnswers tells whether a node may still say that it refuses, too.
func (g *gang) moreAnswers(now time.Time) bool {
	if g.refusedAt.IsZero() {
		g.refusedAt = now
	}
	return now.Sub(g.refusedAt) < answersWait && !now.After(g.deadline) &&
		g.find(func(s *seat) bool { return s.up && s.refused == "" && s.phase == launcher.PhaseNone }) != nil
}

// refusals says who refused and why; a reason that several share is said once.
func (g *gang) refusals() string {
	var reasons []string
	hosts := map[string][]string{}
	words := map[string]string{} // as the first one said it
	for _, s := range g.seats {
		if s.refused == "" {
			continue
		}
		// A machine's rules name it: else the same refusal is as many as there are machines.
		reason := strings.NewReplacer(" on "+s.Host+":", " there:", " on "+s.Host+" ", " there ").Replace(s.refused)
		if hosts[reason] == nil {
			reasons = append(reasons, reason)
			words[reason] = s.refused
		}
		hosts[reason] = append(hosts[reason], s.Host)
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

func (g *gang) blame(r launcher.RankExit) string {
	who := g.job.Spec.Process(r.Rank)
	if s := g.job.Plan.Stage; s == launcher.StageBefore || s == launcher.StageAfter {
		who = fmt.Sprintf("rank %d", r.Rank)
	}
	text := g.stageOf(r.Rank) + fmt.Sprintf("%s on %s: %s", who, r.Host, r.Exit)
	if g.serves() && !r.Exit.Failed() {
		text += "; the server ended by itself"
	}
	return text
}

// outcome completes the verdict with what the ranks reported since.
func (g *gang) outcome() rendezvous.Outcome {
	out := *g.verdict
	out.Exits = nil
	out.At, out.Started = time.Now(), g.started
	if g.inherited {
		switch {
		case g.mainDone(): // known late: its node was heard after the others, which were being ended
			out.End, out.Cause = rendezvous.Completed, ""
		case g.rootCause() != nil:
			out.End = rendezvous.Failed
		case g.anyRefused() != nil && !g.ordered:
			out.End, out.Cause = rendezvous.Rejected, g.anyRefused().refusal()
		case g.anyRefused() != nil:
			out.End, out.Cause = rendezvous.Failed, g.anyRefused().refusal()
		case g.anyLost() != nil:
			out.End, out.Cause = rendezvous.Failed, g.anyLost().lost
		}
	}
	switch out.End {
	case rendezvous.Failed, rendezvous.Rejected:
		g.losses(&out)
		out.ExitCode = cmp.Or(out.ExitCode, launcher.ExitOwnFailure)
	case rendezvous.Stopped:
		out.ExitCode = launcher.Exit{Signal: 15}.Status()
		if g.grace == 0 {
			out.ExitCode = launcher.Exit{Signal: 9}.Status()
		}
	}
	// The earliest failure may have been reported after a later one. A verdict
	// that is not about ranks stands: what failed since is a consequence.
	if root := g.culprit(); root != nil && out.End != rendezvous.Completed && (out.Root != nil || g.inherited) {
		by := g.failedBy(*root)
		out.Root, out.ExitCode, out.Cause = by.Root, by.ExitCode, by.Cause
		if lost := g.anyLost(); lost != nil && root.Exit.LostPeer {
			out.Root, out.ExitCode, out.Cause = nil, launcher.ExitOwnFailure, lost.lost+"; what was noticed of it: "+g.blame(*root)
		} else if told := g.toldLate(); told != nil && root.Exit.LostPeer {
			out.Root, out.Cause = told, g.blameLate(*told)+"; what was noticed of it: "+g.blame(*root)
		}
	}
	for _, text := range g.stays() {
		if !strings.Contains(out.Cause, text) {
			out.Cause = strings.TrimPrefix(out.Cause+"; "+text, "; ")
		}
	}
	for _, s := range g.seats {
		for _, e := range g.exitsOf(s) {
			if e.Exit.Failed() {
				e.Exit = e.Exit.Bare() // the root's is told in full
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
		done := g.doneBefore(out.Root)
		out.Exits = append(out.Exits, done[:min(len(done), rendezvous.MaxExits-len(out.Exits))]...)
	}
	return out
}

// doneBefore lists the ranks that had exited with 0 by themselves, before the cause
// where that is a rank: whom others then wait for in vain.
func (g *gang) doneBefore(root *launcher.RankExit) (done []launcher.RankExit) {
	for _, s := range g.seats {
		for _, e := range g.exitsOf(s) {
			if !e.Exit.Failed() && !e.Exit.ByUs && (root == nil || e.Time.Before(root.Time)) {
				e.Exit = e.Exit.Bare()
				done = append(done, e)
			}
		}
	}
	slices.SortStableFunc(done, func(a, b launcher.RankExit) int { return cmp.Compare(a.Rank, b.Rank) })
	return done
}
