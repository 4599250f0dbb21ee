package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node/checkup"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// status is the leader's view.
func (l *leadership) status(ctx context.Context, _ wire.Caller, r wire.StatusRequest) (wire.Status, error) {
	return l.n.awaitNodes(ctx, r, func(context.Context) (wire.Status, <-chan struct{}, error) {
		if l.n.leading.Load() != l {
			return wire.Status{}, nil, fmt.Errorf("%s no longer leads: %w", l.n.m.Host, wire.ErrRetry)
		}
		roster, more := l.Roster()
		return l.statusOf(roster), more, nil
	})
}

// status asks the leader for its view, or without one gives this node's own, and adds what it knows better of itself.
func (n *node) status(ctx context.Context, _ wire.Caller, r wire.StatusRequest,
	ask wire.Ask[wire.StatusRequest, wire.Status]) (wire.Status, error) {
	st, err := n.awaitNodes(ctx, r, func(ctx context.Context) (wire.Status, <-chan struct{}, error) {
		r := r
		if n.leading.Load() == nil {
			r.Timeout -= min(r.Timeout/10, time.Second) // its word on what is missing shall come before our own
		}
		st, err := ask(ctx, r)
		if errors.Is(err, wire.ErrRetry) || errors.Is(err, wire.ErrNoLeader) {
			return n.statusAlone(n.better(err)), soon(ctx), nil
		}
		return st, nil, err
	})
	st.Self = n.m.Host
	if i := slices.IndexFunc(st.Nodes, func(s wire.NodeStatus) bool { return s.ID == n.m.Node }); i >= 0 && n.failover.NoVote() != "" {
		st.Nodes[i].NoVote = n.failover.NoVote() // better than what the leader guesses
	}
	return st, err
}

// statusFor is what status answers to c.
func (n *node) statusFor(ctx context.Context, c wire.Caller, r wire.StatusRequest) (wire.Status, error) {
	return wire.ShowStatus.Call(ctx, n.server().As(c), r)
}

// awaitNodes asks until so many nodes are ready. The channel is closed, or yields, when asking again makes sense.
func (n *node) awaitNodes(ctx context.Context, r wire.StatusRequest,
	now func(context.Context) (wire.Status, <-chan struct{}, error)) (wire.Status, error) {
	if r.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.Timeout)
		defer cancel()
	}
	for {
		_, changed := n.leading.Watch()
		st, more, err := now(ctx)
		if err != nil || ready(st) >= r.WaitNodes {
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

func (l *leadership) statusOf(roster rendezvous.Roster) wire.Status {
	n := l.n
	cluster, _, _ := n.record.Cluster()
	st := wire.Status{Cluster: cluster, Epoch: l.fence.N, EpochBy: l.fence.By, Term: l.fence.Term, Self: n.m.Host, Leader: n.m.Host}
	roles, voteless := n.failover.Roles(), n.voteless()
	for _, m := range roster {
		s := wire.NodeStatus{ID: m.ID, Host: m.Host, Addr: m.Addr.Addr(), State: "away", Since: m.Since,
			Role: roles[m.ID], Witness: m.Witness, Version: m.Version, Protocol: m.Protocol, Inventory: m.Inventory}
		switch {
		case m.Ready && m.Drained != "":
			s.State, s.Why = "drained", m.Drained
		case m.Ready:
			s.State = "ready"
		default:
			if err := l.links.Apart(m.ID); err != nil {
				s.Why = err.Error()
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
	epoch := n.failover.Epoch()
	_, term := n.failover.Raft().Leader()
	st := wire.Status{Cluster: n.m.Cluster, Epoch: epoch.N, EpochBy: epoch.By, Term: term, Problem: problem.Error(), Heard: n.failover.Raft().LastContact()}
	roles, dead := n.failover.Roles(), n.gossipDead()
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
	for _, s := range n.failover.Raft().Members().Servers {
		out[launcher.NodeID(s.ID)] = s.Silent > 10*time.Second
	}
	return out
}

// fabricOnly names the hosts that are reached over the fabric alone.
func (l *leadership) fabricOnly() []string {
	roster, _ := l.Roster()
	var hosts []string
	for _, f := range checkup.FabricOnly(l.statusOf(roster)) {
		hosts = append(hosts, f.Host)
	}
	return hosts
}
