package lead

import (
	"context"
	"errors"
	"fmt"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// ErrNoMove says that a service cannot go on elsewhere, or that a job is none.
var ErrNoMove = errors.New("it is not moved")

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
		case r.verdict != nil || r.proposed != nil || r.wait != nil || r.noMore:
			return nil // it is being ended already, or its next attempt waits
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
		r.decide(rendezvous.Outcome{End: rendezvous.Failed, Cause: why, Moved: true})
		return nil
	})
}
