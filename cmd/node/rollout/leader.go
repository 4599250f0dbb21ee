package rollout

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/netplan"
	"github.com/sparkrun/sparkrun/envgen/topology"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/failover"
	"github.com/sparkrun/sparkrun/rendezvous/lead"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// LeaderConfig of the leader's part.
type LeaderConfig struct {
	Node     *Node        // this node's own part
	Brain    *lead.Leader // has the roster
	Dial     *dial.Dialer
	Failover *failover.Failover
	Logger   *slog.Logger
}

// Leader coordinates changes as long as this node leads. When it ends, its calls to the
// nodes end, and with them the change.
type Leader struct{ cfg LeaderConfig }

// Lead makes the leader's part.
func Lead(cfg LeaderConfig) *Leader { return &Leader{cfg} }

// Calls are what the leader answers.
func (l *Leader) Calls() []wire.Call {
	return []wire.Call{wire.Netplan.Serve(l.Plan), wire.NetplanApply.Serve(l.Apply)}
}

// draft is a plan with everything that is needed to apply it.
type draft struct {
	plan    wire.NetplanPlan
	members []member
	// allocation is to be recorded before anything is applied; nil where it is recorded
	// already.
	allocation json.RawMessage
}

// Plan answers what the addresses shall be. The leader does it since it has the
// inventories of all.
func (l *Leader) Plan(ctx context.Context, c wire.Caller, r wire.NetplanRequest) (wire.NetplanPlan, error) {
	if r.Compare || r.Rollback {
		if err := c.MustBeRoot("compare netplan files"); err != nil {
			return wire.NetplanPlan{}, err
		}
	}
	d, err := l.draft(ctx, r)
	return d.plan, err
}

// Apply puts the plan in force on all nodes or on none.
func (l *Leader) Apply(ctx context.Context, c wire.Caller, r wire.NetplanApplyRequest,
	tell func(wire.NetplanProgress) error) error {
	if err := c.MustBeRoot("apply netplan"); err != nil {
		return err
	}
	if !l.cfg.Node.leads.CompareAndSwap(false, true) {
		return errors.New("apply netplan: another change is under way: wait for its end, a minute or two")
	}
	defer l.cfg.Node.leads.Store(false)
	d, err := l.draft(ctx, wire.NetplanRequest{Compare: true, Rollback: r.Rollback, Force: r.Force})
	if err != nil {
		return err
	}
	if d.plan.Digest != r.Digest {
		return errors.New(
			"apply netplan: the cabling or a file has changed since the difference was shown: look at it again")
	}
	if err := refusals(d.plan); err != nil {
		return err
	}
	if err := l.allocate(ctx, d.allocation); err != nil {
		return err
	}
	id := newChange()
	for i := range d.members {
		d.members[i].order.Change, d.members[i].order.Grace = id, r.Grace
	}
	l.cfg.Logger.Info("netplan change begins", "change", id, "nodes", len(d.members), "rollback", r.Rollback,
		"user", c.User.Name, "from", c.Host)
	all := change{members: d.members, tell: func(p wire.NetplanProgress) {
		_ = tell(p) // a caller that is gone has ended ctx, which calls the change off
	}}
	err = all.run(ctx)
	l.cfg.Logger.Info("netplan change has ended", "change", id, "error", err)
	return err
}

// Holds says why this node, as the leader, lets no job begin now; empty where one may.
func (n *Node) Holds() string {
	if n.leads.Load() {
		return "the nodes' netplan files are being changed"
	}
	return ""
}

// refusals joins the reasons of all nodes that refuse the change.
func refusals(p wire.NetplanPlan) error {
	var why []string
	for _, n := range p.Nodes {
		if n.Verdict != nil && n.Verdict.Refusal != "" {
			why = append(why, n.Host+": "+n.Verdict.Refusal)
		}
	}
	if len(why) == 0 {
		return nil
	}
	return fmt.Errorf("apply netplan: refused, nothing was touched: %s", strings.Join(why, "; "))
}

// draft reads all nodes, plans, and has the nodes compare.
func (l *Leader) draft(ctx context.Context, r wire.NetplanRequest) (draft, error) {
	roster, _ := l.cfg.Brain.Roster()
	var views, away []envgen.NodeView
	for _, m := range roster {
		if m.Witness {
			continue // it has no part in the fabric
		}
		v := envgen.NodeView{ID: string(m.ID), Host: m.Host, Mgmt: m.Addr.Addr(), Inventory: m.Inventory}
		if m.Ready {
			views = append(views, v)
		} else {
			away = append(away, v)
		}
	}
	facts, err := l.facts(ctx, views)
	if err != nil {
		return draft{}, err
	}
	d := draft{}
	if r.Rollback {
		err = l.draftRollback(&d, views, facts)
	} else {
		err = l.draftAddresses(&d, views, away, facts)
	}
	if err != nil {
		return d, err
	}
	for _, v := range away {
		d.plan.Notes = append(d.plan.Notes, v.Host+" is away and stays as it is: apply again once it is back")
	}
	if r.Compare || r.Rollback {
		if err := d.compare(ctx, r.Force); err != nil {
			return d, err
		}
	}
	d.plan.Digest = digestOf(d.plan.Nodes)
	return d, nil
}

// facts asks all nodes side by side; the answers are by node id.
func (l *Leader) facts(ctx context.Context, views []envgen.NodeView) (map[string]wire.NetplanFacts, error) {
	facts := make([]wire.NetplanFacts, len(views))
	errs := make([]error, len(views))
	each(len(views), func(i int) {
		member := l.calls(launcher.NodeID(views[i].ID))
		if facts[i], errs[i] = wire.NetplanRead.Call(ctx, member, wire.Empty{}); errs[i] != nil {
			errs[i] = fmt.Errorf("read the netplan files of %s: %w", views[i].Host, errs[i])
		}
	})
	out := map[string]wire.NetplanFacts{}
	for i, v := range views {
		out[v.ID] = facts[i]
	}
	return out, errors.Join(errs...)
}

func (l *Leader) draftAddresses(d *draft, views, away []envgen.NodeView, facts map[string]wire.NetplanFacts) error {
	t, err := topology.Derive(topology.Observed(views))
	if err != nil {
		return err
	}
	held := map[string][]netplan.Held{}
	for id, f := range facts {
		for _, h := range f.Held {
			held[id] = append(held[id], netplan.Held(h))
		}
	}
	recorded := l.cfg.Node.cfg.Record.Netplan()
	plan, err := Addresses(t, views, away, recorded, held)
	if err != nil {
		return err
	}
	d.plan.Why, d.plan.Notes = t.Why, plan.Notes
	for _, f := range plan.Files {
		d.add(l, f.Node, f.Host, orderOf(f))
	}
	allocation, err := json.Marshal(plan.Allocation)
	if err != nil {
		return fmt.Errorf("encode netplan allocation: %w", err)
	}
	if !bytes.Equal(allocation, recorded) {
		d.allocation = allocation
	}
	return nil
}

// draftRollback plans the way back to the state before the last change, on the nodes that
// took part in it.
func (l *Leader) draftRollback(d *draft, views []envgen.NodeView, facts map[string]wire.NetplanFacts) error {
	change, ids := lastChange(facts)
	if change == "" {
		return errors.New("roll back netplan: no node here has a change to undo: sparkrun has made none")
	}
	begun := facts[ids[0]].Begun
	d.plan.Why = fmt.Sprintf("undoes the change of %s", begun.Format("2006-01-02 15:04:05 MST"))
	for _, v := range views {
		if slices.Contains(ids, v.ID) {
			d.add(l, v.ID, v.Host, wire.NetplanOrder{Undo: true})
		}
	}
	return nil
}

func (d *draft) add(l *Leader, id, host string, o wire.NetplanOrder) {
	d.plan.Nodes = append(d.plan.Nodes, wire.NetplanNode{Node: launcher.NodeID(id), Host: host, Text: o.Text})
	d.members = append(d.members, member{host: host, calls: l.calls(launcher.NodeID(id)), order: o})
}

// compare asks each node for its verdict.
func (d *draft) compare(ctx context.Context, force bool) error {
	errs := make([]error, len(d.members))
	each(len(d.members), func(i int) {
		m := &d.members[i]
		m.order.Force = force
		v, err := wire.NetplanCheck.Call(ctx, m.calls, m.order)
		if err != nil {
			errs[i] = fmt.Errorf("compare the netplan file of %s: %w", m.host, err)
			return
		}
		d.plan.Nodes[i].Verdict = &v
	})
	return errors.Join(errs...)
}

// allocate records the allocation before any node has it in force: an address once given
// must not go to another port. nil: it is recorded already.
func (l *Leader) allocate(ctx context.Context, allocation json.RawMessage) error {
	if allocation == nil {
		return l.cfg.Failover.Raft().Verify(ctx) // proves that this node, whose orders the others obey, still leads
	}
	entry := rendezvous.Entry{Kind: rendezvous.KindNetplan, Netplan: &rendezvous.Allocated{Allocation: allocation}}
	return l.cfg.Failover.Recorder(0).Apply(ctx, entry, func() bool {
		return bytes.Equal(l.cfg.Node.cfg.Record.Netplan(), allocation)
	})
}

// calls gives a client of a member; for this node it needs no network.
func (l *Leader) calls(id launcher.NodeID) *wire.Client {
	if own := l.cfg.Node; id == own.cfg.Self {
		return wire.NewServer(wire.ServerConfig{}, own.Calls()...).As(wire.Caller{Node: own.cfg.Self, Host: own.cfg.Host})
	}
	return l.cfg.Dial.Client(id)
}

// each runs fn for 0..k-1 side by side and waits for all.
func each(k int, fn func(i int)) {
	var wg sync.WaitGroup
	for i := range k {
		wg.Go(func() { fn(i) })
	}
	wg.Wait()
}
