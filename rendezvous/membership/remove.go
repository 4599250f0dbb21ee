package membership

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/failover"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const (
	removeWithin = 25 * time.Second
	// tellRemoved bounds the call to the machine that is removed; it need not answer. One that does says good-bye first.
	tellRemoved = goodByeWithin + 3*time.Second
)

// removeNode removes a member for good, whether it answers or not: see
// rendezvous/trust/DESIGN.md, "One removal".
func (l *Leader) removeNode(
	ctx context.Context, c wire.Caller, r wire.RemoveNodeRequest,
) (res wire.RemoveNodeResponse, err error) {
	if err := c.MustBeRoot("remove " + r.Host); err != nil {
		return res, err
	}
	ctx, cancel := context.WithTimeout(ctx, removeWithin)
	defer cancel()
	roster, _ := l.brain.Roster()
	gone, err := named(roster, r.Host)
	if err != nil {
		return res, fmt.Errorf("remove %s: %w", r.Host, err)
	}
	if gone.ID == l.m.cfg.Self.ID {
		if !r.Force { // else the leadership might move for a removal that the next leader refuses
			if err := l.brain.Retire(gone.ID); err != nil {
				return res, fmt.Errorf("remove %s: %w", r.Host, err)
			}
			defer l.brain.Unretire(gone.ID)
		}
		return res, l.handOn(ctx, len(roster))
	}
	if err := l.endJobsOn(ctx, gone, r.Force, "its machine was removed by "+c.User.Name); err != nil {
		return res, fmt.Errorf("remove %s: %w", r.Host, err)
	}
	if gone.Ready {
		told, cancel := context.WithTimeout(ctx, tellRemoved)
		err := wire.BeRemoved.Call(told, l.m.cfg.Dial.Client(gone.ID), wire.Empty{})
		cancel()
		if res.Told = err == nil; err != nil {
			l.m.log.Warn("tell a machine that it is removed", "node", gone.Host, "error", err)
		}
	}
	if err := l.strike(ctx, gone.ID); err != nil {
		return res, fmt.Errorf("remove %s: %w", r.Host, err)
	}
	l.m.log.Warn("node removed", "host", r.Host, "node", gone.ID, "user", c.User.Name, "from", c.Host, "told", res.Told)
	res.OnlyOn = l.m.cfg.Failover.OnlyHere(ctx)
	return res, nil
}

// named finds a member by its host's name.
func named(roster rendezvous.Roster, host string) (rendezvous.Member, error) {
	var known []string
	for _, m := range roster {
		if m.Host == host {
			return m, nil
		}
		known = append(known, m.Host)
	}
	return rendezvous.Member{}, fmt.Errorf("%w: the cluster has %s", rendezvous.ErrNoNode, strings.Join(known, ", "))
}

// handOn is for a leader that is to be removed itself: the next leader does it.
func (l *Leader) handOn(ctx context.Context, members int) error {
	m, host := l.m, l.m.cfg.Self.Host
	if members < 2 {
		return fmt.Errorf("remove %s: %w: it is the cluster's last machine: `sparkrun leave` there ends the cluster",
			host, wire.ErrDenied)
	}
	m.cfg.Failover.PassOn(true)
	defer m.cfg.Failover.PassOn(false)
	for {
		leads, changed := m.leads.Watch()
		if leads != l {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("remove %s: it leads, and no other node takes over: %w", host, ctx.Err())
		}
	}
	return fmt.Errorf("%s has passed the leadership on: %w", host, wire.ErrRetry)
}

// endJobsOn makes sure that no job has ranks on a member; force ends the jobs that have.
func (l *Leader) endJobsOn(ctx context.Context, gone rendezvous.Member, force bool, why string) error {
	if force && !gone.Ready { // no need to wait for it: the user who removes it says that it is off
		at := rendezvous.Place{Node: gone.ID, Host: gone.Host}
		addrs := failover.AddressesOf(rendezvous.Roster{gone}, at, l.m.cfg.Inventory.Load())
		if sign := l.m.cfg.Failover.SignOfLife(ctx, gone.ID, addrs); sign == "" {
			if err := l.brain.MarkDead(gone.ID); err != nil {
				return failover.NoLonger(err)
			}
		}
	}
	asked := false
	for {
		err := l.brain.Retire(gone.ID)
		if err == nil || !force {
			return err
		}
		if !asked {
			for _, j := range l.m.cfg.Record.Jobs() {
				on := slices.ContainsFunc(j.Plan.Nodes, func(p rendezvous.Place) bool { return p.Node == gone.ID })
				if j.Outcome == nil && on {
					if err := l.brain.Stop(ctx, j.Spec.ID, 0, why); err != nil {
						return failover.NoLonger(err)
					}
				}
			}
			asked = true
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w; it was asked to end, and has not: %w", err, ctx.Err())
		}
	}
}

// strike removes another member from the record; this node leads.
func (l *Leader) strike(ctx context.Context, id launcher.NodeID) error {
	if _, in := l.m.cfg.Record.Node(id); in {
		if err := l.brain.Retire(id); err != nil {
			return err
		}
		err := l.m.record(ctx, rendezvous.Entry{Kind: rendezvous.KindRemove, Remove: &id}, func() bool {
			_, in := l.m.cfg.Record.Node(id)
			return !in
		})
		if err != nil {
			l.brain.Unretire(id)
			return failover.NoLonger(err)
		}
	}
	return l.waitOutOfRaft(ctx, id)
}

// waitOutOfRaft waits until a member that was struck has no part in raft.
func (l *Leader) waitOutOfRaft(ctx context.Context, id launcher.NodeID) error {
	for {
		if _, in := l.m.cfg.Failover.Roles()[id]; !in {
			return nil
		}
		if l.m.leads.Load() != l {
			return fmt.Errorf("the leadership moved: %w", wire.ErrRetry)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("take %s out of raft: %w", l.m.cfg.Dial.HostOf(id), ctx.Err())
		}
	}
}
