package node

import (
	"bytes"
	"context"
	"encoding/json"

	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// netplanPlan answers what the addresses shall be.
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
	return to.rollout.Plan(ctx, c, r)
}

// netplanApply puts the plan in force on all nodes or on none.
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
	return to.rollout.Apply(ctx, c, r, tell)
}

// allocate records an allocation; nil is recorded already.
func (n *node) allocate(ctx context.Context, allocation json.RawMessage) error {
	if allocation == nil {
		return led(n.raft.Verify(ctx)) // still the leader, whom the nodes obey
	}
	return led(recorder{n: n}.apply(ctx, rendezvous.Entry{Kind: rendezvous.KindNetplan, Netplan: &rendezvous.Allocated{Allocation: allocation}},
		func() bool { return bytes.Equal(n.record.Netplan(), allocation) }))
}
