package lead

import (
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// A node is silent when its control stream is down and Others.Answers finds no sign of
// life. A management switch that fails breaks the streams but no rank.

// askEvery bounds how often Others.Answers is called for a node without a stream.
const (
	askEvery = 15 * time.Second
	askSoon  = time.Second
)

// giveUpSilent marks nodes as lost that have been silent for the node time-out.
func (r *run) giveUpSilent(now time.Time) {
	for _, p := range r.placements {
		switch until := r.giveUpAt(p); {
		case until.IsZero() || p.asking:
		case !now.Before(until):
			p.lose("%s has not answered for %s", p.Host, r.patience())
		case r.verdict == nil && !now.Before(p.askAt):
			r.ask(p, now)
		}
	}
}

// patience is how long to wait for a silent node. While a run is being ended it has an
// upper bound, so that there will be an outcome.
func (r *run) patience() time.Duration {
	if r.verdict != nil {
		return min(r.job.Spec.NodeTimeout, launcher.DefaultNodeTimeout)
	}
	return r.job.Spec.NodeTimeout
}

// giveUpAt is when a node will be given up if it stays silent; zero: never.
func (r *run) giveUpAt(p *placement) time.Time {
	switch {
	case p.up || p.lost != "" || p.phase == launcher.PhaseEnded || r.patience() == launcher.Never:
		return time.Time{}
	case r.verdict != nil:
		return p.since.Add(r.patience())
	case r.mayBeLed(p.Host):
		return time.Time{}
	}
	return p.heard.Add(r.patience())
}

// mayBeLed tells whether a silent host may by now follow another leader that goes on with
// this job. Its silence must not end the job here: at a reunion that end would count as
// the newer state.
func (r *run) mayBeLed(host string) bool {
	return r.found && r.l.cfg.Others != nil && slices.Contains(r.l.cfg.Others.Unheard(), host)
}

// ask looks for a sign of life in a goroutine of its own.
func (r *run) ask(p *placement, now time.Time) {
	p.askAt = now.Add(max(askSoon, min(askEvery, r.patience()/4)))
	if r.l.cfg.Others == nil {
		return
	}
	p.asking = true
	r.l.running.Go(func() { // safe: the calling loop keeps the count above zero
		roster, _ := r.l.Roster()
		answers := r.l.cfg.Others.Answers(r.l.ctx, roster, p.Place)
		r.post(func() {
			p.asking = false
			if answers {
				p.heard = time.Now()
			}
		})
	})
}
