package lead

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// gang drives one job, a generation at a time. It is a state machine fed by a mailbox: after
// each message, step compares what every planned node has come to with what is
// wanted, and sends what is missing. A new leader runs the same step on what
// the ledgers say, so adopting a job is no case of its own.
type gang struct {
	l     *Leader
	job   rendezvous.Job // changed by the loop, under l.mu
	story *story
	// pending is a plan that is being recorded: its nodes are taken. Guarded by
	// l.mu, as queued is, which tells that the job waits for its first nodes.
	pending *rendezvous.Plan
	queued  bool
	// findings are what the preflight warned of; known to the leader that planned.
	findings []envgen.Finding

	fresh   bool          // to be recorded first
	planned chan struct{} // closed once the plan is recorded, or cannot be
	planErr error         // written before planned is closed
	gone    chan struct{} // closed when the loop is over: what is in the mailbox then is read by nobody

	mail chan struct{} // has room for one: "the mailbox is not empty"
	mbMu sync.Mutex
	box  []func()

	// Below: the loop's own.
	seats     []*seat
	port      int
	deadline  time.Time // for the last rank to be started
	refusedAt time.Time // of the first refusal; zero while there is none
	failedAt  time.Time // when the first failure was seen; zero while there is none
	ordered   bool      // Start has been sent, or a ledger says that it was
	// verdict is what the gang is being ended for. Where it is about a rank (Root),
	// an earlier exit may explain it better.
	verdict   *rendezvous.Outcome
	proposed  *rendezvous.Outcome // a verdict that is yet to be recorded
	proposeAt time.Time           // again
	// inherited: an earlier leader ended the gang. Its reason is looked for
	// again when all nodes have told what they know.
	inherited bool
	wait      *waiting // between two generations
	noMore    bool     // no other generation follows: somebody has asked for the end
	asked     *rendezvous.Stop
	grace     time.Duration // of the End that is wanted
	found     bool          // an earlier leader recorded it
	overtaken bool          // the record has got something newer of it from elsewhere
	copying   bool          // whether others have the plan is being found out
	ranAt     *time.Time    // when all ranks ran, to be told after that
	stepping

	viewMu  sync.Mutex // guards what status reads
	state   rendezvous.State
	started *time.Time
	away    []string
	// These two are replaced whole, never changed.
	awaySince map[string]time.Time
	suspended []string
	done      []int  // ranks that have exited with 0
	text      string // what it waits for
	againAt   *time.Time
	serving
}

// seat is one planned node. What was sent is remembered per stream only: a new
// stream begins with a ledger, and what that lacks is sent again.
type seat struct {
	rendezvous.Place
	rank     int // node rank
	up       bool
	since    time.Time // of the last change of up
	heard    time.Time // the last sign of life of a node that is not up
	askAt    time.Time // when to look for the next one
	asking   bool
	known    bool          // its phase is known: fresh, or told by a ledger
	ahead    time.Duration // of its clock before ours
	rebooted bool          // nothing of the boot it was planned in is left: it was booted anew, or a person says so
	lost     string        // why it cannot do its part any more: empty, or a sentence
	stuck    string        // what was killed there and stays
	// suspended: its ranks were stopped by a signal of their user's.
	suspended bool

	phase   launcher.Phase
	refused string
	image   *launcher.ImageSeen // what it has of the ranks' image; nil: not told
	ran     bool                // all its ranks have been started
	ranks   map[int]*launcher.RankStatus
	probes  map[int]probed   // by step
	next    map[int]nextLife // by rank, of those that are replaced
	// rejoined counts the boots after the one that was planned, in which it took part again.
	rejoined int

	preparing       bool
	starting, asked uint8          // steps, as bits, that it was told to start and to probe
	ending          *time.Duration // the grace of the End that was sent
}

// newGang makes the gang of a recorded job: what its nodes have come to is not
// known before their ledgers arrive, and until then nobody is told that it is
// starting, which may long be over.
func newGang(l *Leader, job rendezvous.Job) *gang {
	g := &gang{
		l: l, job: job, story: newStory(), planned: make(chan struct{}), gone: make(chan struct{}), mail: make(chan struct{}, 1),
		deadline: time.Now().Add(job.Spec.StartTimeout), grace: job.Spec.Grace, state: rendezvous.StatePlanned,
		seats: seatsOf(job.Plan, time.Now()), stepping: newStepping(job, time.Now()),
	}
	if job.Restored != nil {
		g.deadline = time.Now().Add(max(job.Spec.StartTimeout, tellWithin))
	}
	if job.Plan.Generation == 0 {
		g.queued, g.wait, g.state = true, &waiting{}, rendezvous.StateWaits
	}
	return g
}

// plant makes the gang of a job that no record and no node has heard of.
func plant(l *Leader, job rendezvous.Job) *gang {
	g := newGang(l, job)
	g.fresh, g.state = true, rendezvous.StateStarts
	for _, s := range g.seats {
		s.up, s.known = true, true // MakePlan takes only nodes that are ready
		s.ahead = l.members[s.Node].ahead
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
	if !g.queued {
		g.tellPlanned()
	}
	if g.fresh {
		g.findCopies()
	}
	return nil
}

// findCopies tells, where it is so, that the plan is on one machine only. It is
// found out beside the start, which does not wait; who leaves when the ranks run
// hears it before.
func (g *gang) findCopies() {
	only := g.l.cfg.OnlyHere
	if only == nil {
		return
	}
	g.copying = true
	g.l.gangsWG.Go(func() { // the loop that asks keeps it above zero
		host := only(g.l.ctx)
		g.post(func() {
			g.copying = false
			if host != "" {
				g.tell(rendezvous.Progress{Step: rendezvous.StepAlone, OnlyOn: host})
			}
			if ran := g.ranAt; ran != nil {
				g.ranAt = nil
				g.tell(rendezvous.Progress{Step: rendezvous.StepRunning, Time: *ran, Ports: g.ports})
			}
		})
	})
}

func (g *gang) tellPlanned() {
	plan := g.job.Plan
	g.tell(rendezvous.Progress{Step: rendezvous.StepPlanned, Time: g.job.Planned, Plan: &plan, Findings: g.findings, Text: g.job.TryText()})
	g.findings = nil
}

func (g *gang) tell(p rendezvous.Progress) {
	p.Job, p.Generation = g.job.Spec.ID, g.job.Plan.Generation
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
	defer close(g.gone)
	g.planErr = g.plan(ctx)
	close(g.planned)
	if g.planErr != nil {
		g.l.mu.Lock()
		g.l.drop(g)
		g.l.mu.Unlock()
		g.story.breakOff(g.planErr)
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		for _, msg := range g.takeMail() {
			msg()
		}
		if g.overtaken {
			g.l.replace(g)
			return
		}
		switch over, again := g.turn(ctx); {
		case over:
			return
		case again:
			timer.Reset(time.Second) // could not be recorded: again, while we lead
		default:
			if next := g.nextDeadline(); !next.IsZero() {
				timer.Reset(time.Until(next))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-g.mail:
		case <-timer.C:
		}
	}
}

// turn is one round of the loop: over, when the outcome is recorded; again, when
// it could not be.
func (g *gang) turn(ctx context.Context) (over, again bool) {
	if g.wait == nil && g.step(time.Now()) {
		out := g.outcome()
		next, more := g.follows(out)
		if !more {
			over = g.record(ctx)
			return over, !over
		}
		g.pause(next, out)
	}
	if g.wait == nil {
		return false, false
	}
	over = g.goOn(ctx)
	if g.wait == nil { // a generation has begun
		return false, g.step(time.Now())
	}
	return over, !over && g.verdict != nil
}

// step sends what is missing; true means that no node has anything left.
func (g *gang) step(now time.Time) (done bool) {
	g.giveUpSilent(now)
	g.expire(now)
	switch {
	case g.verdict != nil:
	case g.proposed == nil:
		g.judge(now)
	case !now.Before(g.proposeAt):
		g.propose()
	}
	if g.proposed != nil {
		return false // nothing is told or begun meanwhile
	}
	if g.verdict == nil {
		g.advance()
		g.bringBack(now)
		g.tellSpared()
	} else {
		g.wind()
		if hosts := g.unproven(); len(hosts) > 0 {
			g.waits(g.whyUnproven(hosts))
			g.noMore = g.noMore || g.timedOut(now)
		} else if stay := g.stays(); len(stay) > 0 && g.mustProve() {
			g.waits("the next try waits for the end of what cannot be killed: " + strings.Join(stay, "; "))
			g.noMore = g.noMore || g.timedOut(now)
		}
	}
	g.publish()
	return g.verdict != nil && g.find(func(s *seat) bool { return !g.over(s) }) == nil
}

// over tells whether nothing more is waited for from a node: it said so, or it is
// lost, or what is left there cannot be killed, or it is away and was never told
// to start. A node that comes back is
// told to end what it has after all: here while the gang winds down, later by
// the leader's sweep.
func (g *gang) over(s *seat) bool {
	if s.up {
		return s.phase == launcher.PhaseEnded || s.stuck != "" && !g.mustProve()
	}
	return s.phase == launcher.PhaseEnded || s.lost != "" && !g.mustProve() || !g.ordered && g.allKnown()
}

func (g *gang) allKnown() bool { return g.find(func(s *seat) bool { return !s.known }) == nil }

// advance moves the gang towards running: prepare on all, then start on all.
func (g *gang) advance() {
	if g.job.Restored != nil {
		return // it may have been prepared, started and ended since
	}
	if g.stepped() && !g.seats[0].known {
		return // the head's ports, which others are told, are in its ledger
	}
	prepared := 0
	for _, s := range g.seats {
		if s.phase >= launcher.PhasePrepared && s.lost == "" {
			prepared++
		} else if s.up && s.known && !s.preparing && (!g.ordered || s.rejoined > 0 && s.phase == launcher.PhaseNone) {
			s.preparing = true
			a := g.job.Plan.Assignment(g.job.Spec, s.rank)
			a.Boot = s.Boot
			g.send(s, launcher.Order{Prepare: &a})
		}
	}
	// None starts before all are prepared: a node that was rebooted has ended, and
	// may never have been. A start that an earlier leader had begun proves that all were.
	if prepared < len(g.seats) && !g.ordered {
		return
	}
	now := time.Now()
	leases, all := g.firstLeases(now)
	if !all && !g.ordered {
		return
	}
	for k := range min(g.climb(now)+1, len(g.steps)) {
		for i, s := range g.seats {
			if g.mayStart(s, k) && (leases == nil || leases[i] != 0) {
				g.ordered = true
				s.starting |= 1 << k
				start := launcher.Start{Key: g.job.Key(), Port: g.port, Step: k, HeadPorts: g.ports}
				if leases != nil {
					start.Lease = leases[i]
				}
				g.send(s, launcher.Order{Start: &start})
			}
		}
	}
	g.sayWaits(now)
	if g.present() == len(g.steps) && !g.all {
		g.all = true
		if g.stepped() {
			g.tellRunning()
		}
	}
}

// mayStart tells whether a node is to be told to start a step, and was not.
func (g *gang) mayStart(s *seat, k int) bool {
	if !s.up || s.starting&(1<<k) != 0 {
		return false
	}
	if !g.stepped() {
		return s.phase == launcher.PhasePrepared
	}
	return (s.phase == launcher.PhasePrepared || s.phase == launcher.PhaseStarted) && !g.begun(s, k)
}

// wind tells every node that may have something of the gang to end it. A node
// that never heard of it answers at once, and will refuse what comes late.
func (g *gang) wind() {
	now := time.Now()
	for _, s := range g.seats {
		if !s.up || !s.known || s.phase == launcher.PhaseEnded || s.ending != nil && *s.ending <= g.grace || g.endsLater(s, now) {
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
	if g.wait != nil {
		earliest(g.wait.nextLook(time.Now()))
		if limit := g.timeLimit(); !limit.IsZero() {
			earliest(limit)
		}
		return next
	}
	switch {
	case g.proposed != nil:
		return g.proposeAt
	case g.verdict == nil && !g.failedAt.IsZero(): // other times may pass before: the failure is judged first
		return g.collectUntil()
	}
	if at := g.stalledAt(); g.verdict == nil && !at.IsZero() {
		earliest(at)
		if !g.saidX.IsZero() {
			what := g.saidWhat
			if g.unsaid {
				what = ""
			}
			earliest(g.sayAt(time.Now(), what))
		}
	}
	if at := g.nextLifeAt(); g.verdict == nil && !at.IsZero() {
		earliest(at)
	}
	if g.verdict != nil && g.stepped() && time.Since(g.ended) < g.grace+reverseWait {
		earliest(g.ended.Add(g.grace + reverseWait))
	}
	if g.verdict == nil && g.notStarted() != "" {
		earliest(g.deadline.Add(time.Millisecond))
	}
	if g.verdict == nil && g.anyRefused() != nil {
		earliest(g.refusedAt.Add(answersWait))
	}
	if limit := g.timeLimit(); !limit.IsZero() && (g.verdict == nil || len(g.unproven()) > 0 && !g.noMore) {
		earliest(limit)
	}
	for _, s := range g.seats {
		if over := g.leaseOver(s); !over.IsZero() {
			earliest(over)
		}
		until := g.giveUpAt(s)
		if until.IsZero() || s.asking || g.over(s) {
			continue
		}
		earliest(until)
		if g.verdict == nil {
			earliest(s.askAt)
		}
	}
	return next
}

// record writes the outcome, lets the nodes forget, and tells the followers.
func (g *gang) record(ctx context.Context) bool {
	out := g.outcome()
	if out.End == rendezvous.Rejected && g.job.Plan.Generation > 1 {
		out.End = rendezvous.Failed // ranks of earlier generations have run
	}
	if text := g.job.TryText(); text != "" && out.End == rendezvous.Failed {
		out.Cause += " (" + text + ")"
	}
	if text := g.job.WhyNoMore(out); text != "" && !g.noMore {
		out.Cause += " (" + text + ")"
	}
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
	only := "" // found out before the drop: who asks from then on is told by the record, which does not know
	if g.l.cfg.OnlyHere != nil {
		only = g.l.cfg.OnlyHere(ctx)
	}
	g.l.letGo(g)
	g.tell(rendezvous.Progress{Step: rendezvous.StepEnded, Time: out.At, Outcome: &out, OnlyOn: only})
	return true
}
