package node

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/consensus"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// takeover makes this node the leader of a new epoch, on root's word that every
// other voter is off. rendezvous/DESIGN.md says why that is safe, and when not.
func (n *node) takeover(ctx context.Context, c wire.Caller, r wire.TakeoverRequest) (wire.TakeoverResponse, error) {
	res := wire.TakeoverResponse{Host: n.m.Host}
	if err := mustBeRoot(c, "take the cluster over"); err != nil {
		return res, err
	}
	if c.Forwarded() {
		return res, fmt.Errorf("take the cluster over: %w: type it on the machine that is to lead", wire.ErrDenied)
	}
	dead, err := n.confirmed(ctx, r.Dead)
	if err != nil {
		return res, fmt.Errorf("take the cluster over: %w; nothing was changed", err)
	}
	e := launcher.Epoch{N: n.epoch().N + 1, By: n.m.Node}
	if g := n.gossip.Load(); g != nil {
		for _, p := range g.Peers() {
			e.N = max(e.N, p.Meta.Epoch+1)
		}
	}
	res.Epoch = e.N
	if r.Check {
		return res, nil
	}
	n.log.Warn("takeover", "epoch", e.N, "dead", r.Dead, "user", c.User.Name)
	if err := n.enterEpoch(e, pendingTakeOver, dead); err != nil {
		return res, fmt.Errorf("take the cluster over: %w", err)
	}
	n.reopenOnce.Do(func() { time.AfterFunc(100*time.Millisecond, func() { close(n.reopen) }) }) // after the answer is out
	return res, nil
}

// confirmed gives the nodes that a person calls dead, once nothing speaks
// against it.
func (n *node) confirmed(ctx context.Context, hosts []string) ([]launcher.NodeID, error) {
	if leader, _ := n.raft.Leader(); n.leading.Load() != nil || leader != "" {
		return nil, fmt.Errorf("%w: %s leads", wire.ErrDenied, n.hostOf(launcher.NodeID(leader)))
	}
	if !n.hasRecord() {
		return nil, fmt.Errorf("%w: %s has no copy of the record: type it on a machine that `sparkrun status` calls standby or voter", wire.ErrDenied, n.m.Host)
	}
	var ids []launcher.NodeID
	for _, h := range hosts {
		i := slices.IndexFunc(n.record.Nodes(), func(m rendezvous.Node) bool { return m.Host == h })
		if i < 0 {
			return nil, fmt.Errorf("host %s: %w", h, rendezvous.ErrNoNode)
		}
		m := n.record.Nodes()[i]
		if m.ID == n.m.Node {
			return nil, fmt.Errorf("host %s is this machine: %w", h, launcher.ErrInvalid)
		}
		ids = append(ids, m.ID)
	}
	var missing []string
	for _, s := range n.raft.Members().Servers {
		id := launcher.NodeID(s.ID)
		if s.Role == consensus.Voter && id != n.m.Node && !slices.Contains(ids, id) {
			missing = append(missing, n.hostOf(id))
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%w: %s may be leading: each other voter has to be confirmed dead (--confirm-dead %s)",
			wire.ErrDenied, strings.Join(missing, ", "), strings.Join(missing, " --confirm-dead "))
	}
	signs, blank := make([]string, len(ids)), make([]bool, len(ids))
	each(len(ids), func(i int) {
		if blank[i] = n.saysBlank(ctx, ids[i]); !blank[i] {
			signs[i] = n.signOfLife(ctx, ids[i])
		}
	})
	var dead []launcher.NodeID
	for i, sign := range signs {
		if sign != "" {
			return nil, fmt.Errorf("%w: %s is not dead: %s; start its agent, or switch it off first", wire.ErrDenied, hosts[i], sign)
		}
		if !blank[i] {
			dead = append(dead, ids[i])
		}
	}
	return dead, nil
}

// saysBlank asks a member whether it has lost its copy of the record: it leads
// and votes no more then, and need not be off. What runs there tells itself.
func (n *node) saysBlank(ctx context.Context, id launcher.NodeID) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	res, err := n.peers.client(id).Seen(ctx, wire.SeenRequest{})
	return err == nil && res.Blank
}

// signOfLife says what shows that a member is there; empty when nothing does.
func (n *node) signOfLife(ctx context.Context, id launcher.NodeID) string {
	inv, _ := n.view()
	if n.gossipAlive()[id] {
		return "it gossips, or did until some seconds ago"
	}
	if inv.Cabling != nil {
		for _, s := range inv.Cabling.Sightings {
			if s.Peer.Node == string(id) {
				return "its cable probe answers on " + s.NIC
			}
		}
	}
	var addrs []netip.Addr
	if a, err := n.locate(id); err == nil {
		addrs = append(addrs, a.Addr())
	}
	if m, ok := n.record.Node(id); ok {
		addrs = append(addrs, m.Addr.Addr())
	}
	for _, door := range n.fabricOf(id) {
		addrs = append(addrs, door.Addr())
	}
	for _, j := range n.record.Jobs() { // where it met others, its fabric's too
		for _, p := range j.Plan.Nodes {
			if p.Node == id {
				addrs = append(addrs, p.Entry.Addr)
			}
		}
	}
	if a := n.anyAnswers(ctx, others(addrs, inv)); a.IsValid() {
		return fmt.Sprintf("the machine answers at %s", a)
	}
	return ""
}
