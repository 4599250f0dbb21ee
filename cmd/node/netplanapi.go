package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/netplan"
	"github.com/sparkrun/sparkrun/envgen/topology"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// netplanDraft is a plan with all that its application needs.
type netplanDraft struct {
	plan  wire.NetplanPlan
	parts []netplanPart
	// allocation is to be recorded before anything is applied; nil where it is
	// recorded already.
	allocation json.RawMessage
}

// netplanPlan answers what the addresses shall be: the leader, for it has the
// inventories of all.
func (n *node) netplanPlan(ctx context.Context, c wire.Caller, r wire.NetplanRequest) (wire.NetplanPlan, error) {
	if r.Compare || r.Rollback {
		if err := mustBeRoot(c, "compare netplan files"); err != nil {
			return wire.NetplanPlan{}, err
		}
	}
	to, done, err := n.leader(ctx, c)
	defer done()
	if err != nil {
		return wire.NetplanPlan{}, err
	}
	if to.leadership == nil {
		res, err := to.remote.Netplan(to.ctx, r)
		return res, to.passed(err)
	}
	d, err := n.netplanDraft(ctx, to.leadership, r)
	return d.plan, err
}

// netplanApply puts the plan in force on all nodes or on none. The leader
// coordinates: it records the allocation, every launch passes it, and its own
// end ends the calls by which the nodes hold on to the change.
func (n *node) netplanApply(ctx context.Context, c wire.Caller, r wire.NetplanApplyRequest, tell func(wire.NetplanProgress) error) error {
	if err := mustBeRoot(c, "apply netplan"); err != nil {
		return err
	}
	to, done, err := n.leader(ctx, c)
	defer done()
	if err != nil {
		return err
	}
	if to.leadership == nil {
		return to.passed(to.remote.NetplanApply(to.ctx, r, tell))
	}
	if !n.netplanBegun.CompareAndSwap(false, true) {
		return errors.New("apply netplan: another change is under way: wait for its end, a minute or two")
	}
	defer n.netplanBegun.Store(false)
	d, err := n.netplanDraft(ctx, to.leadership, wire.NetplanRequest{Compare: true, Rollback: r.Rollback, Force: r.Force})
	if err != nil {
		return err
	}
	if d.plan.Digest != r.Digest {
		return errors.New("apply netplan: the cabling or a file has changed since the difference was shown: look at it again")
	}
	if err := refusals(d.plan); err != nil {
		return err
	}
	if err := n.recordAllocation(ctx, d.allocation); err != nil {
		return led(err)
	}
	change := newChange()
	for i := range d.parts {
		d.parts[i].order.Change, d.parts[i].order.Grace = change, r.Grace
	}
	n.log.Info("netplan change begins", "change", change, "nodes", len(d.parts), "rollback", r.Rollback, "user", c.User.Name, "from", c.Host)
	run := netplanRun{parts: d.parts, tell: func(p wire.NetplanProgress) {
		_ = tell(p) // who no longer listens has ended ctx, which calls it off
	}}
	err = run.run(ctx)
	n.log.Info("netplan change has ended", "change", change, "error", err)
	return err
}

// netplanHolds says why this leader begins no job now; empty where it may.
func (n *node) netplanHolds() string {
	if n.netplanBegun.Load() {
		return "the nodes' netplan files are being changed"
	}
	return ""
}

// refusals are the reasons of all nodes that would not do it.
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

// netplanDraft reads all nodes, plans, and has the nodes compare.
func (n *node) netplanDraft(ctx context.Context, l *leadership, r wire.NetplanRequest) (netplanDraft, error) {
	roster, _ := l.Roster()
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
	facts, err := n.netplanFacts(ctx, views)
	if err != nil {
		return netplanDraft{}, err
	}
	d := netplanDraft{}
	if r.Rollback {
		err = n.draftRollback(&d, views, facts)
	} else {
		err = n.draftAddresses(&d, views, away, facts)
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

// netplanFacts asks all nodes side by side, by node id.
func (n *node) netplanFacts(ctx context.Context, views []envgen.NodeView) (map[string]wire.NetplanFacts, error) {
	facts := make([]wire.NetplanFacts, len(views))
	errs := make([]error, len(views))
	each(len(views), func(i int) {
		if facts[i], errs[i] = n.netplanCalls(views[i].ID).NetplanRead(ctx); errs[i] != nil {
			errs[i] = fmt.Errorf("read the netplan files of %s: %w", views[i].Host, errs[i])
		}
	})
	out := map[string]wire.NetplanFacts{}
	for i, v := range views {
		out[v.ID] = facts[i]
	}
	return out, errors.Join(errs...)
}

func (n *node) draftAddresses(d *netplanDraft, views, away []envgen.NodeView, facts map[string]wire.NetplanFacts) error {
	t, err := topology.Derive(topology.Observed(views))
	if err != nil {
		return err
	}
	in, err := netplanInput(t, views, away)
	if err != nil {
		return err
	}
	d.plan.Why = t.Why
	var members []string
	for _, v := range slices.Concat(views, away) {
		members = append(members, v.ID)
	}
	recorded := n.record.Netplan()
	if in.Previous, err = remembered(recorded, members); err != nil {
		return err
	}
	held := map[string][]netplan.Held{}
	for id, f := range facts {
		for _, h := range f.Held {
			held[id] = append(held[id], netplan.Held(h))
		}
	}
	plan, err := addresses(in, held)
	if err != nil {
		return err
	}
	d.plan.Notes = slices.Concat(plan.Notes, unanswered(t, in.Links))
	for _, f := range plan.Files {
		d.add(n, f.Node, f.Host, orderOf(f))
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

// draftRollback goes back to what was there before the last change, on the nodes
// that had a part in it.
func (n *node) draftRollback(d *netplanDraft, views []envgen.NodeView, facts map[string]wire.NetplanFacts) error {
	change, ids := lastChange(facts)
	if change == "" {
		return errors.New("roll back netplan: no node here has a change to undo: sparkrun has made none")
	}
	begun := facts[ids[0]].Begun
	d.plan.Why = fmt.Sprintf("undoes the change of %s", begun.Format("2006-01-02 15:04:05 MST"))
	for _, v := range views {
		if slices.Contains(ids, v.ID) {
			d.add(n, v.ID, v.Host, wire.NetplanOrder{Undo: true})
		}
	}
	return nil
}

func (d *netplanDraft) add(n *node, id, host string, o wire.NetplanOrder) {
	d.plan.Nodes = append(d.plan.Nodes, wire.NetplanNode{Node: launcher.NodeID(id), Host: host, Text: o.Text})
	d.parts = append(d.parts, netplanPart{host: host, calls: n.netplanCalls(id), order: o})
}

// compare asks each node for its verdict.
func (d *netplanDraft) compare(ctx context.Context, force bool) error {
	errs := make([]error, len(d.parts))
	each(len(d.parts), func(i int) {
		p := &d.parts[i]
		p.order.Force = force
		v, err := p.calls.NetplanCheck(ctx, p.order)
		if err != nil {
			errs[i] = fmt.Errorf("compare the netplan file of %s: %w", p.host, err)
			return
		}
		d.plan.Nodes[i].Verdict = &v
	})
	return errors.Join(errs...)
}

// netplanCalls reaches a member, this one without a network.
func (n *node) netplanCalls(id string) netplanCalls {
	if launcher.NodeID(id) == n.m.Node {
		return ownNetplan{side: n.netplan, as: wire.Caller{Node: n.m.Node, Host: n.m.Host}}
	}
	return n.peers.client(launcher.NodeID(id))
}

// recordAllocation has the record remember it, before any node has it in force:
// an address once given must not go to another.
func (n *node) recordAllocation(ctx context.Context, allocation json.RawMessage) error {
	if allocation == nil {
		return n.raft.Verify(ctx) // still the leader, whom the nodes obey
	}
	return recorder{n: n}.apply(ctx, rendezvous.Entry{Kind: rendezvous.KindNetplan, Netplan: &rendezvous.Allocated{Allocation: allocation}},
		func() bool { return bytes.Equal(n.record.Netplan(), allocation) })
}
