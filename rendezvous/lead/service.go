package lead

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// What a leader does only for services. Rank 0's node probes the service, with or without a leader, and reports
// what it sees.

// serving is what a leader knows about a service; guarded by viewMu.
type serving struct {
	seen *launcher.ServiceSeen // replaced as a whole; nil: nothing was reported in this generation
	told int                   // number of its state changes in the event log
}

// Bounds for services.
const (
	placeAgain = 5 * time.Second // between two tries to place its next generation
	maxServes  = 200             // state changes in the event log of one generation
)

// servedIs takes what rank 0's node saw of the service.
func (r *run) servedIs(p *placement, now *launcher.ServiceSeen) {
	if now == nil || p.rank != 0 || r.job.Spec.Service == nil || r.job.Plan.Stage != "" {
		return
	}
	r.viewMu.Lock()
	old := r.seen
	r.seen = now
	if r.started != nil && now.Ready != nil && r.found {
		r.started = now.Ready // an earlier leader saw it
	}
	turned := now.State != launcher.ServiceStarting && (old == nil || old.State != now.State)
	if turned {
		r.told++
	}
	quiet := r.told > maxServes
	r.viewMu.Unlock()
	if !turned {
		return
	}
	text := servesText(old, now)
	if from := r.job.MovedFrom(); from != "" && (old == nil || old.State == launcher.ServiceStarting) {
		text += fmt.Sprintf("; it was on %s before: its URL has changed", from)
	}
	r.l.cfg.Logger.Info("service", "job", r.job.Spec.ID, "state", now.State, "text", text)
	if !quiet {
		r.tell(rendezvous.Progress{Step: rendezvous.StepServes, Host: p.Host, Text: text, Service: now})
	}
}

func servesText(old, now *launcher.ServiceSeen) string {
	switch {
	case now.State != launcher.ServiceReady:
		return fmt.Sprintf("the service is %s: %s", now.State, now.Text)
	case old == nil || old.State == launcher.ServiceStarting:
		return "the service answers at http://" + now.Addr
	}
	return fmt.Sprintf("the service is healthy again; it was %s for %s", old.State,
		now.Since.Sub(old.Since).Round(time.Second))
}

// wasReady tells whether the service has answered in this generation.
func (r *run) wasReady() bool { return r.seen != nil && r.seen.Ready != nil }

// wedged says that a service with --on-wedge restart is stuck; empty: it is not, or it has no attempt left, in
// which case only a stop ends it.
func (r *run) wedged(now time.Time) string {
	v := r.job.Spec.Service
	if v == nil || v.OnWedge != launcher.WedgeRestart || r.seen == nil || r.seen.State != launcher.ServiceWedged ||
		!r.placements[0].up || r.job.RecentFaults(now) >= v.Restarts {
		return ""
	}
	return "the service was wedged: " + r.seen.Text
}

// deserted finds the first rank of a service that exited with 0, which no server should do; vLLM does when one of
// its processes has died. A rank that left because it had lost a peer is the cause only if no other is known.
func (r *run) deserted() (first *launcher.RankExit) {
	if !r.serves() {
		return nil
	}
	for _, p := range r.placements {
		for _, e := range r.exitsOf(p) {
			switch {
			case e.Exit.Failed() || e.Exit.ByUs || r.job.Spec.Daemon(e.Rank):
			case first == nil, first.Exit.LostPeer && !e.Exit.LostPeer, first.Exit.LostPeer == e.Exit.LostPeer &&
				e.Time.Before(first.Time):
				first = &e
			}
		}
	}
	return first
}

// culprit is the rank that caused the end; for a service it may be one that exited with 0.
func (r *run) culprit() *launcher.RankExit {
	failed, left := r.rootCause(), r.deserted()
	switch {
	case failed == nil || left == nil:
		return cmp.Or(failed, left)
	case failed.Exit.LostPeer != left.Exit.LostPeer:
		if left.Exit.LostPeer {
			return failed
		}
		return left
	case left.Time.Before(failed.Time):
		return left
	}
	return failed
}

// toldLate finds a rank of a service that we had to end but whose output names a cause: a server that has lost a
// process may take long to exit.
func (r *run) toldLate() (first *launcher.RankExit) {
	if !r.serves() {
		return nil
	}
	for _, p := range r.placements {
		for _, e := range r.exitsOf(p) {
			if e.Exit.ByUs && e.Exit.Words != "" && !e.Exit.LostPeer && (first == nil || e.Rank < first.Rank) {
				first = &e
			}
		}
	}
	return first
}

func (r *run) blameLate(e launcher.RankExit) string {
	return r.stageOf(e.Rank) + fmt.Sprintf("%s on %s: %s", r.job.Spec.Process(e.Rank), e.Host, e.Exit.Words)
}

// serves tells whether this generation is the server of a service.
func (r *run) serves() bool { return r.job.Spec.Service != nil && r.job.Plan.Stage == "" }

// losses completes the outcome of a service: which of its machines were lost.
func (r *run) losses(out *rendezvous.Outcome) {
	if !r.serves() || out.End != rendezvous.Failed {
		return
	}
	gone := func(p *placement) bool { return p.lost != "" || p.rebooted }
	out.Lost = r.find(gone) != nil
	// If a rank ended first, this is an ordinary failure. Silence alone may restart a service with --autostart, but
	// proves nothing for other jobs.
	proven := func(p *placement) bool {
		away := p.lost != "" || !p.up && p.phase != launcher.PhaseEnded // it may be about to be marked lost
		return p.rebooted || r.job.Spec.Service.Autostart && away
	}
	out.AllLost = out.Root == nil && r.find(func(p *placement) bool { return !proven(p) }) == nil
	if r.wasReady() && out.Started == nil {
		out.Started = r.seen.Ready
	}
}

// retried tells whether another attempt follows if this one fails.
func retried(spec launcher.Spec) bool {
	return spec.MaxRestarts > 0 || spec.Service != nil && spec.Service.Restarts > 0
}

// againText says which generation follows, and when.
func (r *run) againText(next rendezvous.Next, out rendezvous.Outcome) string {
	v, cause := r.job.Spec.Service, out.Cause+lastLine(out)
	switch {
	case v == nil && next.Restarts > r.job.Plan.Restarts:
		return fmt.Sprintf("%s; attempt %d of %d in %s", cause, next.Restarts+1, r.job.Spec.MaxRestarts+1, next.Pause)
	case v == nil || r.job.Plan.Stage != "":
		return ""
	case next.Restarts > r.job.Plan.Restarts:
		return fmt.Sprintf("%s; restart %d of %s in %s", cause, r.job.RecentFaults(time.Now())+1, v.RestartText(), next.Pause)
	}
	return fmt.Sprintf("%s; it comes back in %s", cause, next.Pause)
}

// Autostart records whether a service comes back after all its machines were off.
func (l *Leader) Autostart(ctx context.Context, id launcher.JobID, on bool,
	record func(context.Context, rendezvous.JobService) error) error {
	return l.ask(ctx, id, func(r *run) error { // in the loop, so that no generation begins with the old value
		err := record(l.ctx, rendezvous.JobService{Job: id, Autostart: on})
		if err == nil {
			l.mu.Lock()
			r.job.Spec = rendezvous.WithAutostart(r.job.Spec, on)
			l.mu.Unlock()
		}
		return err
	})
}

// Restart ends a service's ranks so that it is started again, as when it is wedged.
func (l *Leader) Restart(ctx context.Context, id launcher.JobID, reason string) error {
	return l.ask(ctx, id, func(r *run) error { return r.restart(reason) })
}

// restart is refused where no other attempt would follow: a person stops and launches such a service.
func (r *run) restart(reason string) error {
	v, refused := r.job.Spec.Service, ""
	switch {
	case v == nil:
		return fmt.Errorf("restart job %s: %w", r.job.Spec.ID, rendezvous.ErrNoService)
	case r.asleep:
		return fmt.Errorf("restart job %s: it is asleep: its first request at the gateway starts it", r.job.Spec.ID)
	case r.verdict != nil || r.proposed != nil || r.wait != nil: // it is being ended, or its next attempt waits
		return nil
	case v.Restarts == 0:
		refused = "it was launched with --restart no"
	case r.job.RecentFaults(time.Now()) >= v.Restarts:
		refused = "its " + v.RestartText() + " are used up"
	case !r.serves() || !r.wasReady():
		refused = "it has not answered yet"
	}
	if refused != "" {
		return fmt.Errorf("restart job %s: %w: %s; `sparkrun stop %[1]s` ends it, to be launched again", r.job.Spec.ID,
			rendezvous.ErrNoRestart, refused)
	}
	r.decide(failed(reason))
	return nil
}

// ask has a job's own loop answer.
func (l *Leader) ask(ctx context.Context, id launcher.JobID, fn func(*run) error) error {
	l.mu.Lock()
	r, over := l.runs[id], l.over || l.ctx.Err() != nil
	l.mu.Unlock()
	if over {
		return fmt.Errorf("job %s: %w", id, ErrOver)
	}
	if r == nil {
		return fmt.Errorf("job %s: %w", id, rendezvous.ErrJobEnded)
	}
	answer := make(chan error, 1)
	r.post(func() { answer <- fn(r) })
	select {
	case err := <-answer:
		return err
	case <-r.gone:
		return fmt.Errorf("job %s: %w", id, rendezvous.ErrJobEnded)
	case <-ctx.Done():
		return ctx.Err()
	case <-l.ctx.Done():
		return fmt.Errorf("job %s: %w", id, ErrOver)
	}
}
