package membership

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// leave takes this node out of the cluster. The member that is asked is the one
// that goes: a call that was passed on asks the leader to strike its sender.
func (m *Membership) leave(ctx context.Context, c wire.Caller, r wire.LeaveRequest) (wire.Empty, error) {
	if err := c.MustBeRoot("leave the cluster"); err != nil {
		return wire.Empty{}, err
	}
	if c.Forwarded() {
		m.List.part(c.Node) // it is to hear the answer
		l := m.leads.Load()
		if l == nil {
			return wire.Empty{}, fmt.Errorf("%s does not lead: %w", m.cfg.Self.Host, wire.ErrRetry)
		}
		return wire.Empty{}, l.strike(ctx, c.Node)
	}
	for _, e := range m.cfg.Agent.Ledger() {
		if e.Phase == launcher.PhaseStarted || e.Phase == launcher.PhasePrepared {
			return wire.Empty{}, fmt.Errorf("leave the cluster: job %s has ranks here: stop it first (`sparkrun stop %s`)",
				e.Job, e.Job)
		}
	}
	if r.Force {
		return wire.Empty{}, m.forget()
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	defer m.cfg.Failover.PassOn(false)
	for {
		err := m.askToLeave(ctx, c)
		if err == nil {
			break
		}
		if !errors.Is(err, wire.ErrRetry) || ctx.Err() != nil {
			return wire.Empty{}, fmt.Errorf("leave the cluster: %w", err)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	m.goodBye()
	return wire.Empty{}, nil
}

// askToLeave has this node struck from the record by another: a leader passes
// the leadership on first, and stays until raft no longer needs its vote.
func (m *Membership) askToLeave(ctx context.Context, c wire.Caller) error {
	l := m.leads.Load()
	switch {
	case l == nil:
		leader, err := m.Leader()
		if err != nil {
			return err
		}
		return leader.Ask(ctx, c, func(ctx context.Context, leader *wire.Client) error {
			return wire.Leave.Call(ctx, leader, wire.LeaveRequest{})
		})
	case len(m.cfg.Record.Nodes()) <= 1:
		return l.brain.Retire(m.cfg.Self.ID) // the last one takes the cluster with it
	}
	m.cfg.Failover.PassOn(true)
	return fmt.Errorf("%s passes the leadership on: %w", m.cfg.Self.Host, wire.ErrRetry)
}

// Leader is the other node that leads.
func (m *Membership) Leader() (wire.Leader, error) {
	id := m.cfg.Failover.Leader()
	if id == "" || id == m.cfg.Self.ID { // or elected, but not ready yet
		return wire.Leader{}, m.NoLeader()
	}
	return wire.Leader{
		Host: m.cfg.Dial.HostOf(id), Client: m.cfg.Dial.Client(id),
		Gone: func(ctx context.Context) { m.cfg.Failover.AwaitOther(ctx, id) },
	}, nil
}

// beRemoved takes the leader's word that this node is a member no more: as after
// `leave`, its keys go and its agent ends.
func (m *Membership) beRemoved(_ context.Context, c wire.Caller, _ wire.Empty) (wire.Empty, error) {
	if err := m.mustLead(c); err != nil {
		return wire.Empty{}, err
	}
	m.cfg.Audit.Member("removed", c, m.cfg.Self.Host, nil)
	m.log.Warn("this machine is taken out of its cluster", "leader", c.Host)
	m.goodBye()
	return wire.Empty{}, nil
}

// goodBye ends this node's membership on its own side, once the answer is out.
func (m *Membership) goodBye() {
	if g := m.keys.gossip.Load(); g != nil {
		if err := g.Leave(2 * time.Second); err != nil {
			m.log.Warn("say good-bye by gossip", "error", err)
		}
	}
	m.leaveOnce.Do(func() { time.AfterFunc(100*time.Millisecond, func() { close(m.left) }) })
}

// forget is a leave without anybody's knowing: of a machine that the cluster has
// taken out while it was off, or whose cluster is gone.
func (m *Membership) forget() error {
	if m.leads.Load() != nil && len(m.cfg.Record.Nodes()) > 1 {
		return fmt.Errorf("leave the cluster: %w: this machine leads: leave without --force", wire.ErrDenied)
	}
	m.goodBye()
	return nil
}
