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

// A job goes through generations: a stage before the main one, the attempts of the main one, a stage after it.
// Between two generations the run has nothing on any node and waits here, in the same loop.

// waiting is what a run between two generations waits for.
type waiting struct {
	next  rendezvous.Next
	from  time.Time // the next one is not placed before
	look  time.Time // when there may be a place though nothing has changed; zero: only after a change
	until time.Time // when to give up placing it; zero: never
	done  rendezvous.Outcome
}

// placeFor bounds how long a job waits for nodes between two generations.
const placeFor = 10 * time.Minute

// nextLook is when the next time limit passes; zero: never. Nodes that come or go wake the run by themselves.
func (w *waiting) nextLook(now time.Time) time.Time {
	switch {
	case now.Before(w.from):
		return w.from
	case w.look.IsZero(), !w.until.IsZero() && w.until.Before(w.look):
		return w.until
	}
	return w.look
}

// follows tells whether another generation comes after a verdict.
func (r *run) follows(out rendezvous.Outcome) (rendezvous.Next, bool) {
	if r.noMore {
		return rendezvous.Next{}, false
	}
	return r.job.Next(out)
}

// mustProve tells whether each rank has to be proven gone before the run goes on: two generations of a job must never
// run at once. A node's silence is no proof, however long it lasts.
func (r *run) mustProve() bool {
	if r.verdict == nil {
		return false
	}
	return r.comesAgain()
}

// comesAgain tells whether another generation follows the one that is being ended, or is about to be.
func (r *run) comesAgain() bool {
	var out rendezvous.Outcome
	switch root := r.culprit(); {
	case r.verdict != nil:
		out = r.outcome()
	case root != nil:
		out = r.failedBy(*root)
		out.At, out.Started = time.Now(), r.started
		r.losses(&out)
	default:
		return false
	}
	_, again := r.follows(out)
	return again
}

// unproven names the nodes that keep the next generation waiting.
func (r *run) unproven() []string {
	if !r.mustProve() {
		return nil
	}
	var hosts []string
	for _, p := range r.placements {
		if !p.up && !r.over(p) {
			hosts = append(hosts, p.Host)
		}
	}
	return hosts
}

// waits reports once what the job waits for.
func (r *run) waits(text string) {
	r.viewMu.Lock()
	said := r.text == text
	r.text = text
	r.viewMu.Unlock()
	if !said && text != "" {
		r.tell(rendezvous.Progress{Step: rendezvous.StepWaiting, Text: text})
	}
}

// pause ends a generation that another one follows.
func (r *run) pause(next rendezvous.Next, out rendezvous.Outcome) {
	now := time.Now()
	if back := r.job.GoesBack(out); back != "" {
		out.Cause += "; " + back
	}
	r.wait = &waiting{next: next, from: now.Add(next.Pause), until: now.Add(next.Pause + placeFor), done: out}
	if r.job.Spec.Service != nil {
		r.wait.until = time.Time{} // no limit: it comes back when there are nodes for it again
	}
	if text := r.againText(next, out); text != "" && !sleepsAfter(r.job.Spec, out) {
		r.tell(rendezvous.Progress{Step: rendezvous.StepAgain, Text: text})
	}
	r.verdict, r.inherited = nil, false
	r.viewMu.Lock()
	r.moving = nil
	r.viewMu.Unlock()
	r.grace = r.job.Spec.Grace
	r.passTurn()
	if sleepsAfter(r.job.Spec, out) {
		r.recordAsleep(out)
		r.sleep(out.Cause + "; " + asleepText)
		return
	}
	r.publish()
}

// lastLine is for the end of a sentence.
func lastLine(out rendezvous.Outcome) string {
	if line := out.LastLine(); line != "" {
		return fmt.Sprintf(" (its last line: %s)", line)
	}
	return ""
}

// nextGeneration begins the next generation as soon as possible; over means that the job has ended instead.
func (r *run) nextGeneration(ctx context.Context) (over bool) {
	w, now := r.wait, time.Now()
	switch {
	case r.verdict != nil: // stopped in the meantime
		if failed := w.done.Cause; failed != "" && !r.asleep && r.verdict.End == rendezvous.Stopped &&
			!strings.HasSuffix(r.verdict.Cause, failed) {
			r.verdict.Cause = fmt.Sprintf("%s while it waited for its next attempt; the last one had failed: %s",
				r.verdict.Cause, failed)
		}
		return r.record(ctx)
	case r.timedOut(now):
		r.end(r.outOfTime())
		return r.record(ctx)
	case now.Before(w.from), r.copying, r.asleep:
		return false
	}
	if hold := r.l.cfg.Hold; hold != nil {
		if why := hold(); why != "" { // a refusal would cost an attempt, or end the job at its first one
			w.from = now.Add(time.Second)
			r.waits(why)
			r.publish()
			return false
		}
	}
	if why := r.unsure(); why != "" {
		w.from = now.Add(time.Second)
		r.waits(why)
		r.publish()
		return false
	}
	w.look = time.Time{}
	job, err := r.l.placeNext(r, w.next, w.done)
	switch {
	case err != nil && !w.until.IsZero() && !now.Before(w.until) && r.job.Spec.OnDemand() != nil:
		r.sleep(err.Error() + "; " + asleepText)
		return false
	case err != nil && !w.until.IsZero() && !now.Before(w.until):
		r.verdict = &w.done
		r.noMore = true
		r.verdict.Cause = fmt.Sprintf("%s; it could not be placed again within %s: %v", w.done.Cause, placeFor, err)
		return r.record(ctx)
	case err != nil:
		if r.job.Spec.Service != nil && !r.queued {
			w.from = now.Add(placeAgain) // its fabric may come up, which wakes no run
		}
		r.waits(err.Error())
		r.publish()
		return false
	}
	if err := r.l.cfg.Recorder.Plan(ctx, job); err != nil {
		r.l.unplace(r)
		r.l.cfg.Logger.Warn("record next generation", "job", job.Spec.ID, "error", err)
		r.waits(err.Error())
		w.from = time.Now().Add(time.Second)
		return false
	}
	r.begin(job)
	return false
}

// unsure says why another leader may have begun the next generation already; empty if
// none can have.
func (r *run) unsure() string {
	if !r.found || r.l.cfg.Others == nil {
		return ""
	}
	hosts := r.l.cfg.Others.Unheard()
	if len(hosts) == 0 {
		return ""
	}
	return fmt.Sprintf("the next attempt waits: %[1]s has not been heard since this machine started, and may have taken the job over; start it, or, if it is "+
		"off for good, confirm that with `sudo sparkrun mark-dead %[1]s`", strings.Join(hosts, " "))
}

// begin starts a generation that has been recorded. Only now may the nodes forget the one before: if nodes forgot
// it earlier, a leader that found it in the record and on no node would start it again.
func (r *run) begin(job rendezvous.Job) {
	now := time.Now()
	r.l.mu.Lock()
	r.forgetAll()
	if job.Plan.Restarts > r.job.Plan.Restarts {
		r.l.counts.Again++
	}
	r.job, r.pending, r.queued, r.startOrder, r.demand = job, nil, false, startOrder{}, demand{used: r.used}
	r.placements = placementsOf(job.Plan, now)
	for _, p := range r.placements {
		if m := r.l.members[p.Node]; m != nil {
			p.up, p.known, p.ahead = m.ready && m.boot == p.Boot, true, m.ahead
		}
	}
	r.viewMu.Lock() // together with the job: what was reported of the last generation must not be reported of this one
	r.state, r.started, r.text, r.serving = rendezvous.StateStarts, nil, "", serving{}
	r.viewMu.Unlock()
	r.l.poke()
	r.l.mu.Unlock()
	r.wait, r.fresh = nil, true
	r.port, r.ordered, r.refusedAt, r.failedAt = 0, false, time.Time{}, time.Time{}
	r.deadline, r.stepping = now.Add(job.Spec.StartTimeout), newStepping(job, now)
	r.tellPlanned()
	r.findCopies()
}

// forgetAll tells all nodes to forget the generation, also those that seem to be away: one may have come back just
// now. A node that comes back later is swept. l.mu is held.
func (r *run) forgetAll() {
	key := r.job.Key()
	for _, p := range r.job.Plan.Nodes {
		r.l.cfg.Send(p.Node, launcher.Order{Fence: r.l.cfg.Fence, Forget: &key})
	}
}

// died notes a person's confirmation that nothing runs on that node any more.
func (r *run) died(id launcher.NodeID) {
	p := r.placementOf(id)
	if p == nil || p.up || p.phase == launcher.PhaseEnded {
		return
	}
	p.lose("%s was marked dead", p.Host)
	p.rebooted, p.known = true, true
	r.raisePhase(p, launcher.PhaseEnded)
}

// ErrAnswers refuses to mark a node dead.
var ErrAnswers = errors.New("the node answers")

// MarkDead takes a person's confirmation that a node which does not answer runs nothing any more, because it was
// switched off or taken away. Jobs with ranks there may then make their next attempt. The caller records the
// confirmation together with Boots, so that later leaders find it.
func (l *Leader) MarkDead(id launcher.NodeID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || l.ctx.Err() != nil {
		return ErrOver
	}
	if m := l.members[id]; m != nil && m.ready {
		return fmt.Errorf("mark node dead: %w", ErrAnswers)
	}
	for _, r := range l.runs {
		r.post(func() { r.died(id) })
	}
	return nil
}

// Boots lists the boots that a confirmation about a node covers: those in which unfinished jobs were planned there,
// and the last one that was heard.
func (l *Leader) Boots(id launcher.NodeID) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	boots := l.cfg.Record.Boots(id)
	if m := l.members[id]; m != nil && m.boot != "" && !slices.Contains(boots, m.boot) {
		boots = append(boots, m.boot)
	}
	return boots
}

// placeNext plans a job's next generation and holds its nodes for it.
func (l *Leader) placeNext(r *run, next rendezvous.Next, done rendezvous.Outcome) (rendezvous.Job, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	job := r.job
	if job.Plan.Generation > 0 {
		job = job.After(done).Settled()
	} else {
		job.Planned = time.Now()
	}
	var plan rendezvous.Plan
	var err error
	if next.Stage == launcher.StageAfter {
		plan, err = l.placeAfter(r.job.Plan)
	} else {
		plan, _, err = l.placeJob(job.Spec, r)
	}
	if busy := new(busyError); r.queued && errors.As(err, &busy) {
		place, first := l.inQueue(r)
		if first == r {
			r.wait.look = l.makeRoom(r)
		}
		err = fmt.Errorf("number %d in the queue; %s", place, busy.why)
	}
	if err != nil {
		return job, err
	}
	plan.Generation, plan.Restarts, plan.Stage = r.job.Plan.Generation+1, next.Restarts, next.Stage
	if r.job.Plan.Generation == 0 && job.Spec.Stage(launcher.StageBefore) != nil {
		plan = plan.Single(launcher.StageBefore, plan.Generation)
	}
	job.Plan, job.Verdict = plan, nil
	r.pending = &plan
	return job, nil
}

// placeAfter places the last stage where rank 0 was. l.mu is held.
func (l *Leader) placeAfter(last rendezvous.Plan) (rendezvous.Plan, error) {
	first := last.Nodes[0]
	if m := l.members[first.Node]; m == nil || !m.ready || m.boot != first.Boot {
		return rendezvous.Plan{},
			fmt.Errorf("%w: %s, where rank 0 was, does not answer", rendezvous.ErrCannotPlace, first.Host)
	} else if why := m.drained(); why != "" {
		return rendezvous.Plan{},
			fmt.Errorf("%w: %s, where rank 0 was, is drained: %s", rendezvous.ErrCannotPlace, first.Host, why)
	}
	plan := last.Single(launcher.StageAfter, 0)
	plan.Held = nil
	return plan, nil
}

func (l *Leader) unplace(r *run) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.pending = nil
}

// poke wakes every run: nodes may have become free. l.mu is held.
func (l *Leader) poke() {
	for _, r := range l.runs {
		r.post(func() {})
	}
}

func placementsOf(plan rendezvous.Plan, now time.Time) []*placement {
	out := make([]*placement, len(plan.Nodes))
	for i, p := range plan.Nodes {
		out[i] = &placement{Place: p, rank: i, since: now, heard: now, askAt: now.Add(askSoon),
			ranks: map[int]*launcher.RankStatus{}}
	}
	return out
}
