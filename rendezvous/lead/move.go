package lead

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// ErrNoMove says that a service cannot go on elsewhere, or that a job is none.
var ErrNoMove = errors.New("it is not moved")

// A service that is to go on elsewhere, or with another image, is ended in two steps: first the gateway sends it nothing
// new, then, once its metrics and the gateways say that no request is under way, its ranks get TERM.
const (
	moveWithin = 2 * time.Minute // at most
	// moveLook is how old a report that no request is under way may be: rank 0's node looks each 5 s
	// (launcher/readiness), and tells at once when the first one has come or the last one ended.
	moveLook = 6 * time.Second
)

// moving is such a service's end.
type moving struct {
	out   rendezvous.Outcome
	began time.Time
	busy  map[launcher.NodeID]bool // the members at whose gateways requests are under way
}

// DrainsChanged takes note of a node that an administrator has drained, or given back.
func (l *Leader) DrainsChanged() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.memberChanged()
	l.poke()
}

// Move ends a service's ranks so that its next generation begins elsewhere, if there is room for it now. That counts
// as no failure. Where there is none it runs on.
func (l *Leader) Move(ctx context.Context, id launcher.JobID, why string) error {
	return l.ask(ctx, id, func(r *run) error {
		switch {
		case !r.serves():
			return fmt.Errorf("%w: it is no service", ErrNoMove)
		case r.beingMoved():
			return nil
		}
		l.mu.Lock()
		plan, _, err := l.placeJob(r.job.Spec, r)
		if err == nil {
			r.pending = &plan // so that nobody else takes the place meanwhile
		}
		l.mu.Unlock()
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNoMove, err)
		}
		r.move(why)
		return nil
	})
}

// Update records another image of a service, whose ranks are then ended so that its next generation has it. That counts
// as no failure.
func (l *Leader) Update(ctx context.Context, e rendezvous.JobUpdate,
	record func(context.Context, rendezvous.JobUpdate) error) error {
	return l.ask(ctx, e.Job, func(r *run) error { // in the loop, so that no generation begins with the old image
		e.Proven = r.serves() && r.wasReady()
		now, err := r.job.UpdatedTo(e, time.Now())
		if err == nil {
			err = record(l.ctx, e)
		}
		if err != nil {
			return fmt.Errorf("update job %s: %w", e.Job, err)
		}
		if recorded, known := l.cfg.Record.Job(e.Job); known {
			now.Spec, now.Update = recorded.Spec, recorded.Update
		}
		l.mu.Lock()
		r.job.Spec, r.job.Update = now.Spec, now.Update
		l.mu.Unlock()
		return nil
	})
}

// outdated begins the end of a generation that an update has overtaken, also one that an earlier leader recorded.
func (r *run) outdated() {
	u := r.job.Update
	if u != nil && r.serves() && r.job.Plan.Generation < u.Since && !r.beingMoved() && r.allKnown() {
		r.move(fmt.Sprintf("updated by %s to %s", u.By, r.job.Image()))
	}
}

// beingMoved tells whether it is being ended already, for whatever reason, or its next attempt waits.
func (r *run) beingMoved() bool {
	return r.moving != nil || r.verdict != nil || r.proposed != nil || r.wait != nil || r.noMore
}

func (r *run) move(why string) {
	r.moveFor(rendezvous.Outcome{End: rendezvous.Failed, Cause: why, Moved: true})
}

func (r *run) moveFor(out rendezvous.Outcome) {
	r.viewMu.Lock()
	r.moving = &moving{out: out, began: time.Now(), busy: map[launcher.NodeID]bool{}}
	r.viewMu.Unlock()
	r.waits("its requests end before it does: " + out.Cause)
}

// movedAt is when the wait for its requests is over; zero: it is not being moved.
func (r *run) movedAt() time.Time {
	switch seen := r.seen; {
	case r.moving == nil:
		return time.Time{}
	case seen == nil || seen.Ready == nil: // it has not answered yet
		return r.moving.began
	case len(r.moving.busy) > 0:
	case seen.Running == nil, *seen.Running == 0: // its metrics do not say, or it is idle
		return r.moving.began.Add(moveLook)
	}
	return r.moving.began.Add(moveWithin)
}
