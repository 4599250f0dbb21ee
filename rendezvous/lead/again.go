package lead

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// A job goes through generations: a stage before the main one, the main one's
// tries, a stage after it. Between two of them its gang has nothing on any node
// and waits here, in the same loop.

// waiting is what a gang between two generations waits for.
type waiting struct {
	next  rendezvous.Next
	from  time.Time // the next one is not placed before
	until time.Time // when to give up placing it; zero: never
	done  rendezvous.Outcome
}

// placeFor bounds how long a job waits for nodes between two generations.
const placeFor = 10 * time.Minute

// nextLook is when time alone may let the next generation begin. While nodes are
// missing, whoever comes or goes has the gang look anyway. Zero is never.
func (w *waiting) nextLook(now time.Time) time.Time {
	if now.Before(w.from) {
		return w.from
	}
	return w.until
}

// follows tells whether another generation comes after a verdict.
func (g *gang) follows(out rendezvous.Outcome) (rendezvous.Next, bool) {
	if g.noMore {
		return rendezvous.Next{}, false
	}
	return g.job.Next(out)
}

// mustProve tells whether each rank has to be proven gone before the gang is
// done: two generations of a job must never run at once. A node's silence is no
// proof, however long it lasts.
func (g *gang) mustProve() bool {
	if g.verdict == nil {
		return false
	}
	return g.comesAgain()
}

// comesAgain tells whether another generation follows one that is being ended, or is about to be.
func (g *gang) comesAgain() bool {
	var out rendezvous.Outcome
	switch root := g.culprit(); {
	case g.verdict != nil:
		out = g.outcome()
	case root != nil:
		out = g.failedBy(*root)
		out.At, out.Started = time.Now(), g.started
		g.losses(&out)
	default:
		return false
	}
	_, again := g.follows(out)
	return again
}

// unproven names the nodes that keep the next generation waiting.
func (g *gang) unproven() []string {
	if !g.mustProve() {
		return nil
	}
	var hosts []string
	for _, s := range g.seats {
		if !s.up && !g.over(s) {
			hosts = append(hosts, s.Host)
		}
	}
	return hosts
}

// waits tells once what the job waits for.
func (g *gang) waits(text string) {
	g.viewMu.Lock()
	said := g.text == text
	g.text = text
	g.viewMu.Unlock()
	if !said && text != "" {
		g.tell(rendezvous.Progress{Step: rendezvous.StepWaiting, Text: text})
	}
}

// pause ends a generation that another one follows.
func (g *gang) pause(next rendezvous.Next, out rendezvous.Outcome) {
	now := time.Now()
	g.wait = &waiting{next: next, from: now.Add(next.Pause), until: now.Add(next.Pause + placeFor), done: out}
	if g.job.Spec.Service != nil {
		g.wait.until = time.Time{} // it comes back when there are nodes for it again
	}
	if text := g.againText(next, out); text != "" {
		g.tell(rendezvous.Progress{Step: rendezvous.StepAgain, Text: text})
	}
	g.verdict, g.inherited = nil, false
	g.grace = g.job.Spec.Grace
	g.publish()
}

// lastWord is the last line of the rank that failed first, where its cause is not known.
func lastWord(out rendezvous.Outcome) string {
	if out.Root == nil || out.Root.Exit.Words != "" || out.Root.Exit.Last == "" {
		return ""
	}
	lines := strings.Split(out.Root.Exit.Last, "\n")
	return fmt.Sprintf(" (its last line: %s)", lines[len(lines)-1])
}

// goOn begins the next generation as soon as it can; true means that the job is
// over instead.
func (g *gang) goOn(ctx context.Context) (over bool) {
	w, now := g.wait, time.Now()
	switch {
	case g.verdict != nil: // stopped meanwhile
		if failed := w.done.Cause; failed != "" && g.verdict.End == rendezvous.Stopped && !strings.HasSuffix(g.verdict.Cause, failed) {
			g.verdict.Cause = fmt.Sprintf("%s while it waited for its next try; the last one had failed: %s", g.verdict.Cause, failed)
		}
		return g.record(ctx)
	case g.timedOut(now):
		g.end(g.outOfTime())
		return g.record(ctx)
	case now.Before(w.from), g.copying:
		return false
	}
	if hold := g.l.cfg.Hold; hold != nil {
		if why := hold(); why != "" { // a refusal would cost a try, or the first one the job
			w.from = now.Add(time.Second)
			g.waits(why)
			g.publish()
			return false
		}
	}
	if why := g.unsure(); why != "" {
		w.from = now.Add(time.Second)
		g.waits(why)
		g.publish()
		return false
	}
	job, err := g.l.placeNext(g, w.next, w.done)
	switch {
	case err != nil && !w.until.IsZero() && !now.Before(w.until):
		g.verdict = &w.done
		g.noMore = true
		g.verdict.Cause = fmt.Sprintf("%s; it could not be placed again within %s: %v", w.done.Cause, placeFor, err)
		return g.record(ctx)
	case err != nil:
		if g.job.Spec.Service != nil && !g.queued {
			w.from = now.Add(placeAgain) // its fabric may come up, and of that nobody tells
		}
		g.waits(err.Error())
		g.publish()
		return false
	}
	if err := g.l.cfg.Recorder.Plan(ctx, job); err != nil {
		g.l.unplace(g)
		g.l.cfg.Logger.Warn("record next generation", "job", job.Spec.ID, "error", err)
		g.waits(err.Error())
		w.from = time.Now().Add(time.Second)
		return false
	}
	g.begin(job)
	return false
}

// unsure says why another leader may have begun the next generation already;
// empty where none can have.
func (g *gang) unsure() string {
	if !g.found || g.l.cfg.Unheard == nil {
		return ""
	}
	hosts := g.l.cfg.Unheard()
	if len(hosts) == 0 {
		return ""
	}
	return fmt.Sprintf("the next try waits: %[1]s has not been heard since this machine started, and may have taken the job over; start it, or if it is "+
		"off for good say so with `sudo sparkrun mark-dead %[1]s`", strings.Join(hosts, " "))
}

// begin takes up a generation that has been recorded. Only now may the nodes
// forget the one before: a leader who finds it in the record, and on no node,
// would start it anew.
func (g *gang) begin(job rendezvous.Job) {
	now := time.Now()
	g.l.mu.Lock()
	g.forgetAll()
	g.job, g.pending, g.queued = job, nil, false
	g.seats = seatsOf(job.Plan, now)
	for _, s := range g.seats {
		if m := g.l.members[s.Node]; m != nil {
			s.up, s.known, s.ahead = m.ready && m.boot == s.Boot, true, m.ahead
		}
	}
	g.viewMu.Lock() // with the job: nobody is told of this generation what was said of the last
	g.state, g.started, g.text, g.serving = rendezvous.StateStarts, nil, "", serving{}
	g.viewMu.Unlock()
	g.l.poke()
	g.l.mu.Unlock()
	g.wait, g.fresh = nil, true
	g.port, g.ordered, g.refusedAt, g.failedAt = 0, false, time.Time{}, time.Time{}
	g.deadline, g.stepping = now.Add(job.Spec.StartTimeout), newStepping(job, now)
	g.tellPlanned()
	g.findCopies()
}

// forgetAll lets the nodes forget the generation. To all: one that came back just
// now is told here or not at all, and what is sent to one that is away is lost.
// Whoever comes back later is swept, as the try is nobody's then. l.mu is held.
func (g *gang) forgetAll() {
	key := g.job.Key()
	for _, s := range g.seats {
		g.send(s, launcher.Order{Forget: &key})
	}
}

// died notes that a person answers for it: nothing runs on that node any more.
func (g *gang) died(id launcher.NodeID) {
	s := g.seatOf(id)
	if s == nil || s.up || s.phase == launcher.PhaseEnded {
		return
	}
	s.lose("%s was marked dead", s.Host)
	s.rebooted, s.known = true, true
	g.rise(s, launcher.PhaseEnded)
}

// ErrAnswers refuses to take a node for dead.
var ErrAnswers = errors.New("the node answers")

// MarkDead takes a person's word that a node which does not answer runs nothing
// any more: it was switched off, or taken away. It is what lets a job be tried
// again that had ranks there. Later leaders find it in the record, where the
// caller puts it, with Boots.
func (l *Leader) MarkDead(id launcher.NodeID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || l.ctx.Err() != nil {
		return ErrOver
	}
	if m := l.members[id]; m != nil && m.ready {
		return fmt.Errorf("mark node dead: %w", ErrAnswers)
	}
	for _, g := range l.gangs {
		g.post(func() { g.died(id) })
	}
	return nil
}

// Boots names the boots of a node that a word about it is about: those in which
// jobs that have not ended were planned there, and the last one that was heard.
func (l *Leader) Boots(id launcher.NodeID) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	boots := l.cfg.Record.Boots(id)
	if m := l.members[id]; m != nil && m.boot != "" && !slices.Contains(boots, m.boot) {
		boots = append(boots, m.boot)
	}
	return boots
}

// placeNext plans a job's next generation, and holds its nodes for it.
func (l *Leader) placeNext(g *gang, next rendezvous.Next, done rendezvous.Outcome) (rendezvous.Job, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	job := g.job
	if job.Plan.Generation > 0 {
		job = job.After(done)
	} else {
		job.Planned = time.Now()
	}
	var plan rendezvous.Plan
	var err error
	if next.Stage == launcher.StageAfter {
		plan, err = l.placeAfter(g.job.Plan)
	} else {
		plan, _, err = l.placeJob(job.Spec, g)
	}
	if busy := new(busyError); g.queued && errors.As(err, &busy) {
		place, _ := l.inLine(g)
		err = fmt.Errorf("number %d in line; %s", place, busy.why)
	}
	if err != nil {
		return job, err
	}
	plan.Generation, plan.Restarts, plan.Stage = g.job.Plan.Generation+1, next.Restarts, next.Stage
	if g.job.Plan.Generation == 0 && job.Spec.Stage(launcher.StageBefore) != nil {
		plan = plan.Single(launcher.StageBefore, plan.Generation)
	}
	job.Plan, job.Verdict = plan, nil
	g.pending = &plan
	return job, nil
}

// placeAfter puts the last stage where rank 0 was. l.mu is held.
func (l *Leader) placeAfter(last rendezvous.Plan) (rendezvous.Plan, error) {
	first := last.Nodes[0]
	if m := l.members[first.Node]; m == nil || !m.ready || m.boot != first.Boot {
		return rendezvous.Plan{}, fmt.Errorf("%w: %s, where rank 0 was, does not answer", rendezvous.ErrCannotPlace, first.Host)
	} else if why := m.drained(); why != "" {
		return rendezvous.Plan{}, fmt.Errorf("%w: %s, where rank 0 was, is drained: %s", rendezvous.ErrCannotPlace, first.Host, why)
	}
	plan := last.Single(launcher.StageAfter, 0)
	plan.Held = nil
	return plan, nil
}

func (l *Leader) unplace(g *gang) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g.pending = nil
}

// poke has every gang look again: nodes may have become free. l.mu is held.
func (l *Leader) poke() {
	for _, g := range l.gangs {
		g.post(func() {})
	}
}

func seatsOf(plan rendezvous.Plan, now time.Time) []*seat {
	seats := make([]*seat, len(plan.Nodes))
	for i, p := range plan.Nodes {
		seats[i] = &seat{Place: p, rank: i, since: now, heard: now, askAt: now.Add(askSoon), ranks: map[int]*launcher.RankStatus{}}
	}
	return seats
}
