package node

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/failover"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// markDead takes root's word that a machine which does not answer runs nothing.
// One that shows any sign of life is not taken for dead on anybody's word.
func (l *leadership) markDead(ctx context.Context, c wire.Caller, r wire.MarkDeadRequest) (wire.Acknowledged, error) {
	n := l.n
	if err := c.MustBeRoot("mark a machine dead"); err != nil {
		return wire.Acknowledged{}, err
	}
	roster, _ := l.Roster()
	i := slices.IndexFunc(roster, func(m rendezvous.Member) bool { return m.Host == r.Host })
	if i < 0 {
		var known []string
		for _, m := range roster {
			known = append(known, m.Host)
		}
		return wire.Acknowledged{}, fmt.Errorf("mark %s dead: %w: the cluster has %s", r.Host, rendezvous.ErrNoNode, strings.Join(known, ", "))
	}
	m := roster[i]
	if m.Ready {
		return wire.Acknowledged{}, fmt.Errorf("mark %s dead: %w: its agent answers, and tells what runs there", r.Host, wire.ErrDenied)
	}
	inv := n.inventory.Load()
	if sign := n.failover.SignOfLife(ctx, m.ID, failover.AddressesOf(roster, rendezvous.Place{Node: m.ID, Host: m.Host}, inv)); sign != "" {
		return wire.Acknowledged{}, fmt.Errorf("mark %s dead: %w: %s; start its agent, or switch it off first", r.Host, wire.ErrDenied, sign)
	}
	if err := l.MarkDead(m.ID); err != nil {
		return wire.Acknowledged{}, err
	}
	n.log.Warn("marked dead", "host", r.Host, "user", c.User.Name, "from", c.Host)
	if err := n.recordDeath(ctx, l, m.ID); err != nil {
		return wire.Acknowledged{}, err
	}
	return wire.Acknowledged{OnlyOn: n.failover.OnlyHere(ctx)}, n.failover.Dead(m.ID)
}

// recordDeath keeps the word for later leaders.
func (n *node) recordDeath(ctx context.Context, l *leadership, id launcher.NodeID) error {
	return n.failover.Recorder(0).Apply(ctx, rendezvous.Death{Node: id, Boots: l.Boots(id)}.Entry(), func() bool { return false })
}

// noteHeard ends the words about machines that have shown themselves since.
func (n *node) noteHeard(ctx context.Context, roster rendezvous.Roster) {
	for _, d := range n.record.Deaths() {
		if !slices.ContainsFunc(roster, func(m rendezvous.Member) bool { return m.ID == d.Node && m.Ready }) {
			continue
		}
		if err := n.failover.Recorder(0).Apply(ctx, rendezvous.Death{Node: d.Node, Heard: true}.Entry(), func() bool { return false }); err != nil {
			n.log.Warn("record that a machine is not dead", "node", n.dial.HostOf(d.Node), "error", err)
		}
	}
}
