package failover

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/consensus"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// takeover makes this node the leader of a new epoch, on root's confirmation that every
// other voter is off. rendezvous/DESIGN.md says why this is safe, and when it is not.
func (f *Failover) takeover(
	ctx context.Context, c wire.Caller, r wire.TakeoverRequest,
) (wire.TakeoverResponse, error) {
	res := wire.TakeoverResponse{Host: f.cfg.Self.Host}
	if err := c.MustBeRoot("take the cluster over"); err != nil {
		return res, err
	}
	if c.Forwarded() {
		return res, fmt.Errorf("take the cluster over: %w: type it on the machine that is to lead", wire.ErrDenied)
	}
	dead, latest, err := f.confirmed(ctx, r.Dead)
	if err != nil {
		return res, fmt.Errorf("take the cluster over: %w; nothing was changed", err)
	}
	e := launcher.Epoch{N: max(f.epoch.N, latest) + 1, By: f.cfg.Self.ID}
	for _, p := range f.cfg.Present.Load() {
		e.N = max(e.N, p.Meta.Epoch+1)
	}
	res.Epoch = e.N
	if r.Check {
		return res, nil
	}
	f.log.Warn("takeover", "epoch", e.N, "dead", r.Dead, "user", c.User.Name)
	if err := f.enterEpoch(e, pendingTakeOver, dead); err != nil {
		return res, fmt.Errorf("take the cluster over: %w", err)
	}
	f.reopenSoon()
	return res, nil
}

// confirmed gives the nodes that a person confirms dead, unless one shows a sign of life,
// and the number of the latest epoch that others are in.
func (f *Failover) confirmed(ctx context.Context, hosts []string) (dead []launcher.NodeID, latest uint64, err error) {
	if f.leads.Load() {
		return nil, 0, fmt.Errorf("%w: %s leads already, and launches; if %s is off, its jobs are tried again after `sudo "+
			"sparkrun mark-dead %s`",
			wire.ErrConflict, f.cfg.Self.Host, strings.Join(hosts, ", "), strings.Join(hosts, " "))
	}
	if leader, _ := f.raft.Leader(); leader != "" {
		return nil, 0, fmt.Errorf("%w: %s leads", wire.ErrConflict, f.cfg.Dial.HostOf(launcher.NodeID(leader)))
	}
	if !f.HasRecord() {
		return nil, 0, fmt.Errorf("%w: %s has no copy of the record: type it on a machine that `sparkrun status` calls "+
			"standby or voter", wire.ErrConflict, f.cfg.Self.Host)
	}
	var ids []launcher.NodeID
	for _, h := range hosts {
		i := slices.IndexFunc(f.cfg.Record.Nodes(), func(m rendezvous.Node) bool { return m.Host == h })
		if i < 0 {
			return nil, 0, fmt.Errorf("host %s: %w", h, rendezvous.ErrNoNode)
		}
		m := f.cfg.Record.Nodes()[i]
		if m.ID == f.cfg.Self.ID {
			return nil, 0, fmt.Errorf("host %s is this machine: %w", h, launcher.ErrInvalid)
		}
		ids = append(ids, m.ID)
	}
	signs, blank := make([]string, len(ids)), make([]bool, len(ids))
	each(len(ids), func(i int) {
		if blank[i] = f.saysBlank(ctx, ids[i]); !blank[i] {
			signs[i] = f.SignOfLife(ctx, ids[i], f.addressesNow(ids[i]))
		}
	})
	for i, sign := range signs {
		if sign != "" {
			return nil, 0, fmt.Errorf("%w: %s is not dead: %s; start its agent, or switch it off first", wire.ErrConflict,
				hosts[i], sign)
		}
		if !blank[i] {
			dead = append(dead, ids[i])
		}
	}
	if latest, err = f.consent(ctx, dead); err == nil {
		err = ctx.Err() // who was not asked to the end has not agreed
	}
	return dead, latest, err
}

// saysBlank asks a member whether it has lost its copy of the record: such a member
// neither leads nor votes, so it need not be off. Its ledger says what runs there.
func (f *Failover) saysBlank(ctx context.Context, id launcher.NodeID) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	res, err := wire.Seen.Call(ctx, f.cfg.Dial.Client(id), wire.SeenRequest{})
	return err == nil && res.Blank
}

// addressesNow lists the addresses of a member that this node knows without a leader.
func (f *Failover) addressesNow(id launcher.NodeID) []netip.Addr {
	var addrs []netip.Addr
	if a, err := f.cfg.Dial.Locate(id); err == nil {
		addrs = append(addrs, a.Addr())
	}
	if m, ok := f.cfg.Record.Node(id); ok {
		addrs = append(addrs, m.Addr.Addr())
	}
	for _, route := range f.cfg.Dial.Fabric(id) {
		addrs = append(addrs, route.Addr())
	}
	for _, j := range f.cfg.Record.Jobs() { // also the fabric addresses at which jobs met
		for _, p := range j.Plan.Nodes {
			if p.Node == id {
				addrs = append(addrs, p.Entry.Addr)
			}
		}
	}
	inv := f.cfg.Inventory.Load()
	return others(addrs, inv)
}

// consent asks every member that is not confirmed dead. Those that answer may object;
// every voter must answer, because silent voters might lead together.
func (f *Failover) consent(ctx context.Context, dead []launcher.NodeID) (latest uint64, err error) {
	asked := slices.DeleteFunc(f.cfg.Record.Nodes(), func(m rendezvous.Node) bool {
		return m.ID == f.cfg.Self.ID || slices.Contains(dead, m.ID)
	})
	r := wire.ObjectionRequest{Dead: dead, Epoch: f.epoch}
	r.Term, r.Index = f.raft.Last()
	ctx, cancel := context.WithTimeout(ctx, objectWithin)
	defer cancel()
	answers, errs := make([]wire.ObjectionResponse, len(asked)), make([]error, len(asked))
	each(len(asked), func(i int) { answers[i], errs[i] = wire.Objection.Call(ctx, f.cfg.Dial.Client(asked[i].ID), r) })
	roles := f.Roles()
	var objections, missing []string
	for i, m := range asked {
		latest = max(latest, answers[i].Epoch)
		switch {
		case answers[i].Why != "":
			objections = append(objections, m.Host+" "+answers[i].Why)
		case errs[i] != nil:
			f.log.Info("no answer about the take-over", "node", m.Host, "error", errs[i])
			if roles[m.ID] == consensus.Voter.String() {
				missing = append(missing, m.Host)
			}
		}
	}
	switch {
	case len(objections) > 0:
		return 0, fmt.Errorf("%w: %s", wire.ErrConflict, strings.Join(objections, "; "))
	case len(missing) > 0:
		return 0, fmt.Errorf("%w: %s may be leading: each other voter has to answer or be confirmed dead "+
			"(--confirm-dead %s)",
			wire.ErrConflict, strings.Join(missing, ", "), strings.Join(missing, " --confirm-dead "))
	}
	return latest, nil
}

// objectWithin bounds the question to the others. They look for a sign of life for
// dialTimeout, so it has to be longer.
const objectWithin = 2 * dialTimeout

// objection answers whether this node objects to a take-over by another member.
func (f *Failover) objection(
	ctx context.Context, c wire.Caller, r wire.ObjectionRequest,
) (wire.ObjectionResponse, error) {
	return wire.ObjectionResponse{Epoch: f.epoch.N, Why: f.objects(ctx, c, r)}, nil
}

func (f *Failover) objects(ctx context.Context, c wire.Caller, r wire.ObjectionRequest) string {
	own := f.epoch
	term, index := f.raft.Last()
	switch leader := f.Leader(); {
	case leader == f.cfg.Self.ID:
		return "leads"
	case leader != "":
		return fmt.Sprintf("hears %s, which leads: look at the network of %s", f.cfg.Dial.HostOf(leader), c.Host)
	case own.Compare(r.Epoch) > 0 && own.By == f.cfg.Self.ID:
		return fmt.Sprintf("took over and has led epoch %d since: wait until it leads again", own.N)
	case own.Compare(r.Epoch) > 0 && own.By != c.Node && !slices.Contains(r.Dead, own.By):
		return fmt.Sprintf("is in epoch %d, which %s has led since it took over: confirm that machine dead as well, or "+
			"start "+
			"it", own.N, f.cfg.Dial.HostOf(own.By))
	case own == r.Epoch && f.HasRecord() && (term > r.Term || term == r.Term && index > r.Index):
		return fmt.Sprintf("has a newer copy of the record than %s: type it there", c.Host)
	}
	signs := make([]string, len(r.Dead))
	each(len(r.Dead), func(i int) { signs[i] = f.SignOfLife(ctx, r.Dead[i], f.addressesNow(r.Dead[i])) })
	for i, sign := range signs {
		if sign != "" {
			return fmt.Sprintf("finds that %s is not dead: %s", f.cfg.Dial.HostOf(r.Dead[i]), sign)
		}
	}
	return ""
}
