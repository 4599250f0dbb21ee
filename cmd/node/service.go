package node

import (
	"context"
	"fmt"

	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// service records whether a service comes back after all its machines were off.
func (l *leadership) service(ctx context.Context, c wire.Caller, r wire.ServiceRequest) (wire.ServiceResponse, error) {
	n := l.n
	job, err := n.record.Find(r.Job)
	switch {
	case err != nil:
		return wire.ServiceResponse{}, err
	case c.User.UID != 0 && c.User.Name != job.Spec.User:
		return wire.ServiceResponse{}, fmt.Errorf("job %s: %w: it is %s's", job.Spec.ID, wire.ErrDenied, job.Spec.User)
	case job.Spec.Service == nil:
		return wire.ServiceResponse{}, fmt.Errorf("job %s: %w: `sparkrun service ls` lists those", job.Spec.ID, rendezvous.ErrNoService)
	case job.Outcome != nil:
		return wire.ServiceResponse{}, fmt.Errorf("job %s: %w", job.Spec.ID, rendezvous.ErrJobEnded)
	}
	rec := n.failover.Recorder(l.fence.Term)
	err = l.Autostart(ctx, job.Spec.ID, r.Autostart, rec.Service)
	return wire.ServiceResponse{Job: job.Spec.ID, OnlyOn: n.failover.OnlyHere(ctx)}, err
}
