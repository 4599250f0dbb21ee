package node

import (
	"context"
	"fmt"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/consensus"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const (
	// asideWithin bounds a clean stop: a successor needs some tens of milliseconds.
	asideWithin = 2 * time.Second
	// askWithin bounds the question whether there is one: a machine that has just
	// lost its power is not waited for any longer.
	askWithin = 500 * time.Millisecond
)

// stepAside passes on what this node has before its agent ends: the leadership
// and, where it is the only one, the vote.
func (n *node) stepAside() {
	n.stopping.Store(true)
	n.keepPromise()
	heir := n.heir()
	if heir == "" {
		return
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(n.life, asideWithin)
	defer cancel()
	sole := n.soleVoter()
	if sole {
		ask, cancel := context.WithTimeout(ctx, askWithin)
		err := wire.Succeed.Call(ask, n.dial.Client(heir), wire.Empty{})
		cancel()
		if err != nil { // the vote stays here: the cluster waits for this machine
			n.log.Info("keep the vote", "node", n.hostOf(heir), "error", err)
			return
		}
	}
	n.leaving.Store(true) // tendMembers passes it on
	gone := func() bool {
		leader, _ := n.raft.Leader()
		return leader != string(n.m.Node) && (!sole || !n.raft.Votes())
	}
	if !n.until(ctx, gone) {
		n.leaving.Store(false)
		n.log.Warn("hand the leadership over: not done in time", "node", n.hostOf(heir), "after", asideWithin)
		return
	}
	n.log.Info("leadership handed over", "node", n.hostOf(heir), "after", time.Since(began))
}

// heir is a member that can take this leader's place; empty where there is none,
// or nothing to hand over.
func (n *node) heir() launcher.NodeID {
	l := n.leading.Load()
	if l == nil {
		return ""
	}
	roster, _ := l.Roster()
	ready := map[string]bool{}
	for _, m := range roster {
		ready[string(m.ID)] = m.Ready && !m.Blank && m.ID != n.m.Node
	}
	sole := n.soleVoter()
	for _, s := range n.raft.Members().Servers {
		// A pair's standby that has just come back may still count as silent; it is
		// asked before anything is changed.
		if ready[s.ID] && (sole || s.Role == consensus.Voter && s.Silent == 0) {
			return launcher.NodeID(s.ID)
		}
	}
	return ""
}

func (n *node) soleVoter() bool {
	voters, self := 0, false
	for _, s := range n.raft.Members().Servers {
		if s.Role == consensus.Voter {
			voters++
			self = self || s.ID == string(n.m.Node)
		}
	}
	return voters == 1 && self
}

// succeed promises a pair's leader, which is about to stop, to take its place.
// A node that stops as well must not: two votes of which one has gone decide
// nothing.
func (n *node) succeed(_ context.Context, c wire.Caller, _ wire.Empty) (wire.Empty, error) {
	if c.Node != n.leaderID() {
		return wire.Empty{}, fmt.Errorf("%w: %s does not lead", wire.ErrDenied, c.Host)
	}
	// In this order: stepAside sets the one and then reads the other.
	n.promised.Store(time.Now().Add(asideWithin).UnixNano())
	if n.stopping.Load() {
		n.promised.Store(0)
		return wire.Empty{}, fmt.Errorf("the agent of %s is being stopped as well: %w", n.m.Host, wire.ErrDenied)
	}
	return wire.Empty{}, nil
}

// keepPromise waits until this node has taken the place that it has promised to.
func (n *node) keepPromise() {
	until := n.promised.Load()
	if until == 0 {
		return
	}
	ctx, cancel := context.WithDeadline(n.life, time.Unix(0, until))
	defer cancel()
	n.until(ctx, func() bool { return n.promised.Load() == 0 || n.leading.Load() != nil && n.soleVoter() })
}

// until looks every few milliseconds, for a time that ctx bounds: not all that
// raft changes is told.
func (n *node) until(ctx context.Context, ok func() bool) bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}
