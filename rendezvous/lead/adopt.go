package lead

import (
	"slices"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// adopt takes up a job that another leader has recorded. l.mu is held.
func (l *Leader) adopt(job rendezvous.Job) {
	g := newGang(l, job)
	g.found = true
	l.heed(g)
	if job.Verdict != nil { // what was said to end does not run again, whatever its nodes say
		g.post(func() { g.obeyVerdict(*job.Verdict) })
	}
	if job.Stop != nil { // before anything else: no generation begins any more
		g.post(func() { g.obeyStop(*job.Stop) })
	}
	l.run(g)
}

// heed has a gang take the words that people have given about machines of its
// plan, in the boots that they meant. l.mu is held.
func (l *Leader) heed(g *gang) {
	for _, d := range l.cfg.Record.Deaths() {
		if m := l.members[d.Node]; m != nil && m.ready {
			continue // it has come back, and tells itself
		}
		g.post(func() {
			if s := g.seatOf(d.Node); s != nil && slices.Contains(d.Boots, s.Boot) {
				g.died(d.Node)
			}
		})
	}
}

// Adopt takes up what the record has got of a job from elsewhere: from the other
// side of a reunion.
func (l *Leader) Adopt(id launcher.JobID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	job, known := l.cfg.Record.Job(id)
	if !known || l.over || l.ctx.Err() != nil {
		return
	}
	switch g := l.gangs[id]; {
	case g == nil && job.Outcome == nil:
		l.adopt(job)
	case g != nil && (job.Outcome != nil || job.Plan.Generation != g.job.Plan.Generation):
		g.post(func() { g.overtaken = true })
	case g != nil:
		if job.Verdict != nil {
			g.post(func() { g.obeyVerdict(*job.Verdict) })
		}
		if job.Stop != nil {
			g.post(func() { g.obeyStop(*job.Stop) })
		}
	}
}

// replace ends a gang whose job has gone further elsewhere.
func (l *Leader) replace(g *gang) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.gangs, g.job.Spec.ID)
	job, known := l.cfg.Record.Job(g.job.Spec.ID)
	if known && job.Outcome == nil && !l.over {
		l.adopt(job)
	}
	if known && job.Outcome != nil {
		g.forgetAll()
		g.tell(rendezvous.Progress{Step: rendezvous.StepEnded, Time: job.Outcome.At, Outcome: job.Outcome})
		return
	}
	g.story.breakOff(ErrOver) // whoever follows it asks again, and finds the other
}
