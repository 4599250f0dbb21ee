package membership

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/failover"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// drainNode keeps new ranks away from a member, moves the services that have room elsewhere, and tells what still has
// ranks there, until nothing has. It ends with its caller; the drain stays.
func (l *Leader) drainNode(ctx context.Context, c wire.Caller, r wire.DrainRequest,
	tell func(wire.DrainProgress) error) error {
	if err := c.MustBeRoot("drain " + r.Host); err != nil {
		return err
	}
	roster, _ := l.brain.Roster()
	m, err := named(roster, r.Host)
	if err != nil {
		return fmt.Errorf("drain %s: %w", r.Host, err)
	}
	drain := rendezvous.NodeDrain{Node: m.ID, By: c.User.Name, Reason: r.Reason, At: time.Now(), Over: r.Over}
	if before, is := l.m.cfg.Record.Drain(m.ID); is && drain.Reason == "" {
		drain.Reason = before.Reason
	}
	err = l.m.record(ctx, drain.Entry(), func() bool {
		_, is := l.m.cfg.Record.Drain(m.ID)
		return is != r.Over
	})
	if err != nil {
		return failover.NoLonger(err)
	}
	l.m.log.Info("node drain", "host", r.Host, "over", r.Over, "reason", r.Reason, "user", c.User.Name, "from", c.Host)
	l.brain.DrainsChanged()
	if r.Over {
		return tell(wire.DrainProgress{Empty: true})
	}
	var told *wire.DrainProgress
	for {
		changed := l.m.cfg.Record.Changed()
		_, rosterChanged := l.brain.Roster() // there may be room elsewhere now
		now := wire.DrainProgress{Left: l.leftOn(ctx, m.ID, "moved from "+r.Host+": "+drain.String())}
		now.Empty = len(now.Left) == 0
		if told == nil || !reflect.DeepEqual(*told, now) {
			if err := tell(now); err != nil {
				return err
			}
			told = &now
		}
		if now.Empty || r.Once {
			return nil
		}
		select {
		case <-changed:
		case <-rosterChanged:
		case <-ctx.Done():
			return ctx.Err()
		}
		if l.m.leads.Load() != l {
			return fmt.Errorf("%s no longer leads: %w", l.m.cfg.Self.Host, wire.ErrRetry)
		}
	}
}

// leftOn lists what has ranks on a node, and begins to move what can be moved.
func (l *Leader) leftOn(ctx context.Context, id launcher.NodeID, why string) (left []wire.DrainLeft) {
	for _, j := range l.brain.Jobs() {
		here := slices.ContainsFunc(j.Plan.Nodes, func(p rendezvous.Place) bool { return p.Node == id })
		if j.Outcome != nil || !here || j.State == rendezvous.StateAgain || j.State == rendezvous.StateWaits ||
			j.State == rendezvous.StateAsleep {
			continue
		}
		one := wire.DrainLeft{Job: j.Spec.ID, Name: j.Spec.Name, User: j.Spec.User, Service: j.Spec.Service != nil}
		if one.Service {
			if err := l.brain.Move(ctx, j.Spec.ID, why); err != nil {
				one.Stays = err.Error()
			}
		}
		left = append(left, one)
	}
	return left
}
