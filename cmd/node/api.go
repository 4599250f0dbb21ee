package node

import (
	"slices"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// newServer answers all calls: those of members and newcomers as well.
func (n *node) newServer() *wire.Server {
	calls := slices.Concat(n.status.Calls(), n.members.Calls(), n.failover.Calls(), n.control.Calls(), n.survey.Calls(),
		n.checkup.Calls(), n.rollout.Calls(), n.ranks.Calls())
	return wire.NewServer(wire.ServerConfig{Leader: n.toLeader, Audit: n.audit.User}, calls...)
}

// Calls are what only a leader answers.
func (l *leadership) Calls() []wire.Call {
	return []wire.Call{wire.MarkDead.Serve(l.markDead), wire.Reunite.Serve(l.reunite)}
}
