package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

func (n *node) status(ctx context.Context, c wire.Caller, r wire.StatusRequest) (wire.Status, error) {
	if r.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.Timeout)
		defer cancel()
	}
	for {
		_, changed := n.leading.Watch()
		st, more, err := n.statusNow(ctx, c, r)
		if err != nil || ready(st) >= r.WaitNodes {
			st.Self = n.m.Host
			if i := slices.IndexFunc(st.Nodes, func(s wire.NodeStatus) bool { return s.ID == n.m.Node }); i >= 0 && n.noVote() != "" {
				st.Nodes[i].NoVote = n.noVote() // better than what the leader guesses
			}
			return st, err
		}
		select {
		case <-more:
		case <-changed:
		case <-ctx.Done():
			return st, fmt.Errorf("%w after %s: %d of %d nodes are ready%s", wire.ErrNotYet, r.Timeout, ready(st), r.WaitNodes, because(st.Problem))
		}
	}
}

func ready(st wire.Status) int {
	return len(slices.DeleteFunc(slices.Clone(st.Nodes), func(n wire.NodeStatus) bool { return n.State != "ready" }))
}

func because(problem string) string {
	if problem == "" {
		return ""
	}
	return ": " + problem
}

// statusNow is the leader's view, or without one this node's own. The channel
// is closed, or yields, when asking again makes sense.
func (n *node) statusNow(ctx context.Context, c wire.Caller, r wire.StatusRequest) (wire.Status, <-chan struct{}, error) {
	to, done, err := n.leader(ctx, c)
	defer done()
	switch {
	case err == nil && to.leadership != nil:
		roster, more := to.Roster()
		return n.statusOf(roster, to.fence), more, nil
	case err == nil:
		r.Timeout -= min(r.Timeout/10, time.Second) // its word on what is missing shall come before our own
		st, err := to.remote.Status(to.ctx, r)
		if err = to.passed(err); !errors.Is(err, wire.ErrRetry) {
			return st, nil, err
		}
		return n.statusAlone(n.better(err)), soon(ctx), nil
	case c.Node != "":
		return wire.Status{}, nil, err
	}
	return n.statusAlone(err), soon(ctx), nil
}

// soon is for waiting out an election, which nothing on this node may tell of.
func soon(ctx context.Context) <-chan struct{} {
	c := make(chan struct{})
	go func() { // ends by itself
		defer close(c)
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
	}()
	return c
}

func (n *node) statusOf(roster rendezvous.Roster, fence launcher.Fence) wire.Status {
	cluster, _, _ := n.record.Cluster()
	st := wire.Status{Cluster: cluster, Epoch: fence.N, EpochBy: fence.By, Term: fence.Term, Leader: n.m.Host}
	roles, voteless := n.roles(), n.voteless()
	for _, m := range roster {
		s := wire.NodeStatus{ID: m.ID, Host: m.Host, Addr: m.Addr.Addr(), State: "away", Since: m.Since,
			Role: roles[m.ID], Witness: m.Witness, Version: m.Version, Protocol: m.Protocol, Inventory: m.Inventory}
		switch {
		case m.Ready && m.Drained != "":
			s.State, s.Why = "drained", m.Drained
		case m.Ready:
			s.State = "ready"
		default:
			if l := n.leading.Load(); l != nil {
				if err := l.links.Apart(m.ID); err != nil {
					s.Why = err.Error()
				}
			}
		}
		if m.Ready && voteless[m.ID] {
			s.NoVote = fmt.Sprintf("its agent answers, its raft does not: `sparkrun status` on %s says why", m.Host)
		}
		s.FabricOnly = m.Ready && m.ID != n.m.Node && n.dial.Detour(string(m.ID))
		if m.ID == n.m.Node {
			s.Role = "leader"
		}
		st.Nodes = append(st.Nodes, s)
	}
	return st
}

// statusAlone is what this node knows without a leader: its copy of the
// record, and gossip's hints.
func (n *node) statusAlone(problem error) wire.Status {
	epoch := n.epoch()
	_, term := n.raft.Leader()
	st := wire.Status{Cluster: n.m.Cluster, Epoch: epoch.N, EpochBy: epoch.By, Term: term, Problem: problem.Error(), Heard: n.raft.LastContact()}
	roles, dead := n.roles(), n.gossipDead()
	inv := n.inventory.Load()
	for _, m := range n.record.Nodes() {
		s := wire.NodeStatus{ID: m.ID, Host: m.Host, Addr: m.Addr.Addr(), State: "unknown", Role: roles[m.ID], Witness: m.Witness}
		if since, gone := dead(m.ID); gone {
			s.State, s.Since = "away", since
		}
		if m.ID == n.m.Node {
			s.Inventory, s.Version, s.Protocol = inv, n.cfg.Version, n.cfg.speaks()
		}
		st.Nodes = append(st.Nodes, s)
	}
	return st
}

// voteless are voters and standbys that raft's heartbeats have not reached for a
// while. Shorter silences are elections and restarts.
func (n *node) voteless() map[launcher.NodeID]bool {
	out := map[launcher.NodeID]bool{}
	for _, s := range n.raft.Members().Servers {
		out[launcher.NodeID(s.ID)] = s.Silent > 10*time.Second
	}
	return out
}

func (n *node) roles() map[launcher.NodeID]string {
	out := map[launcher.NodeID]string{}
	for _, s := range n.raft.Members().Servers {
		out[launcher.NodeID(s.ID)] = s.Role.String()
	}
	return out
}
