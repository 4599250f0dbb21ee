package membership

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// leave removes a node from the cluster: the one that the user asked. A call that was
// passed on asks the leader to strike its sender.
func (m *Membership) leave(ctx context.Context, c wire.Caller, r wire.LeaveRequest) (wire.Empty, error) {
	if err := c.MustBeRoot("leave the cluster"); err != nil {
		return wire.Empty{}, err
	}
	if c.Forwarded() {
		m.List.part(c.Node) // it has to get the answer
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
		if !errors.Is(err, wire.ErrRetry) {
			m.askForList(ctx) // they may have removed this node while it did not hear of it
		}
		if m.removed.Load() {
			return wire.Empty{}, m.forget()
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

// askToLeave asks another node to strike this one from the record. If this node leads it
// passes the leadership on first, and stays until raft no longer needs its vote.
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
		return l.brain.Retire(m.cfg.Self.ID) // the last member ends the cluster
	}
	m.cfg.Failover.PassOn(true)
	return fmt.Errorf("%s passes the leadership on: %w", m.cfg.Self.Host, wire.ErrRetry)
}

// Leader is the leader, if that is another node.
func (m *Membership) Leader() (wire.Leader, error) {
	id := m.cfg.Failover.Leader()
	if id == "" || id == m.cfg.Self.ID { // or this node is elected but not ready yet
		return wire.Leader{}, m.NoLeader()
	}
	return wire.Leader{
		Host: m.cfg.Dial.HostOf(id), Client: m.cfg.Dial.Client(id),
		Gone: func(ctx context.Context) { m.cfg.Failover.AwaitOther(ctx, id) },
	}, nil
}

// beRemoved is called by the leader when this node is no longer a member: as after
// `leave`, its keys are deleted and its agent ends.
func (m *Membership) beRemoved(_ context.Context, c wire.Caller, _ wire.Empty) (wire.Empty, error) {
	if err := m.mustLead(c); err != nil {
		return wire.Empty{}, err
	}
	m.cfg.Audit.Member("removed", c, m.cfg.Self.Host, nil)
	m.log.Warn("this machine was removed from its cluster", "leader", c.Host)
	m.goodBye()
	return wire.Empty{}, nil
}

// goodByeWithin bounds the good-bye by gossip.
const goodByeWithin = 4 * time.Second

// goodBye ends the membership on this node once the answer is out.
func (m *Membership) goodBye() {
	if g := m.keys.gossip.Load(); g != nil {
		if err := g.Leave(goodByeWithin); err != nil {
			m.log.Warn("say good-bye by gossip", "error", err)
		}
	}
	m.leaveOnce.Do(func() { time.AfterFunc(100*time.Millisecond, func() { close(m.left) }) })
}

// forget is a leave of which nobody is told: for a machine that the cluster has removed, or
// whose cluster is gone.
func (m *Membership) forget() error {
	if m.leads.Load() != nil && len(m.cfg.Record.Nodes()) > 1 {
		return fmt.Errorf("leave the cluster: %w: this machine leads: leave without --force", wire.ErrDenied)
	}
	m.goodBye()
	return nil
}
