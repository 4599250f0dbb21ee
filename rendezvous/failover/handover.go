package failover

import (
	"context"
	"fmt"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/consensus"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const (
	// asideWithin bounds a clean stop: a successor needs some tens of milliseconds.
	asideWithin = 2 * time.Second
	// askWithin bounds the question whether there is one, because its machine may just
	// have lost its power.
	askWithin = 500 * time.Millisecond
)

// PassOn says whether this node is about to leave: if it leads, it then passes on its
// leadership and its vote.
func (f *Failover) PassOn(leaving bool) { f.leaving.Store(leaving) }

// StepAside passes on, before the agent ends, the leadership and, if this node is the
// only voter, the vote. From here on it does not promise to succeed another node. If it
// has promised already it waits until its leadership has begun.
func (f *Failover) StepAside(ctx context.Context) {
	f.stopping.Store(true)
	if until := f.promised.Load(); until != 0 {
		ctx, cancel := context.WithDeadline(ctx, time.Unix(0, until))
		Until(ctx, func() bool { return f.promised.Load() == 0 || f.leader.Load() != nil && f.SoleVoter() })
		cancel()
	}
	if l := f.leader.Load(); l != nil {
		if heir := l.heir(); heir != "" {
			f.handOver(ctx, heir)
		}
	}
}

// handOver passes on the leadership and, if this node is the only voter, the vote.
func (f *Failover) handOver(ctx context.Context, heir launcher.NodeID) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, asideWithin)
	defer cancel()
	host, sole := f.cfg.Dial.HostOf(heir), f.SoleVoter()
	if sole {
		ask, cancel := context.WithTimeout(ctx, askWithin)
		err := wire.Succeed.Call(ask, f.cfg.Dial.Client(heir), wire.Empty{})
		cancel()
		if err != nil { // the vote stays here: the cluster waits for this machine
			f.log.Info("keep the vote", "node", host, "error", err)
			return
		}
	}
	f.PassOn(true)
	gone := func() bool {
		leader, _ := f.raft.Leader()
		return leader != string(f.cfg.Self.ID) && (!sole || !f.raft.Votes())
	}
	if !Until(ctx, gone) {
		f.PassOn(false)
		f.log.Warn("hand the leadership over: time-out", "node", host, "after", asideWithin)
		return
	}
	f.log.Info("leadership handed over", "node", host, "after", time.Since(began))
}

// succeed promises a pair's leader, which is about to stop, to take its place. A node
// that is stopping too must refuse: with two voters, of which one is gone, nothing can be
// decided.
func (f *Failover) succeed(_ context.Context, c wire.Caller, _ wire.Empty) (wire.Empty, error) {
	if c.Node != f.Leader() {
		return wire.Empty{}, fmt.Errorf("%w: %s does not lead", wire.ErrDenied, c.Host)
	}
	// In this order, because StepAside sets stopping and then reads promised.
	f.promised.Store(time.Now().Add(asideWithin).UnixNano())
	if f.stopping.Load() {
		f.promised.Store(0)
		return wire.Empty{}, fmt.Errorf("the agent of %s is being stopped as well: %w", f.cfg.Self.Host, wire.ErrDenied)
	}
	return wire.Empty{}, nil
}

// askTimeout bounds a question to one member: a member that is away must not delay the
// answers of the others.
const askTimeout = 3 * time.Second

// NodeRaft is this node's own part in raft.
func (f *Failover) NodeRaft(ctx context.Context, _ wire.Caller, _ wire.Empty) (wire.NodeRaft, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout/2)
	defer cancel()
	x := f.raft.Numbers(ctx)
	r := wire.NodeRaft{ID: f.cfg.Self.ID, Host: f.cfg.Self.Host, State: x.State.String(), Version: f.cfg.Self.Version,
		Epoch: f.epoch.N, Term: x.Term,
		Commit: x.Commit, Applied: x.Applied, First: x.First, Last: x.Last, LogBytes: x.LogBytes, Blank: f.blank.Load()}
	if x.State != consensus.Leader && !x.Contact.IsZero() {
		r.Contact = new(time.Since(x.Contact))
	}
	if x.SnapshotIndex > 0 {
		r.Snapshot = &wire.RaftSnapshot{Index: x.SnapshotIndex, Bytes: x.SnapshotBytes, Time: x.SnapshotTime}
	}
	return r, nil
}
