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
	dead, latest, err := n.confirmed(ctx, r.Dead)
	if err != nil {
		return res, fmt.Errorf("take the cluster over: %w; nothing was changed", err)
	}
	e := launcher.Epoch{N: max(n.epoch().N, latest) + 1, By: n.m.Node}
	for _, p := range n.present.Load() {
		e.N = max(e.N, p.Meta.Epoch+1)
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
// against it, and the number of the latest epoch that others are in.
func (n *node) confirmed(ctx context.Context, hosts []string) (dead []launcher.NodeID, latest uint64, err error) {
	if n.leading.Load() != nil {
		return nil, 0, fmt.Errorf("%w: %s leads already, and launches; if %s is off, its jobs are tried again after `sudo sparkrun mark-dead %s`",
			wire.ErrDenied, n.m.Host, strings.Join(hosts, ", "), strings.Join(hosts, " "))
	}
	if leader, _ := n.raft.Leader(); leader != "" {
		return nil, 0, fmt.Errorf("%w: %s leads", wire.ErrDenied, n.hostOf(launcher.NodeID(leader)))
	}
	if !n.hasRecord() {
		return nil, 0, fmt.Errorf("%w: %s has no copy of the record: type it on a machine that `sparkrun status` calls standby or voter", wire.ErrDenied, n.m.Host)
	}
	var ids []launcher.NodeID
	for _, h := range hosts {
		i := slices.IndexFunc(n.record.Nodes(), func(m rendezvous.Node) bool { return m.Host == h })
		if i < 0 {
			return nil, 0, fmt.Errorf("host %s: %w", h, rendezvous.ErrNoNode)
		}
		m := n.record.Nodes()[i]
		if m.ID == n.m.Node {
			return nil, 0, fmt.Errorf("host %s is this machine: %w", h, launcher.ErrInvalid)
		}
		ids = append(ids, m.ID)
	}
	signs, blank := make([]string, len(ids)), make([]bool, len(ids))
	each(len(ids), func(i int) {
		if blank[i] = n.saysBlank(ctx, ids[i]); !blank[i] {
			signs[i] = n.signOfLife(ctx, ids[i], n.addressesNow(ids[i]))
		}
	})
	for i, sign := range signs {
		if sign != "" {
			return nil, 0, fmt.Errorf("%w: %s is not dead: %s; start its agent, or switch it off first", wire.ErrDenied, hosts[i], sign)
		}
		if !blank[i] {
			dead = append(dead, ids[i])
		}
	}
	latest, err = n.consent(ctx, dead)
	return dead, latest, err
}

// saysBlank asks a member whether it has lost its copy of the record: it leads
// and votes no more then, and need not be off. What runs there tells itself.
func (n *node) saysBlank(ctx context.Context, id launcher.NodeID) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	res, err := wire.Seen.Call(ctx, n.dial.Client(id), wire.SeenRequest{})
	return err == nil && res.Blank
}

// addressesNow lists where a member may be reached, by all that this node knows
// without a leader.
func (n *node) addressesNow(id launcher.NodeID) []netip.Addr {
	var addrs []netip.Addr
	if a, err := n.dial.Locate(id); err == nil {
		addrs = append(addrs, a.Addr())
	}
	if m, ok := n.record.Node(id); ok {
		addrs = append(addrs, m.Addr.Addr())
	}
	for _, door := range n.dial.Fabric(id) {
		addrs = append(addrs, door.Addr())
	}
	for _, j := range n.record.Jobs() { // where it met others, its fabric's too
		for _, p := range j.Plan.Nodes {
			if p.Node == id {
				addrs = append(addrs, p.Entry.Addr)
			}
		}
	}
	inv := n.inventory.Load()
	return others(addrs, inv)
}

// consent asks every member that nobody calls dead. One that answers may object;
// of those that do not, none may be a voter: together they might lead.
func (n *node) consent(ctx context.Context, dead []launcher.NodeID) (latest uint64, err error) {
	asked := slices.DeleteFunc(n.record.Nodes(), func(m rendezvous.Node) bool { return m.ID == n.m.Node || slices.Contains(dead, m.ID) })
	r := wire.ObjectionRequest{Dead: dead, Epoch: n.epoch()}
	r.Term, r.Index = n.raft.Last()
	ctx, cancel := context.WithTimeout(ctx, objectWithin)
	defer cancel()
	answers, errs := make([]wire.ObjectionResponse, len(asked)), make([]error, len(asked))
	each(len(asked), func(i int) { answers[i], errs[i] = wire.Objection.Call(ctx, n.dial.Client(asked[i].ID), r) })
	roles := n.roles()
	var objections, missing []string
	for i, m := range asked {
		latest = max(latest, answers[i].Epoch)
		switch {
		case answers[i].Why != "":
			objections = append(objections, m.Host+" "+answers[i].Why)
		case errs[i] != nil:
			n.log.Info("no word on the take-over", "node", m.Host, "error", errs[i])
			if roles[m.ID] == consensus.Voter.String() {
				missing = append(missing, m.Host)
			}
		}
	}
	switch {
	case len(objections) > 0:
		return 0, fmt.Errorf("%w: %s", wire.ErrDenied, strings.Join(objections, "; "))
	case len(missing) > 0:
		return 0, fmt.Errorf("%w: %s may be leading: each other voter has to answer, or to be confirmed dead (--confirm-dead %s)",
			wire.ErrDenied, strings.Join(missing, ", "), strings.Join(missing, " --confirm-dead "))
	}
	return latest, nil
}

// objectWithin bounds the question to the others: it has to be longer than
// dialTimeout, for which they look for a sign of life.
const objectWithin = 2 * dialTimeout

// objection is what this node knows against a take-over by another member.
func (n *node) objection(ctx context.Context, c wire.Caller, r wire.ObjectionRequest) (wire.ObjectionResponse, error) {
	return wire.ObjectionResponse{Epoch: n.epoch().N, Why: n.objects(ctx, c, r)}, nil
}

func (n *node) objects(ctx context.Context, c wire.Caller, r wire.ObjectionRequest) string {
	own := n.epoch()
	term, index := n.raft.Last()
	switch leader := n.leaderID(); {
	case leader == n.m.Node:
		return "leads"
	case leader != "":
		return fmt.Sprintf("hears %s, which leads: look at the network of %s", n.hostOf(leader), c.Host)
	case own.Compare(r.Epoch) > 0 && own.By == n.m.Node:
		return fmt.Sprintf("has led epoch %d since it took over: wait until it leads again", own.N)
	case own.Compare(r.Epoch) > 0 && own.By != c.Node && !slices.Contains(r.Dead, own.By):
		return fmt.Sprintf("is in epoch %d, which %s has led since it took over: confirm that one dead as well, or start it", own.N, n.hostOf(own.By))
	case own == r.Epoch && n.hasRecord() && (term > r.Term || term == r.Term && index > r.Index):
		return fmt.Sprintf("has a newer copy of the record than %s: type it there", c.Host)
	}
	signs := make([]string, len(r.Dead))
	each(len(r.Dead), func(i int) { signs[i] = n.signOfLife(ctx, r.Dead[i], n.addressesNow(r.Dead[i])) })
	for i, sign := range signs {
		if sign != "" {
			return fmt.Sprintf("sees that %s is not dead: %s", n.hostOf(r.Dead[i]), sign)
		}
	}
	return ""
}
