package failover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/consensus"
	"github.com/sparkrun/sparkrun/rendezvous/lead"
)

// Recorder writes the record through raft. There is no other way to it.
type Recorder struct {
	f    *Failover
	term uint64
}

// Recorder writes for the leadership of a term; 0 for what any leader may write.
func (f *Failover) Recorder(term uint64) Recorder { return Recorder{f, term} }

// Plan records a generation of a job.
func (r Recorder) Plan(ctx context.Context, job rendezvous.Job) error {
	return r.Apply(ctx, job.Entry(), func() bool {
		j, ok := r.f.cfg.Record.Job(job.Spec.ID)
		return ok && j.Plan.Generation == job.Plan.Generation && j.Planned.Equal(job.Planned)
	})
}

// Stop records that a job is to end.
func (r Recorder) Stop(ctx context.Context, stop rendezvous.JobStop) error {
	return r.Apply(ctx, stop.Entry(), func() bool {
		j, ok := r.f.cfg.Record.Job(stop.Job)
		return ok && j.Stop != nil && j.Stop.Grace <= stop.Stop.Grace
	})
}

// Verdict records how a generation ends.
func (r Recorder) Verdict(ctx context.Context, end rendezvous.JobEnd) error {
	return r.Apply(ctx, end.Verdict(), func() bool {
		j, ok := r.f.cfg.Record.Job(end.Job)
		return ok && j.Plan.Generation == end.Generation && j.Verdict != nil && j.Verdict.Gone == end.Outcome.Gone
	})
}

// End records that a job has ended.
func (r Recorder) End(ctx context.Context, end rendezvous.JobEnd) error {
	return r.Apply(ctx, rendezvous.Entry{Kind: rendezvous.KindEnd, End: &end}, func() bool {
		j, ok := r.f.cfg.Record.Job(end.Job)
		return ok && j.Outcome != nil
	})
}

// Service records whether a service comes back after all its machines were off.
func (r Recorder) Service(ctx context.Context, s rendezvous.JobService) error {
	return r.Apply(ctx, s.Entry(), func() bool {
		j, ok := r.f.cfg.Record.Job(s.Job)
		return ok && j.Spec.Service != nil && j.Spec.Service.Autostart == s.Autostart
	})
}

// Update records another image of a service.
func (r Recorder) Update(ctx context.Context, u rendezvous.JobUpdate) error {
	return r.Apply(ctx, u.Entry(), func() bool {
		j, ok := r.f.cfg.Record.Job(u.Job)
		return ok && j.Image() == u.Image
	})
}

// Gateway records a change of the gateway's settings.
func (r Recorder) Gateway(ctx context.Context, c rendezvous.GatewayChange) error {
	return r.Apply(ctx, c.Entry(), func() bool {
		settings, _ := r.f.cfg.Record.Gateway()
		return c.Done(settings)
	})
}

// Notify records a change of who is told of what, or what they were told.
func (r Recorder) Notify(ctx context.Context, c rendezvous.NotifyChange) error {
	return r.Apply(ctx, c.Entry(), func() bool {
		now, _ := r.f.cfg.Record.Notify()
		return c.DoneIn(now)
	})
}

// commit binds what a leader decides to its leadership: a node that notices the loss of
// its leadership late, and leads again by now, does not know what happened between the
// two.
func (r Recorder) commit(ctx context.Context, entry []byte) (any, error) {
	if r.term == 0 {
		return r.f.raft.Apply(ctx, entry)
	}
	return r.f.raft.ApplyIn(ctx, r.term, entry)
}

// EveryReplicaKnows refuses an entry that would stop a node with the record that runs an older release.
func (f *Failover) EveryReplicaKnows(protocol int) error {
	var ids []launcher.NodeID
	for id := range f.Roles() {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return f.cfg.Record.Knows(protocol, ids)
}

// Apply commits one entry, or fails. After an unknown outcome it looks at the record -
// done tells whether that has the entry - and tries again while we lead.
func (r Recorder) Apply(ctx context.Context, e rendezvous.Entry, done func() bool) error {
	if err := r.f.EveryReplicaKnows(e.Kind.Since()); err != nil {
		return fmt.Errorf("record %s: %w", e.Kind, err)
	}
	e.At = time.Now()
	data, err := e.Encode()
	if err != nil {
		return err
	}
	r.f.recording.RLock()
	defer r.f.recording.RUnlock()
	for {
		select {
		case <-r.f.yielded:
			return fmt.Errorf("record entry: %w: this side gives way to a later epoch", lead.ErrOver)
		default:
		}
		res, err := r.commit(ctx, data)
		switch {
		case err == nil:
			refused, _ := res.(error)
			if refused != nil && done() {
				return nil // an earlier attempt of ours had been committed
			}
			return refused
		case errors.Is(err, consensus.ErrNotLeader), errors.Is(err, consensus.ErrStopped), ctx.Err() != nil:
			return fmt.Errorf("%w: %w", lead.ErrOver, err)
		case errors.Is(err, consensus.ErrTooLarge):
			return err
		}
		r.f.log.Warn("record entry", "kind", e.Kind, "error", err)
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", lead.ErrOver, err)
		}
		if done() {
			return nil
		}
	}
}

// copyWithin is how long an acknowledgement waits for a second copy. A standby that is up
// has it in milliseconds.
const copyWithin = 300 * time.Millisecond

// OnlyHere names this host if no other machine has what was just recorded although one
// should: the single voter of a pair records without the standby.
func (f *Failover) OnlyHere(ctx context.Context) string {
	if !f.SoleVoter() || len(f.cfg.Record.Nodes()) < 2 {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, copyWithin)
	defer cancel()
	if f.raft.Copied(ctx) || !f.leads.Load() {
		return ""
	}
	return f.cfg.Self.Host
}
