package lead

import (
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// A node is silent when nothing of it answers: not the control stream, and none
// of the ways that Config.Answers knows. A management switch that fails takes
// the streams along and no rank.

// askEvery bounds how often a node without a stream is looked for elsewhere.
const (
	askEvery = 15 * time.Second
	askSoon  = time.Second
)

// giveUpSilent marks nodes lost that have been silent for the node time-out.
func (g *gang) giveUpSilent(now time.Time) {
	for _, s := range g.seats {
		switch until := g.giveUpAt(s); {
		case until.IsZero() || s.asking:
		case !now.Before(until):
			s.lose("%s has not answered for %s", s.Host, g.patience())
		case g.verdict == nil && !now.Before(s.askAt):
			g.ask(s, now)
		}
	}
}

// patience is how long a silent node is waited for. The outcome of a gang that
// is being ended is not kept waiting for ever.
func (g *gang) patience() time.Duration {
	if g.verdict != nil {
		return min(g.job.Spec.NodeTimeout, launcher.DefaultNodeTimeout)
	}
	return g.job.Spec.NodeTimeout
}

// giveUpAt is when a node will be given up if it stays silent; zero for one that
// is there, or need not be.
func (g *gang) giveUpAt(s *seat) time.Time {
	switch {
	case s.up || s.lost != "" || s.phase == launcher.PhaseEnded || g.patience() == launcher.Never:
		return time.Time{}
	case g.verdict != nil:
		return s.since.Add(g.patience())
	case g.mayBeLed(s.Host):
		return time.Time{}
	}
	return s.heard.Add(g.patience())
}

// mayBeLed tells whether a host that is silent may answer another leader by now,
// who goes on with this job. Its silence here ends nothing then: at a reunion
// that end would be taken for news.
func (g *gang) mayBeLed(host string) bool {
	return g.found && g.l.cfg.Unheard != nil && slices.Contains(g.l.cfg.Unheard(), host)
}

// ask looks for a sign of life, beside the loop.
func (g *gang) ask(s *seat, now time.Time) {
	s.askAt = now.Add(max(askSoon, min(askEvery, g.patience()/4)))
	if g.l.cfg.Answers == nil {
		return
	}
	s.asking = true
	g.l.gangsWG.Go(func() { // the loop that asks keeps it above zero
		answers := g.l.cfg.Answers(g.l.ctx, s.Place)
		g.post(func() {
			s.asking = false
			if answers {
				s.heard = time.Now()
			}
		})
	})
}
