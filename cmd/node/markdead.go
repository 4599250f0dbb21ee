package node

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// markDead takes root's word that a machine which does not answer runs nothing.
// One that shows any sign of life is not taken for dead on anybody's word.
func (n *node) markDead(ctx context.Context, c wire.Caller, r wire.MarkDeadRequest) (wire.Acknowledged, error) {
	if err := mustBeRoot(c, "mark a machine dead"); err != nil {
		return wire.Acknowledged{}, err
	}
	to, done, err := n.leader(ctx, c)
	defer done()
	if err != nil {
		return wire.Acknowledged{}, err
	}
	if to.leadership == nil {
		res, err := to.remote.MarkDead(to.ctx, r)
		return res, to.passed(err)
	}
	roster, _ := to.Roster()
	i := slices.IndexFunc(roster, func(m rendezvous.Member) bool { return m.Host == r.Host })
	if i < 0 {
		var known []string
		for _, m := range roster {
			known = append(known, m.Host)
		}
		return wire.Acknowledged{}, fmt.Errorf("mark %s dead: %w: the cluster has %s", r.Host, rendezvous.ErrNoNode, strings.Join(known, ", "))
	}
	m := roster[i]
	sign := "its agent answers"
	if !m.Ready {
		inv, _ := n.view()
		sign = n.signOfLife(ctx, m.ID, addressesOf(roster, rendezvous.Place{Node: m.ID, Host: m.Host}, inv))
	}
	if sign != "" {
		return wire.Acknowledged{}, fmt.Errorf("mark %s dead: %w: %s; start its agent, or switch it off first", r.Host, wire.ErrDenied, sign)
	}
	if err := to.MarkDead(m.ID); err != nil {
		return wire.Acknowledged{}, led(err)
	}
	n.log.Warn("marked dead", "host", r.Host, "user", c.User.Name, "from", c.Host)
	return wire.Acknowledged{OnlyOn: n.onlyHere(ctx)}, n.met.buries(m.ID)
}
