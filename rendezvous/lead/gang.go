package lead

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// gang drives one try of one job. It is a state machine fed by a mailbox: after
// each message, step compares what every planned node has come to with what is
// wanted, and sends what is missing. A new leader runs the same step on what
// the ledgers say, so adopting a job is no case of its own.
type gang struct {
	l     *Leader
	job   rendezvous.Job
	story *story
	// findings are what the preflight warned of; known to the leader that planned.
	findings []envgen.Finding

	fresh   bool          // to be recorded first
	planned chan struct{} // closed once the plan is recorded, or cannot be
	planErr error         // written before planned is closed

	mail chan struct{} // has room for one: "the mailbox is not empty"
	mbMu sync.Mutex
	box  []func()

	// Below: the loop's own.
	seats     []*seat
	port      int
	deadline  time.Time // for the last rank to be started
	refusedAt time.Time // of the first refusal; zero while there is none
	ordered   bool      // Start has been sent, or a ledger says that it was
	verdict   *rendezvous.Outcome
	// inherited: an earlier leader ended the gang. Its reason is looked for
	// again when all nodes have told what they know.
	inherited bool
	byRank    bool          // the verdict is about a rank: an earlier exit may explain it better
	grace     time.Duration // of the End that is wanted

	viewMu  sync.Mutex // guards what status reads
	state   rendezvous.State
	started *time.Time
	away    []string
}

// seat is one planned node. What was sent is remembered per stream only: a new
// stream begins with a ledger, and what that lacks is sent again.
type seat struct {
	rendezvous.Place
	rank  int // node rank
	up    bool
	since time.Time // of the last change of up
	known bool      // its phase is known: fresh, or told by a ledger
	lost  string    // why it cannot do its part any more: empty, or a sentence

	phase   launcher.Phase
	refused string
	ran     bool // all its ranks have been started
	ranks   map[int]*launcher.RankStatus

	preparing, starting bool
	ending              *time.Duration // the grace of the End that was sent
}

// newGang makes the gang of a recorded job: what its nodes have come to is not
// known before their ledgers arrive.
func newGang(l *Leader, job rendezvous.Job) *gang {
	g := &gang{
		l: l, job: job, story: newStory(), planned: make(chan struct{}), mail: make(chan struct{}, 1),
		deadline: time.Now().Add(job.Spec.StartTimeout), grace: job.Spec.Grace, state: rendezvous.StateStarts,
	}
	for i, p := range job.Plan.Nodes {
		g.seats = append(g.seats, &seat{Place: p, rank: i, since: time.Now(), ranks: map[int]*launcher.RankStatus{}})
	}
	return g
}

// plant makes the gang of a job that no record and no node has heard of.
func plant(l *Leader, job rendezvous.Job) *gang {
	g := newGang(l, job)
	g.fresh = true
	for _, s := range g.seats {
		s.up, s.known = true, true // MakePlan takes only nodes that are ready
	}
	return g
}

// plan records a fresh job. Nothing is sent to any node before. The recorder is
// given the leadership's context, not the caller's: a caller that goes away must
// not leave a recorded job that nobody drives.
func (g *gang) plan(ctx context.Context) error {
	if g.fresh {
		if err := g.l.cfg.Recorder.Plan(ctx, g.job); err != nil {
			return fmt.Errorf("record job %s: %w", g.job.Spec.ID, err)
		}
	}
	g.tell(rendezvous.Progress{Step: rendezvous.StepPlanned, Time: g.job.Planned, Plan: &g.job.Plan, Findings: g.findings})
	return nil
}

func (g *gang) tell(p rendezvous.Progress) {
	p.Job = g.job.Spec.ID
	if p.Time.IsZero() {
		p.Time = time.Now()
	}
	g.story.tell(p)
}

// post puts a message into the mailbox and never blocks.
func (g *gang) post(msg func()) {
	g.mbMu.Lock()
	g.box = append(g.box, msg)
	g.mbMu.Unlock()
	select {
	case g.mail <- struct{}{}:
	default:
	}
}

func (g *gang) takeMail() []func() {
	g.mbMu.Lock()
	defer g.mbMu.Unlock()
	msgs := g.box
	g.box = nil
	return msgs
}

// run is the gang's loop. It ends with the leadership, leaving the nodes as
// they are, or when the outcome is recorded.
func (g *gang) run(ctx context.Context) {
	g.planErr = g.plan(ctx)
	close(g.planned)
	if g.planErr != nil {
		g.l.drop(g)
		g.story.breakOff(g.planErr)
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		for _, msg := range g.takeMail() {
			msg()
		}
		if g.step(time.Now()) {
			if g.record(ctx) {
				return
			}
			timer.Reset(time.Second) // could not be recorded: again, while we lead
		} else if next := g.nextDeadline(); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return
		case <-g.mail:
		case <-timer.C:
		}
	}
}

// step sends what is missing; true means that no node has anything left.
func (g *gang) step(now time.Time) (done bool) {
	g.giveUpSilent(now)
	if g.verdict == nil {
		g.judge(now)
	}
	if g.verdict == nil {
		g.advance()
	} else {
		g.wind()
	}
	g.publish()
	return g.verdict != nil && g.find(func(s *seat) bool { return !g.over(s) }) == nil
}

// over tells whether nothing more can come from a node: it said so, or it is
// lost, or it is away and was never told to start. A node that comes back is
// told to end what it has after all: here while the gang winds down, later by
// the leader's sweep.
func (g *gang) over(s *seat) bool {
	if s.up {
		return s.phase == launcher.PhaseEnded
	}
	return s.phase == launcher.PhaseEnded || s.lost != "" || !g.ordered && g.allKnown()
}

func (g *gang) allKnown() bool { return g.find(func(s *seat) bool { return !s.known }) == nil }

// giveUpSilent marks nodes lost that have been silent for the node time-out.
func (g *gang) giveUpSilent(now time.Time) {
	for _, s := range g.seats {
		if !s.up && s.lost == "" && s.phase != launcher.PhaseEnded && now.Sub(s.since) >= g.job.Spec.NodeTimeout {
			s.lose("%s has not answered for %s", s.Host, g.job.Spec.NodeTimeout)
		}
	}
}

// judge decides whether the gang must end, and why: the first reason stands.
func (g *gang) judge(now time.Time) {
	switch {
	case g.anyRefused() != nil && g.ordered: // refused the start itself
		g.end(rendezvous.Failed, g.anyRefused().refusal())
	case g.anyRefused() != nil:
		if !g.moreAnswers(now) {
			g.end(rendezvous.Rejected, g.refusals())
		}
	case g.anyLost() != nil && !g.ordered && g.fresh:
		g.end(rendezvous.Rejected, g.anyLost().lost+" before the start: no rank was started")
	case g.anyLost() != nil:
		g.end(rendezvous.Failed, g.anyLost().lost)
	case g.rootCause() != nil:
		g.byRank = true
		g.end(rendezvous.Failed, blame(*g.rootCause()))
	case g.beingEnded():
		g.inherited = true
		g.end(rendezvous.Stopped, "it was being ended when the leader changed")
	case g.allExited():
		g.end(rendezvous.Completed, "")
	case g.endedEarly() != nil:
		s := g.endedEarly()
		g.end(rendezvous.Failed, fmt.Sprintf("%s ended its ranks before they had exited: see its agent's log", s.Host))
	case !g.ordered && g.downBeforeStart() != nil:
		g.end(rendezvous.Rejected, fmt.Sprintf("%s was lost before the start: no rank was started", g.downBeforeStart().Host))
	case now.After(g.deadline) && g.notStarted() != "":
		g.end(rendezvous.Failed, fmt.Sprintf("not started within %s: %s", g.job.Spec.StartTimeout, g.notStarted()))
	}
}

// end sets the verdict: from here on the gang only winds down.
func (g *gang) end(how rendezvous.End, cause string) {
	g.verdict = &rendezvous.Outcome{End: how, Cause: cause}
	g.l.cfg.Logger.Info("gang ends", "job", g.job.Spec.ID, "end", how, "cause", cause)
	if how != rendezvous.Completed {
		g.tell(rendezvous.Progress{Step: rendezvous.StepEnding, Text: cause})
	}
}

func (g *gang) find(is func(*seat) bool) *seat {
	if i := slices.IndexFunc(g.seats, is); i >= 0 {
		return g.seats[i]
	}
	return nil
}

func (g *gang) anyRefused() *seat { return g.find(func(s *seat) bool { return s.refused != "" }) }
func (g *gang) anyLost() *seat    { return g.find(func(s *seat) bool { return s.lost != "" }) }

func (g *gang) endedEarly() *seat {
	return g.find(func(s *seat) bool { return s.phase == launcher.PhaseEnded && len(g.exitsOf(s)) < s.Ranks })
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

func (g *gang) allExited() bool {
	return g.find(func(s *seat) bool { return len(g.exitsOf(s)) < s.Ranks }) == nil
}

// downBeforeStart is meant for a gang whose nodes were all heard of: a new
// leader has to wait for the ledgers, which may say that ranks run.
func (g *gang) downBeforeStart() *seat {
	if !g.allKnown() {
		return nil
	}
	return g.find(func(s *seat) bool { return !s.up })
}

// notStarted names the nodes that answer and have not come to the start.
func (g *gang) notStarted() string {
	var late []string
	for _, s := range g.seats {
		if s.up && s.known && s.phase < launcher.PhaseStarted {
			late = append(late, fmt.Sprintf("%s is %s", s.Host, map[launcher.Phase]string{
				launcher.PhaseNone: "still preparing", launcher.PhasePrepared: "prepared and waiting"}[s.phase]))
		}
	}
	return strings.Join(late, ", ")
}

// exitsOf lists a node's ended ranks.
func (g *gang) exitsOf(s *seat) []launcher.RankExit {
	var out []launcher.RankExit
	for _, r := range s.ranks {
		if r.State == launcher.RankEnded && r.Exit != nil {
			out = append(out, launcher.RankExit{Rank: r.Rank, Host: s.Host, Time: r.Time, Exit: *r.Exit})
		}
	}
	return out
}

func (g *gang) rootCause() *launcher.RankExit {
	var exits []launcher.RankExit
	for _, s := range g.seats {
		exits = append(exits, g.exitsOf(s)...)
	}
	return launcher.RootCause(exits)
}

// advance moves the gang towards running: prepare on all, then start on all.
func (g *gang) advance() {
	prepared := 0
	for _, s := range g.seats {
		if s.phase >= launcher.PhasePrepared {
			prepared++
		} else if s.up && s.known && !s.preparing && !g.ordered {
			s.preparing = true
			a := g.job.Plan.Assignment(g.job.Spec, s.rank)
			g.send(s, launcher.Order{Prepare: &a})
		}
	}
	// None starts before all are prepared. A start that an earlier leader had
	// begun proves that they were.
	if prepared < len(g.seats) && !g.ordered {
		return
	}
	for _, s := range g.seats {
		if s.phase == launcher.PhasePrepared && s.up && !s.starting {
			g.ordered, s.starting = true, true
			g.send(s, launcher.Order{Start: &launcher.Start{Key: g.job.Key(), Port: g.port}})
		}
	}
}

// wind tells every node that may have something of the gang to end it. A node
// that never heard of it answers at once, and will refuse what comes late.
func (g *gang) wind() {
	for _, s := range g.seats {
		if !s.up || !s.known || s.phase == launcher.PhaseEnded || s.ending != nil && *s.ending <= g.grace {
			continue
		}
		grace := g.grace
		s.ending = &grace
		g.send(s, launcher.Order{End: &launcher.End{Key: g.job.Key(), Grace: grace, Reason: g.verdict.Cause}})
	}
}

func (g *gang) send(s *seat, o launcher.Order) {
	o.Fence = g.l.cfg.Fence
	g.l.cfg.Send(s.Node, o)
}

// nextDeadline is the next moment at which time alone changes something.
func (g *gang) nextDeadline() time.Time {
	var next time.Time
	earliest := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	if g.verdict == nil && g.notStarted() != "" {
		earliest(g.deadline.Add(time.Millisecond))
	}
	if g.verdict == nil && g.anyRefused() != nil {
		earliest(g.refusedAt.Add(answersWait))
	}
	for _, s := range g.seats {
		if !s.up && !g.over(s) {
			earliest(s.since.Add(g.job.Spec.NodeTimeout))
		}
	}
	return next
}

// record writes the outcome, lets the nodes forget, and tells the followers.
func (g *gang) record(ctx context.Context) bool {
	out := g.outcome()
	err := g.l.cfg.Recorder.End(ctx, rendezvous.JobEnd{Key: g.job.Key(), Outcome: out})
	if errors.Is(err, rendezvous.ErrJobEnded) {
		// An attempt whose outcome was unknown has been recorded after all.
		if job, ok := g.l.cfg.Record.Job(g.job.Spec.ID); ok && job.Outcome != nil {
			out, err = *job.Outcome, nil
		}
	}
	if err != nil {
		g.l.cfg.Logger.Warn("record outcome", "job", g.job.Spec.ID, "error", err)
		return false
	}
	// To all: one that came back while we were recording is told here or not
	// at all, and what is sent to one that is away is lost.
	for _, s := range g.seats {
		key := g.job.Key()
		g.send(s, launcher.Order{Forget: &key})
	}
	g.l.drop(g)
	g.tell(rendezvous.Progress{Step: rendezvous.StepEnded, Time: out.At, Outcome: &out})
	return true
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
	for _, s := range g.seats {
		if s.refused == "" {
			continue
		}
		if hosts[s.refused] == nil {
			reasons = append(reasons, s.refused)
		}
		hosts[s.refused] = append(hosts[s.refused], s.Host)
	}
	for i, r := range reasons {
		reasons[i] = strings.Join(hosts[r], ", ") + ": " + r
	}
	return strings.Join(reasons, "; ")
}

func blame(r launcher.RankExit) string {
	return fmt.Sprintf("rank %d on %s: %s", r.Rank, r.Host, r.Exit)
}

// outcome completes the verdict with what the ranks reported since.
func (g *gang) outcome() rendezvous.Outcome {
	out := *g.verdict
	out.At, out.Started = time.Now(), g.started
	if g.inherited {
		switch {
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
		out.ExitCode = launcher.ExitOwnFailure
	case rendezvous.Stopped:
		out.ExitCode = launcher.Exit{Signal: 15}.Status()
		if g.grace == 0 {
			out.ExitCode = launcher.Exit{Signal: 9}.Status()
		}
	}
	// The earliest failure may have been reported after a later one. A verdict
	// that is not about ranks stands: what failed since is a consequence.
	if root := g.rootCause(); root != nil && (g.byRank || g.inherited) {
		out.Root, out.ExitCode, out.Cause = root, root.Exit.Status(), blame(*root)
	}
	for _, s := range g.seats {
		for _, e := range g.exitsOf(s) {
			if e.Exit.Failed() {
				out.Exits = append(out.Exits, e)
			}
		}
	}
	slices.SortFunc(out.Exits, func(a, b launcher.RankExit) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Rank, b.Rank))
	})
	out.Exits = out.Exits[:min(len(out.Exits), rendezvous.MaxExits)]
	if out.End == rendezvous.Completed {
		out.Exits = nil
	}
	return out
}
