package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/failover"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const (
	removeWithin = 25 * time.Second
	// tellRemoved bounds telling the machine that is taken out; it need not answer.
	tellRemoved = 3 * time.Second
)

// removeNode takes a member out for good, whether it answers or not: see
// rendezvous/trust/DESIGN.md, "One removal".
func (l *leadership) removeNode(ctx context.Context, c wire.Caller, r wire.RemoveNodeRequest) (res wire.RemoveNodeResponse, err error) {
	n := l.n
	if err := c.MustBeRoot("remove " + r.Host); err != nil {
		return res, err
	}
	ctx, cancel := context.WithTimeout(ctx, removeWithin)
	defer cancel()
	roster, _ := l.Roster()
	i := slices.IndexFunc(roster, func(m rendezvous.Member) bool { return m.Host == r.Host })
	if i < 0 {
		var known []string
		for _, m := range roster {
			known = append(known, m.Host)
		}
		return res, fmt.Errorf("remove %s: %w: the cluster has %s", r.Host, rendezvous.ErrNoNode, strings.Join(known, ", "))
	}
	m := roster[i]
	if m.ID == n.m.Node {
		if !r.Force { // or the leadership would move for a removal that the next one refuses
			if err := l.Retire(m.ID); err != nil {
				return res, fmt.Errorf("remove %s: %w", r.Host, err)
			}
			defer l.Unretire(m.ID)
		}
		return res, n.handOn(ctx, len(roster))
	}
	if err := n.endJobsOn(ctx, l, m, r.Force, "its machine was removed by "+c.User.Name); err != nil {
		return res, fmt.Errorf("remove %s: %w", r.Host, err)
	}
	if m.Ready {
		told, cancel := context.WithTimeout(ctx, tellRemoved)
		err := wire.BeRemoved.Call(told, n.dial.Client(m.ID), wire.Empty{})
		cancel()
		if res.Told = err == nil; err != nil {
			n.log.Warn("tell a machine that it is removed", "node", m.Host, "error", err)
		}
	}
	if err := n.strike(ctx, m.ID); err != nil {
		return res, fmt.Errorf("remove %s: %w", r.Host, err)
	}
	n.log.Warn("node removed", "host", r.Host, "node", m.ID, "user", c.User.Name, "from", c.Host, "told", res.Told)
	res.OnlyOn = n.failover.OnlyHere(ctx)
	return res, nil
}

// handOn is for a leader that is to be taken out itself: the next one does it.
func (n *node) handOn(ctx context.Context, members int) error {
	if members < 2 {
		return fmt.Errorf("remove %s: %w: it is the cluster's last machine: `sparkrun leave` there ends the cluster", n.m.Host, wire.ErrDenied)
	}
	n.leaving.Store(true)
	defer n.leaving.Store(false)
	for {
		leads, changed := n.leading.Watch()
		if leads == nil {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("remove %s: it leads, and nobody takes its place: %w", n.m.Host, ctx.Err())
		}
	}
	return fmt.Errorf("%s has passed the leadership on: %w", n.m.Host, wire.ErrRetry)
}

// endJobsOn makes sure that no job has ranks on a member; force ends those that
// have.
func (n *node) endJobsOn(ctx context.Context, l *leadership, m rendezvous.Member, force bool, why string) error {
	if force && !m.Ready { // it need not be waited for: whoever removes it says so
		inv := n.inventory.Load()
		if sign := n.failover.SignOfLife(ctx, m.ID, failover.AddressesOf(rendezvous.Roster{m}, rendezvous.Place{Node: m.ID, Host: m.Host}, inv)); sign == "" {
			if err := l.MarkDead(m.ID); err != nil {
				return noLonger(err)
			}
		}
	}
	asked := false
	for {
		err := l.Retire(m.ID)
		if err == nil || !force {
			return err
		}
		if !asked {
			for _, j := range n.record.Jobs() {
				on := slices.ContainsFunc(j.Plan.Nodes, func(p rendezvous.Place) bool { return p.Node == m.ID })
				if j.Outcome == nil && on {
					if err := l.Stop(ctx, j.Spec.ID, 0, why); err != nil {
						return noLonger(err)
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

// beRemoved takes the leader's word that this node is a member no more: as after
// `leave`, its keys go and its agent ends.
func (n *node) beRemoved(ctx context.Context, c wire.Caller, _ wire.Empty) (wire.Empty, error) {
	if c.Node != n.failover.Leader() {
		return wire.Empty{}, fmt.Errorf("%w: %s does not lead", wire.ErrDenied, c.Host)
	}
	n.audit.member("removed", c, n.m.Host, nil)
	n.log.Warn("this machine is taken out of its cluster", "leader", c.Host)
	n.goodBye()
	return wire.Empty{}, nil
}

// goodBye ends this node's membership on its own side, once the answer is out.
func (n *node) goodBye() {
	if g := n.gossip.Load(); g != nil {
		if err := g.Leave(2 * time.Second); err != nil {
			n.log.Warn("say good-bye by gossip", "error", err)
		}
	}
	n.leaveOnce.Do(func() { time.AfterFunc(100*time.Millisecond, func() { close(n.left) }) })
}

// forget is a leave without anybody's knowing: of a machine that the cluster has
// taken out while it was off, or whose cluster is gone.
func (n *node) forget() error {
	if n.leading.Load() != nil && len(n.record.Nodes()) > 1 {
		return fmt.Errorf("leave the cluster: %w: this machine leads: leave without --force", wire.ErrDenied)
	}
	n.goodBye()
	return nil
}
