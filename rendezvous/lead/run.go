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

// run drives one job, a generation at a time. It is a state machine with a mailbox: after each message, step
// compares the state of every planned node with the state that is wanted, and sends the orders that are missing. A
// new leader runs the same step on the nodes' ledgers, so adopting a job needs no separate code.
type run struct {
	l      *Leader
	job    rendezvous.Job // changed by the loop, under l.mu
	events *eventLog
	// pending is a plan that is being recorded: its nodes are taken. queued: the job waits for its first nodes.
	// Both are guarded by l.mu.
	pending *rendezvous.Plan
	queued  bool
	startOrder
	demand
	// findings are the preflight's warnings; only the leader that made the plan has them.
	findings []envgen.Finding

	fresh   bool          // to be recorded first
	planned chan struct{} // closed once the plan is recorded, or cannot be
	planErr error         // written before planned is closed
	gone    chan struct{} // closed when the loop is over: nobody reads the mailbox then

	mail chan struct{} // has room for one: "the mailbox is not empty"
	mbMu sync.Mutex
	box  []func()

	// Only the loop uses what follows.
	placements []*placement
	port       int
	deadline   time.Time // for the last rank to be started
	refusedAt  time.Time // of the first refusal; zero: none
	failedAt   time.Time // when the first failure was seen; zero: none
	ordered    bool      // Start was sent, by us or, as a ledger shows, by an earlier leader
	// verdict is why the run is being ended. Where it names a rank (Root), an earlier exit may turn out to explain
	// it better.
	verdict   *rendezvous.Outcome
	proposed  *rendezvous.Outcome // a verdict that has still to be recorded
	proposeAt time.Time           // of the next try
	// inherited: an earlier leader was ending the run. The reason is derived again once all ledgers are there.
	inherited bool
	wait      *waiting // between two generations
	noMore    bool     // no other generation follows: somebody asked for the end
	asked     *rendezvous.Stop
	moving    *moving       // it is to be ended once its requests have; written under viewMu
	grace     time.Duration // of the End that is wanted
	found     bool          // an earlier leader recorded the job
	overtaken bool          // the record has a newer state of the job from another side
	copying   bool          // findCopies is at work
	ranAt     *time.Time    // when all ranks ran; reported once copying is over
	stepping

	viewMu  sync.Mutex // guards what status reads
	state   rendezvous.State
	started *time.Time
	away    []string
	// These two are replaced as a whole, never changed in place.
	awaySince map[string]time.Time
	suspended []string
	done      []int  // ranks that have exited with 0
	text      string // what it waits for
	againAt   *time.Time
	last      *rendezvous.Outcome // while the next generation is waited for
	serving
}

// placement is one planned node. What was sent is remembered for the current control stream only: a new stream
// begins with a ledger, and what the ledger lacks is sent again.
type placement struct {
	rendezvous.Place
	rank     int // node rank
	up       bool
	since    time.Time // of the last change of up
	heard    time.Time // the last sign of life of a node that is not up
	askAt    time.Time // when to look for the next sign of life
	asking   bool
	known    bool          // its phase is known: the job is fresh, or a ledger said so
	ahead    time.Duration // how far its clock is ahead of ours
	rebooted bool          // nothing of the planned boot is left: it was rebooted, or a person confirmed that it is off
	lost     string        // why it cannot do its part any more, a sentence; empty: it can
	stuck    string        // what was killed there and does not exit
	// suspended: its ranks were stopped by a signal from their user.
	suspended bool

	phase   launcher.Phase
	refused string
	image   *launcher.ImageSeen // its image for the ranks; nil: not reported
	ran     bool                // all its ranks have been started
	ranks   map[int]*launcher.RankStatus
	probes  map[int]probed  // by step
	next    map[int]restart // by rank, for ranks that are replaced
	// rejoined counts the boots after the planned one in which it took part again.
	rejoined int

	preparing       bool
	does            string         // the last that it told of that; empty: nothing yet
	starting, asked uint8          // steps, as bits, that it was told to start and to probe
	ending          *time.Duration // the grace of the End that was sent
}

// newRun makes the run of a recorded job. The state of its nodes is not known before their ledgers arrive; until
// then nobody is told that the job is starting, because it may have started long ago.
func newRun(l *Leader, job rendezvous.Job) *run {
	r := &run{
		l: l, job: job, events: newEventLog(), planned: make(chan struct{}), gone: make(chan struct{}),
		mail:     make(chan struct{}, 1),
		deadline: time.Now().Add(job.Spec.StartTimeout), grace: job.Spec.Grace, state: rendezvous.StatePlanned,
		placements: placementsOf(job.Plan, time.Now()), stepping: newStepping(job, time.Now()),
	}
	if job.Restored != nil {
		r.deadline = time.Now().Add(max(job.Spec.StartTimeout, tellWithin))
	}
	if w := begunAsleep(job); w != nil {
		r.wait, r.asleep, r.state, r.text, r.placements = w, true, rendezvous.StateAsleep, asleepText, nil
	} else if job.Plan.Generation == 0 {
		r.queued, r.wait, r.state = true, &waiting{}, rendezvous.StateWaits
	}
	return r
}

// freshRun makes the run of a job that is neither in the record nor on any node yet.
func freshRun(l *Leader, job rendezvous.Job) *run {
	r := newRun(l, job)
	r.fresh, r.state = true, rendezvous.StateStarts
	for _, p := range r.placements {
		p.up, p.known = true, true // MakePlan takes only nodes that are ready
		p.ahead = l.members[p.Node].ahead
	}
	return r
}

// plan records a fresh job; before that nothing is sent to any node. The recorder gets the leadership's context, not
// the caller's: a caller that goes away must not leave a recorded job that nobody drives.
func (r *run) plan(ctx context.Context) error {
	if r.fresh {
		if err := r.l.cfg.Recorder.Plan(ctx, r.job); err != nil {
			return fmt.Errorf("record job %s: %w", r.job.Spec.ID, err)
		}
	}
	if r.job.Plan.Generation > 0 {
		r.tellPlanned()
	} else if r.asleep {
		r.tell(rendezvous.Progress{Step: rendezvous.StepWaiting, Text: asleepText})
	}
	if r.fresh {
		r.findCopies()
	}
	return nil
}

// findCopies finds out whether the plan is recorded on one machine only, and reports it. The start does not wait
// for this, but the report that all ranks run does: a follower that leaves at that report then knows.
func (r *run) findCopies() {
	if r.l.cfg.Others == nil {
		return
	}
	r.copying = true
	r.l.running.Go(func() { // safe: the calling loop keeps the count above zero
		host := r.l.cfg.Others.OnlyHere(r.l.ctx)
		r.post(func() {
			r.copying = false
			if host != "" {
				r.tell(rendezvous.Progress{Step: rendezvous.StepAlone, OnlyOn: host})
			}
			if ran := r.ranAt; ran != nil {
				r.ranAt = nil
				r.tell(rendezvous.Progress{Step: rendezvous.StepRunning, Time: *ran, Ports: r.ports})
			}
		})
	})
}

func (r *run) tellPlanned() {
	plan := r.job.Plan
	r.tell(rendezvous.Progress{Step: rendezvous.StepPlanned, Time: r.job.Planned, Plan: &plan, Findings: r.findings,
		Text: r.job.AttemptText()})
	r.findings = nil
}

func (r *run) tell(p rendezvous.Progress) {
	p.Job, p.Generation = r.job.Spec.ID, r.job.Plan.Generation
	if p.Time.IsZero() {
		p.Time = time.Now()
	}
	r.events.add(p)
}

// post puts a message into the mailbox and never blocks.
func (r *run) post(msg func()) {
	r.mbMu.Lock()
	r.box = append(r.box, msg)
	r.mbMu.Unlock()
	select {
	case r.mail <- struct{}{}:
	default:
	}
}

func (r *run) takeMail() []func() {
	r.mbMu.Lock()
	defer r.mbMu.Unlock()
	msgs := r.box
	r.box = nil
	return msgs
}

// loop ends when the outcome is recorded, or with the leadership, which leaves nodes as they are.
func (r *run) loop(ctx context.Context) {
	defer close(r.gone)
	r.planErr = r.plan(ctx)
	close(r.planned)
	if r.planErr != nil {
		r.l.mu.Lock()
		r.l.drop(r)
		r.l.mu.Unlock()
		r.events.fail(r.planErr)
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		for _, msg := range r.takeMail() {
			msg()
		}
		if r.overtaken {
			r.l.replace(r)
			return
		}
		switch over, again := r.turn(ctx); {
		case over:
			return
		case again:
			timer.Reset(time.Second) // could not be recorded: try again while we lead
		default:
			if next := r.nextDeadline(); !next.IsZero() {
				timer.Reset(time.Until(next))
			}
		}
		r.offer()
		select {
		case <-ctx.Done():
			return
		case <-r.mail:
		case <-timer.C:
		}
	}
}

// turn is one round of the loop. over: the outcome is recorded; again: it could not be.
func (r *run) turn(ctx context.Context) (over, again bool) {
	if r.wait == nil && r.step(time.Now()) {
		out := r.outcome()
		next, more := r.follows(out)
		if !more {
			over = r.record(ctx)
			return over, !over
		}
		r.pause(next, out)
	}
	if r.wait == nil {
		return false, false
	}
	over = r.nextGeneration(ctx)
	if r.wait == nil { // a generation has begun
		return false, r.step(time.Now())
	}
	return over, !over && r.verdict != nil
}

// step sends what is missing; true means that no node has anything left.
func (r *run) step(now time.Time) (done bool) {
	r.giveUpSilent(now)
	r.expire(now)
	switch {
	case r.verdict != nil:
	case r.proposed == nil:
		r.becameReady()
		r.outdated()
		r.idles(now)
		r.evaluate(now)
	case !now.Before(r.proposeAt):
		r.propose()
	}
	if r.proposed != nil {
		return false // nothing is reported or begun in the meantime
	}
	if r.verdict == nil {
		r.advance()
		r.restartRanks(now)
		r.tellSpared()
	} else {
		r.teardown()
		if hosts := r.unproven(); len(hosts) > 0 {
			r.waits(r.whyUnproven(hosts))
			r.noMore = r.noMore || r.timedOut(now)
		} else if stay := r.leftovers(); len(stay) > 0 && r.mustProve() {
			r.waits("the next attempt waits for the end of what cannot be killed: " + strings.Join(stay, "; "))
			r.noMore = r.noMore || r.timedOut(now)
		}
	}
	r.passTurn()
	r.publish()
	return r.verdict != nil && r.find(func(p *placement) bool { return !r.over(p) }) == nil
}

// over tells whether nothing more is expected of a node: its ranks have ended, or it is lost, or what is left there
// cannot be killed, or it is away and was never told to start. If it comes back it is told to end what it has
// anyway: here while the run is being ended, later by the leader's sweep.
func (r *run) over(p *placement) bool {
	if p.up {
		return p.phase == launcher.PhaseEnded || p.stuck != "" && !r.mustProve()
	}
	return p.phase == launcher.PhaseEnded || p.lost != "" && !r.mustProve() || !r.ordered && r.allKnown()
}

func (r *run) allKnown() bool { return r.find(func(p *placement) bool { return !p.known }) == nil }

// advance moves the run forward: prepare on all nodes, then start on all.
func (r *run) advance() {
	if r.job.Restored != nil {
		return // it may have been prepared, started and ended since the backup
	}
	if r.stepped() && !r.placements[0].known {
		return // the head's ports, which the others need, are in its ledger
	}
	prepared := 0
	for _, p := range r.placements {
		if p.phase >= launcher.PhasePrepared && p.lost == "" {
			prepared++
		} else if p.up && p.known && !p.preparing && (!r.ordered || p.rejoined > 0 && p.phase == launcher.PhaseNone) {
			p.preparing = true
			a := r.job.Plan.Assignment(r.job.Spec, p.rank)
			a.Boot = p.Boot
			r.send(p, launcher.Order{Prepare: &a})
		}
	}
	// No rank starts before all nodes are prepared. A rebooted node counts as ended and may never have been
	// prepared. If an earlier leader had begun to start, all were prepared.
	if prepared < len(r.placements) && !r.ordered {
		return
	}
	now := time.Now()
	if !r.ordered && r.awaitsTurn(now) {
		return
	}
	leases, all := r.firstLeases(now)
	if !all && !r.ordered {
		return
	}
	for k := range min(r.firstUnready(now)+1, len(r.steps)) {
		for i, p := range r.placements {
			if r.mayStart(p, k) && (leases == nil || leases[i] != 0) {
				r.ordered = true
				p.starting |= 1 << k
				start := launcher.Start{Key: r.job.Key(), Port: r.port, Step: k, HeadPorts: r.ports}
				if leases != nil {
					start.Lease = leases[i]
				}
				r.send(p, launcher.Order{Start: &start})
			}
		}
	}
	r.sayWaits(now)
	if r.present() == len(r.steps) && !r.all {
		r.all = true
		if r.stepped() {
			r.tellRunning()
		}
	}
}

// mayStart tells whether a node must and may be told now to start a step.
func (r *run) mayStart(p *placement, k int) bool {
	if !p.up || p.starting&(1<<k) != 0 {
		return false
	}
	if !r.stepped() {
		return p.phase == launcher.PhasePrepared
	}
	return (p.phase == launcher.PhasePrepared || p.phase == launcher.PhaseStarted) && !r.begun(p, k)
}

// teardown tells every node that may have ranks of the run to end them. A node that knows nothing of the run
// answers at once, and refuses orders that come later.
func (r *run) teardown() {
	now := time.Now()
	for _, p := range r.placements {
		if !p.up || !p.known || p.phase == launcher.PhaseEnded || p.ending != nil && *p.ending <= r.grace ||
			r.endsLater(p, now) {
			continue
		}
		grace := r.grace
		p.ending = &grace
		r.send(p, launcher.Order{End: &launcher.End{Key: r.job.Key(), Grace: grace, Reason: r.verdict.Cause,
			Interrupt: r.asked != nil && r.asked.Interrupt && r.verdict.End == rendezvous.Stopped}})
	}
}

func (r *run) send(p *placement, o launcher.Order) {
	o.Fence = r.l.cfg.Fence
	r.l.cfg.Send(p.Node, o)
}

// nextDeadline is when the next time limit passes.
func (r *run) nextDeadline() time.Time {
	var next time.Time
	earliest := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	if r.wait != nil {
		earliest(r.wait.nextLook(time.Now()))
		if limit := r.timeLimit(); !limit.IsZero() {
			earliest(limit)
		}
		return next
	}
	switch {
	case r.proposed != nil:
		return r.proposeAt
	case r.verdict == nil && !r.failedAt.IsZero(): // other limits may pass earlier: the failure is evaluated first
		return r.collectUntil()
	}
	if at := r.stalledAt(); r.verdict == nil && !at.IsZero() {
		earliest(at)
		if !r.saidAt.IsZero() {
			what := r.saidWhat
			if r.unsaid {
				what = ""
			}
			earliest(r.sayAt(time.Now(), what))
		}
	}
	if at := r.nextRestartAt(); r.verdict == nil && !at.IsZero() {
		earliest(at)
	}
	if r.verdict != nil && r.stepped() && time.Since(r.ended) < r.grace+reverseWait {
		earliest(r.ended.Add(r.grace + reverseWait))
	}
	if at := r.movedAt(); r.verdict == nil && !at.IsZero() {
		earliest(at)
	}
	if at := r.idleAt(); r.verdict == nil && !at.IsZero() {
		earliest(at)
	}
	if at := r.loadsUntil(); !at.IsZero() {
		earliest(at)
	}
	if r.verdict == nil && !r.awaits && r.notStarted() != "" {
		earliest(r.deadline.Add(time.Millisecond))
	}
	if r.verdict == nil && r.anyRefused() != nil {
		earliest(r.refusedAt.Add(answersWait))
	}
	if limit := r.timeLimit(); !limit.IsZero() && (r.verdict == nil || len(r.unproven()) > 0 && !r.noMore) {
		earliest(limit)
	}
	for _, p := range r.placements {
		if over := r.leaseOver(p); !over.IsZero() {
			earliest(over)
		}
		until := r.giveUpAt(p)
		if until.IsZero() || p.asking || r.over(p) {
			continue
		}
		earliest(until)
		if r.verdict == nil {
			earliest(p.askAt)
		}
	}
	return next
}

// record writes the outcome, tells the nodes to forget the run, and tells the followers.
func (r *run) record(ctx context.Context) bool {
	out := r.outcome()
	if out.End == rendezvous.Rejected && r.job.Plan.Generation > 1 {
		out.End = rendezvous.Failed // not Rejected: ranks of earlier generations have run
	}
	if text := r.job.AttemptText(); text != "" && out.End == rendezvous.Failed {
		out.Cause += " (" + text + ")"
	}
	if text := r.job.WhyNoMore(out); text != "" && !r.noMore {
		out.Cause += " (" + text + ")"
	}
	err := r.l.cfg.Recorder.End(ctx, rendezvous.JobEnd{Key: r.job.Key(), Outcome: out})
	if errors.Is(err, rendezvous.ErrJobEnded) {
		// An earlier write whose result was unknown was committed after all.
		if job, ok := r.l.cfg.Record.Job(r.job.Spec.ID); ok && job.Outcome != nil {
			out, err = *job.Outcome, nil
		}
	}
	if err != nil {
		r.l.cfg.Logger.Warn("record outcome", "job", r.job.Spec.ID, "error", err)
		return false
	}
	only := "" // computed before letGo: afterwards followers are answered from the record, which lacks it
	if r.l.cfg.Others != nil {
		only = r.l.cfg.Others.OnlyHere(ctx)
	}
	r.l.letGo(r, out.End)
	ended := r.job
	ended.Outcome = &out
	r.l.offerFailed(ended)
	r.tell(rendezvous.Progress{Step: rendezvous.StepEnded, Time: out.At, Outcome: &out, OnlyOn: only})
	return true
}
