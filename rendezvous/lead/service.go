package lead

import (
	"context"
	"fmt"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// What a leader does of a service beside what it does of any job. The looks at it are those
// of rank 0's node, which goes on with them under any leader and under none.

// serving is what a leader knows of a service; guarded by viewMu.
type serving struct {
	seen *launcher.ServiceSeen // replaced whole, never changed; nil: nothing was told of this generation
	told int                   // how often its state was told
}

// Bounds for services.
const (
	placeAgain = 5 * time.Second // between two looks for nodes of its next generation
	maxServes  = 200             // turns of its state that a story tells: a story only grows
)

// servedIs takes what rank 0's node has seen of the service.
func (g *gang) servedIs(s *seat, now *launcher.ServiceSeen) {
	if now == nil || s.rank != 0 || g.job.Spec.Service == nil || g.job.Plan.Stage != "" {
		return
	}
	g.viewMu.Lock()
	old := g.seen
	g.seen = now
	if g.started != nil && now.Ready != nil && g.found {
		g.started = now.Ready // an earlier leader saw it
	}
	turned := now.State != launcher.ServiceStarting && (old == nil || old.State != now.State)
	if turned {
		g.told++
	}
	quiet := g.told > maxServes
	g.viewMu.Unlock()
	if !turned {
		return
	}
	text := servesText(old, now)
	g.l.cfg.Logger.Info("service", "job", g.job.Spec.ID, "state", now.State, "text", text)
	if !quiet {
		g.tell(rendezvous.Progress{Step: rendezvous.StepServes, Host: s.Host, Text: text, Service: now})
	}
}

func servesText(old, now *launcher.ServiceSeen) string {
	switch {
	case now.State != launcher.ServiceReady:
		return fmt.Sprintf("the service is %s: %s", now.State, now.Text)
	case old == nil || old.State == launcher.ServiceStarting:
		return "the service answers at http://" + now.Addr
	}
	return fmt.Sprintf("the service is well again; it was %s for %s", old.State, now.Since.Sub(old.Since).Round(time.Second))
}

// wasReady tells whether the service has answered in this generation.
func (g *gang) wasReady() bool { return g.seen != nil && g.seen.Ready != nil }

// wedged says of a service that is to be tried again when it is stuck that it is; empty:
// it is not, or has no try left: only a stop ends a service.
func (g *gang) wedged(now time.Time) string {
	v := g.job.Spec.Service
	if v == nil || v.OnWedge != launcher.WedgeRestart || g.seen == nil || g.seen.State != launcher.ServiceWedged ||
		!g.seats[0].up || g.job.RecentFaults(now) >= v.Restarts {
		return ""
	}
	return "the service was wedged: " + g.seen.Text
}

// deserted finds the rank of a service that was the first to end with 0: it should serve.
// vLLM ends so, too, when one of its processes has died; a rank that left because it had
// lost another is the cause where nothing else is known.
func (g *gang) deserted() (first *launcher.RankExit) {
	if g.job.Spec.Service == nil || g.job.Plan.Stage != "" {
		return nil
	}
	for _, s := range g.seats {
		for _, e := range g.exitsOf(s) {
			switch {
			case e.Exit.Failed() || e.Exit.ByUs || g.job.Spec.Daemon(e.Rank):
			case first == nil, first.Exit.LostPeer && !e.Exit.LostPeer, first.Exit.LostPeer == e.Exit.LostPeer && e.Time.Before(first.Time):
				first = &e
			}
		}
	}
	return first
}

// desertedBy is the end of a service by a rank that ended with 0.
func (g *gang) desertedBy(r launcher.RankExit) rendezvous.Outcome {
	out := failed(g.blame(r) + ", and a service has no end of its own")
	out.Root = &r
	return out
}

// losses completes the outcome of a service: which of its machines were lost.
func (g *gang) losses(out *rendezvous.Outcome) {
	if g.job.Spec.Service == nil || g.job.Plan.Stage != "" || out.End != rendezvous.Failed {
		return
	}
	gone := func(s *seat) bool { return s.lost != "" || s.rebooted }
	out.Lost = g.find(gone) != nil
	// A rank that ended first is a failure like any. Silence may bring a service back, and is no
	// proof that would end one.
	proven := func(s *seat) bool { return s.rebooted || g.job.Spec.Service.Autostart && s.lost != "" }
	out.AllLost = out.Root == nil && g.find(func(s *seat) bool { return !proven(s) }) == nil
	if g.wasReady() && out.Started == nil {
		out.Started = g.seen.Ready
	}
}

// retried tells whether another try follows where this one fails.
func retried(spec launcher.Spec) bool {
	return spec.MaxRestarts > 0 || spec.Service != nil && spec.Service.Restarts > 0
}

// againText says what of the next generation, and when.
func (g *gang) againText(next rendezvous.Next, out rendezvous.Outcome) string {
	v, cause := g.job.Spec.Service, out.Cause+lastWord(out)
	switch {
	case v == nil && next.Restarts > g.job.Plan.Restarts:
		return fmt.Sprintf("%s; try %d of %d in %s", cause, next.Restarts+1, g.job.Spec.MaxRestarts+1, next.Pause)
	case v == nil || g.job.Plan.Stage != "":
		return ""
	case next.Restarts > g.job.Plan.Restarts:
		return fmt.Sprintf("%s; restart %d of %s in %s", cause, g.job.RecentFaults(time.Now())+1, v.RestartText(), next.Pause)
	}
	return fmt.Sprintf("%s; it comes back in %s", cause, next.Pause)
}

// Autostart records whether a service comes back after all its machines were off.
func (l *Leader) Autostart(ctx context.Context, id launcher.JobID, on bool, record func(context.Context, rendezvous.JobService) error) error {
	l.mu.Lock()
	g, over := l.gangs[id], l.over || l.ctx.Err() != nil
	l.mu.Unlock()
	if over {
		return fmt.Errorf("job %s: %w", id, ErrOver)
	}
	if g == nil {
		return fmt.Errorf("job %s: %w", id, rendezvous.ErrJobEnded)
	}
	answer := make(chan error, 1)
	g.post(func() { // in the loop, so that no generation is begun with the former wish
		err := record(l.ctx, rendezvous.JobService{Job: id, Autostart: on})
		if err == nil {
			l.mu.Lock()
			g.job.Spec = rendezvous.WithAutostart(g.job.Spec, on)
			l.mu.Unlock()
		}
		answer <- err
	})
	select {
	case err := <-answer:
		return err
	case <-g.gone:
		return fmt.Errorf("job %s: %w", id, rendezvous.ErrJobEnded)
	case <-ctx.Done():
		return ctx.Err()
	case <-l.ctx.Done():
		return fmt.Errorf("job %s: %w", id, ErrOver)
	}
}
