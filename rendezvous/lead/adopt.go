package lead

import (
	"slices"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// adopt takes over a job that another leader recorded. l.mu is held.
func (l *Leader) adopt(job rendezvous.Job) {
	r := newRun(l, job)
	r.found = true
	r.loads = job.Spec.Memory != nil && r.wait == nil // until its nodes' ledgers say otherwise
	l.applyDeaths(r)
	if job.Verdict != nil { // followers know it: the run ends, whatever the nodes say
		r.post(func() { r.applyVerdict(*job.Verdict) })
	}
	if job.Stop != nil { // first, so that no further generation begins
		r.post(func() { r.applyStop(*job.Stop) })
	}
	r.offer() // at once: a gateway that asks now must not take its model for unknown
	l.drive(r)
}

// applyDeaths applies the recorded confirmations that machines of a run's plan are dead, for the boots that they
// cover. l.mu is held.
func (l *Leader) applyDeaths(r *run) {
	for _, d := range l.cfg.Record.Deaths() {
		if m := l.members[d.Node]; m != nil && m.ready {
			continue // it has come back and sends its own ledger
		}
		r.post(func() {
			if p := r.placementOf(d.Node); p != nil && slices.Contains(d.Boots, p.Boot) {
				r.died(d.Node)
			}
		})
	}
}

// Adopt takes over what the record received about a job from the other side of a reunion.
func (l *Leader) Adopt(id launcher.JobID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	job, known := l.cfg.Record.Job(id)
	if !known || l.over || l.ctx.Err() != nil {
		return
	}
	switch r := l.runs[id]; {
	case r == nil && job.Outcome == nil:
		l.adopt(job)
	case r != nil && (job.Outcome != nil || job.Plan.Generation != r.job.Plan.Generation):
		r.post(func() { r.overtaken = true })
	case r != nil:
		if job.Verdict != nil {
			r.post(func() { r.applyVerdict(*job.Verdict) })
		}
		if job.Stop != nil {
			r.post(func() { r.applyStop(*job.Stop) })
		}
	}
}

// replace ends a run whose job got further on the other side, and begins another run for it.
func (l *Leader) replace(r *run) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.runs, r.job.Spec.ID)
	job, known := l.cfg.Record.Job(r.job.Spec.ID)
	if known && job.Outcome == nil && !l.over {
		l.adopt(job)
	} else {
		l.backends.remove(r.job.Spec.ID)
	}
	if known && job.Outcome != nil {
		r.forgetAll()
		r.tell(rendezvous.Progress{Step: rendezvous.StepEnded, Time: job.Outcome.At, Outcome: job.Outcome})
		return
	}
	r.events.fail(ErrOver) // its followers ask again and find the new run
}
