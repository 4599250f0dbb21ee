package lead

import (
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// Jobs that say what memory they take (--memory) start one after the other on a machine: while they load they take
// more than when they are ready, and two of them at a time would take more than was counted. They are prepared
// meanwhile. After a power cut, when all come back together, the same rule holds.

// startOrder is what other runs see of a run's start; guarded by l.mu, written by the run's own loop.
type startOrder struct {
	loads  bool // its ranks are started and not ready, or may be
	awaits bool // it is prepared, and others load
}

// awaitsTurn tells whether the run has to wait before it starts; else it has its turn from now on.
func (r *run) awaitsTurn(now time.Time) bool {
	if r.job.Spec.Memory == nil {
		return false
	}
	if r.awaits { // its time begins with its turn
		r.deadline, r.since, r.moved = now.Add(r.job.Spec.StartTimeout), now, now
	}
	r.l.mu.Lock()
	first, host := r.l.startsBefore(r)
	r.awaits, r.loads = first != nil, first == nil
	var text string
	if first != nil {
		text = describe(first.job)
	}
	r.l.mu.Unlock()
	if first == nil {
		r.waits("")
		return false
	}
	r.waits(text + " starts on " + host + " first: jobs with --memory load one after the other")
	return true
}

// startsBefore is the run that this one waits for, and a host that both have; nil if it may start. l.mu is held.
func (l *Leader) startsBefore(r *run) (first *run, host string) {
	for _, other := range l.runs {
		if other == r || !other.loads && !(other.awaits && cameBefore(other, r) < 0) {
			continue
		}
		if both := sharedHost(r.job.Plan, other.job.Plan); both != "" && (first == nil || cameBefore(other, first) < 0) {
			first, host = other, both
		}
	}
	return first, host
}

func sharedHost(a, b rendezvous.Plan) string {
	for _, n := range a.Nodes {
		if slices.ContainsFunc(b.Nodes, func(o rendezvous.Place) bool { return o.Node == n.Node }) {
			return n.Host
		}
	}
	return ""
}

// mayLoad tells whether ranks of the run are loading, or whether that is not known: those of an earlier leader may
// be, until the ledgers of their nodes are there. What has lost a machine for good does not get ready by itself.
func (r *run) mayLoad(now time.Time) bool {
	switch {
	case r.job.Spec.Memory == nil, r.wait != nil, r.job.Restored != nil, r.all:
		return false
	case r.find(func(p *placement) bool { return !p.up && !now.Before(p.since.Add(launcher.DefaultNodeTimeout)) }) != nil:
		return false
	}
	return r.ordered || !r.fresh && !r.allKnown()
}

// loadsUntil is when it no longer counts as loading because a machine of it is away; zero: no time.
func (r *run) loadsUntil() (at time.Time) {
	for _, p := range r.placements {
		if until := p.since.Add(launcher.DefaultNodeTimeout); r.loads && !p.up && (at.IsZero() || until.Before(at)) {
			at = until
		}
	}
	return at
}

// passTurn lets others start once the run is ready, or has ended.
func (r *run) passTurn() {
	now := startOrder{loads: r.mayLoad(time.Now()), awaits: r.awaits && r.verdict == nil && r.wait == nil}
	if now == r.startOrder {
		return
	}
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	r.startOrder = now
	for _, other := range r.l.runs {
		if other.awaits {
			other.post(func() {})
		}
	}
}
