package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// keepCA takes the CA's key from the leader.
func (n *node) keepCA(_ context.Context, c wire.Caller, k wire.CAKey) (wire.Empty, error) {
	if c.Node != n.failover.Leader() {
		return wire.Empty{}, fmt.Errorf("%w: %s does not lead", wire.ErrDenied, c.Host)
	}
	ca, err := trust.ParseCA(k.PEM)
	if err != nil {
		return wire.Empty{}, err
	}
	if trust.PinOf(ca.Cert) != trust.PinOf(n.gate.Identity().CA) {
		return wire.Empty{}, fmt.Errorf("%w: the CA key is another cluster's", wire.ErrDenied)
	}
	return wire.Empty{}, trust.SaveCA(n.cfg.Paths.trust(), ca)
}

// leave takes this node out of the cluster. The member that is asked is the one
// that goes: a call that was passed on asks the leader to strike its sender.
func (n *node) leave(ctx context.Context, c wire.Caller, r wire.LeaveRequest) (wire.Empty, error) {
	if err := c.MustBeRoot("leave the cluster"); err != nil {
		return wire.Empty{}, err
	}
	if c.Forwarded() {
		n.parts(c.Node) // it is to hear the answer
		return wire.Empty{}, n.strike(ctx, c.Node)
	}
	for _, e := range n.agent.Ledger() {
		if e.Phase == launcher.PhaseStarted || e.Phase == launcher.PhasePrepared {
			return wire.Empty{}, fmt.Errorf("leave the cluster: job %s has ranks here: stop it first (`sparkrun stop %s`)", e.Job, e.Job)
		}
	}
	if r.Force {
		return wire.Empty{}, n.forget()
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	defer n.leaving.Store(false)
	for {
		err := n.askToLeave(ctx, c)
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
	n.goodBye()
	return wire.Empty{}, nil
}

// askToLeave has this node struck from the record by another: a leader passes
// the leadership on first, and stays until raft no longer needs its vote.
func (n *node) askToLeave(ctx context.Context, c wire.Caller) error {
	l := n.leading.Load()
	switch {
	case l == nil:
		return n.server().Forward(ctx, c, func(ctx context.Context, leader *wire.Client) error {
			return wire.Leave.Call(ctx, leader, wire.LeaveRequest{})
		})
	case len(n.record.Nodes()) <= 1:
		return l.Retire(n.m.Node) // the last one takes the cluster with it
	}
	n.leaving.Store(true)
	return fmt.Errorf("%s passes the leadership on: %w", n.m.Host, wire.ErrRetry)
}

// strike removes a member other than this one, which leads.
func (n *node) strike(ctx context.Context, id launcher.NodeID) error {
	l := n.leading.Load()
	if l == nil {
		return fmt.Errorf("%s does not lead: %w", n.m.Host, wire.ErrRetry)
	}
	if _, in := n.record.Node(id); in {
		if err := l.Retire(id); err != nil {
			return err
		}
		err := n.failover.Recorder(0).Apply(ctx, rendezvous.Entry{Kind: rendezvous.KindRemove, Remove: &id}, func() bool {
			_, in := n.record.Node(id)
			return !in
		})
		if err != nil {
			l.Unretire(id)
			return noLonger(err)
		}
	}
	return n.waitOutOfRaft(ctx, id)
}

// waitOutOfRaft waits until a member that was struck has no part in raft.
func (n *node) waitOutOfRaft(ctx context.Context, id launcher.NodeID) error {
	for {
		if _, in := n.failover.Roles()[id]; !in {
			return nil
		}
		if n.leading.Load() == nil {
			return fmt.Errorf("the leadership moved: %w", wire.ErrRetry)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("take %s out of raft: %w", n.dial.HostOf(id), ctx.Err())
		}
	}
}

// each runs fn for 0..k-1 side by side and waits for all.
func each(k int, fn func(i int)) {
	var wg sync.WaitGroup
	for i := range k {
		wg.Go(func() { fn(i) })
	}
	wg.Wait()
}
