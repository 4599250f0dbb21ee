package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/consensus"
	"github.com/sparkrun/sparkrun/rendezvous/lead"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// newServer answers all calls: those of members and newcomers as well.
func (n *node) newServer() *wire.Server {
	calls := slices.Concat(n.Calls(), n.failover.Calls(), n.control.Calls(), n.survey.Calls(), n.checkup.Calls(),
		n.rollout.Calls(), n.ranks.Calls())
	return wire.NewServer(wire.ServerConfig{Host: n.m.Host, Leader: n.leader, Over: noLonger, Audit: n.audit.user}, calls...)
}

// Calls are what this node answers whether it leads or not; leadership.Calls are the others.
func (n *node) Calls() []wire.Call {
	return []wire.Call{
		wire.ShowStatus.Around(n.status), wire.Follow.Around(n.follow),
		wire.Token.Around(n.tokenFrom),
		wire.Leave.Serve(n.leave), wire.Refresh.Serve(n.refresh),
		wire.ShowRaft.Serve(n.raftStatus),

		wire.KeepCA.Serve(n.keepCA), wire.DropCA.Serve(n.dropCA),
		wire.KeepTrusted.Serve(n.keepTrusted), wire.AskTrusted.Serve(n.askTrusted), wire.BeRemoved.Serve(n.beRemoved),

		wire.RenewExpired.Serve(n.renewExpired),
	}
}

// Calls are what only a leader answers.
func (l *leadership) Calls() []wire.Call {
	return []wire.Call{
		wire.ShowStatus.Serve(l.status), wire.Follow.Serve(l.follow), wire.Token.Serve(l.token),
		wire.RemoveNode.Serve(l.removeNode), wire.MarkDead.Serve(l.markDead),
		wire.Clients.Serve(l.clients), wire.RemoveClients.Serve(l.removeClients),
		wire.SaveRaft.Serve(l.raftSnapshot),
		wire.Renew.Serve(l.renew), wire.Reunite.Serve(l.reunite),
		wire.Join.Serve(l.join), wire.Login.Serve(l.login),
	}
}

// leader is the other node that leads.
func (n *node) leader() (wire.Leader, error) {
	id := n.failover.Leader()
	if id == "" || id == n.m.Node { // or elected, but not ready yet
		return wire.Leader{}, n.noLeader()
	}
	return wire.Leader{Host: n.dial.HostOf(id), Client: n.dial.Client(id), Gone: func(ctx context.Context) {
		// Raft knows of another leader before a dead one's connection breaks.
		for {
			changed := n.failover.Raft().LeaderChanged()
			if now, _ := n.failover.Raft().Leader(); now != "" && launcher.NodeID(now) != id {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}}, nil
}

// noLeader says in one line what is wrong and what helps: ErrNoLeader where
// waiting does not, ErrRetry where an election is under way.
func (n *node) noLeader() error {
	if n.shunned.Load() {
		return fmt.Errorf("%w: the other members refuse this machine: %s", wire.ErrNoLeader, shunnedText)
	}
	return n.failover.NoLeader()
}

func (n *node) gossipAlive() map[launcher.NodeID]bool {
	alive := map[launcher.NodeID]bool{n.m.Node: true}
	for _, p := range n.present.Load() {
		if p.Alive {
			alive[launcher.NodeID(p.ID)] = true
		}
	}
	return alive
}

// gossipDead tells of a member whether gossip misses it, and since when: the zero
// time where this agent has never heard it.
func (n *node) gossipDead() func(launcher.NodeID) (since time.Time, gone bool) {
	alive, since := n.gossipAlive(), map[launcher.NodeID]time.Time{}
	for _, p := range n.present.Load() {
		since[launcher.NodeID(p.ID)] = p.Since
	}
	return func(id launcher.NodeID) (time.Time, bool) { return since[id], !alive[id] }
}

// noLonger turns the end of a leadership under an answer into ErrRetry.
func noLonger(err error) error {
	if errors.Is(err, lead.ErrUnknownRetry) {
		return fmt.Errorf("%w: %w", wire.ErrUnknownRetry, err)
	}
	if errors.Is(err, lead.ErrOver) || errors.Is(err, consensus.ErrNotLeader) || errors.Is(err, consensus.ErrNoLeader) {
		return fmt.Errorf("%w: %w", wire.ErrRetry, err)
	}
	return err
}

// jobsFor lists all jobs for c.
func (n *node) jobsFor(ctx context.Context, c wire.Caller, r wire.Empty) (wire.JobsResponse, error) {
	return wire.Jobs.Call(ctx, n.server().As(c), r)
}

// better says why there is no leader, where that is known by now, in place of
// what asking the last one gave. The control stream of a leader that lost its power
// is missed 10 s after raft's word; until then it counts only as long as the leader
// answers or gossips. Silence of gossip alone is no evidence: it runs on management only.
func (n *node) better(err error) error {
	elected, _ := n.failover.Raft().Leader()
	last := n.failover.Leader()
	switch {
	case n.leading.Load() != nil, elected != "":
		return err
	case last == "", errors.Is(err, wire.ErrUnreachable) && !n.gossipAlive()[last] && len(n.failover.Raft().Members().Servers) > 0:
		return n.noLeader()
	}
	return err
}
