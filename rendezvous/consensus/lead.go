package consensus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hashicorp/raft"
)

// errLost is the cause of a lead function's ctx when leadership is lost.
var errLost = errors.New("leadership is lost")

// stuckAfter is how long a leader may refuse every entry because of a transfer of
// leadership that ended long ago (raft #696).
const stuckAfter = 10 * time.Second

// State tells what the node is now.
func (n *Raft) State() State {
	select {
	case <-n.done:
		return Stopped
	default:
	}
	switch n.r.State() {
	case raft.Leader:
		return Leader
	case raft.Candidate:
		return Candidate
	}
	return Follower
}

// Leader returns the leader's node id, "" if none is known, and this node's term. It may
// be out of date: only Verify proves a leadership.
func (n *Raft) Leader() (nodeID string, term uint64) {
	term = n.r.CurrentTerm()
	if n.State() == Stopped {
		return "", term
	}
	_, id := n.r.LeaderWithID()
	return string(id), term
}

// leading tells whether the node leads, and in which term. A leadership cannot be lost
// and regained within one term, so equal terms mean the same leadership.
func (n *Raft) leading() (term uint64, ok bool) {
	for {
		term = n.r.CurrentTerm()
		ok = n.State() == Leader
		if n.r.CurrentTerm() == term {
			return term, ok
		}
	}
}

// AppliedIndex is the index of the last entry that the machine has applied.
func (n *Raft) AppliedIndex() uint64 { return n.fsm.applied.Load() }

// Last is the end of this node's copy of the log, committed or not; zeros if there is
// none. Of two copies the one with the higher term, then the higher index, is newer.
func (n *Raft) Last() (term, index uint64) {
	stats := n.r.Stats()
	term, _ = strconv.ParseUint(stats["last_log_term"], 10, 64) // raft gives it as text
	index, _ = strconv.ParseUint(stats["last_log_index"], 10, 64)
	return term, index
}

// Unapplied tells whether this node's copy of the log ends with entries that its machine
// has not applied: after a start these are the last ones, until a leader says whether
// they are committed.
func (n *Raft) Unapplied() bool {
	_, last := n.Last()
	for i := last; i > n.AppliedIndex(); i-- {
		var l raft.Log
		if err := n.store.disk.GetLog(i, &l); err != nil {
			return false // compacted or truncated
		}
		if l.Type == raft.LogCommand {
			return true
		}
	}
	return false
}

// LastContact is when the leader was last heard, the zero time if never. On
// the leader it is now.
func (n *Raft) LastContact() time.Time {
	if _, ok := n.leading(); ok {
		return time.Now()
	}
	return n.r.LastContact()
}

// LeaderChanged returns a channel that is closed when State or Leader changes. Get it
// before looking, so that no change is missed.
func (n *Raft) LeaderChanged() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changed
}

// watch drains raft's reports and reads the state at each one: reports may be dropped or
// late, the state is always right.
func (n *Raft) watch(notify <-chan bool, obs <-chan raft.Observation) {
	for {
		select {
		case <-notify:
		case o := <-obs:
			n.noteHeartbeat(o.Data)
		case <-n.done:
			n.publish()
			return
		}
		n.publish()
	}
}

// publish wakes the waiters if the view has changed.
func (n *Raft) publish() {
	// Reading the view under the lock keeps an older view from replacing a newer one.
	n.mu.Lock()
	defer n.mu.Unlock()
	v := view{state: n.State()}
	v.leader, v.term = n.Leader()
	if v == n.last {
		return
	}
	if v.state == Leader && (n.last.state != Leader || n.last.term != v.term) {
		clear(n.silent) // a new leadership starts counting heartbeats again
	}
	if leads := v.state == Leader; leads != (n.last.state == Leader) {
		n.pace(leads)
	}
	n.log.Info("raft leadership", "state", v.state.String(), "leader", v.leader, "term", v.term)
	n.last = v
	close(n.changed)
	n.changed = make(chan struct{})
}

// pace sets how often this node sends heartbeats: raft sends one each tenth of the time
// after which it would stand for election itself. A leader does not stand, so its own
// time may be long; a node that leads no more gets the ordinary one, and raft looks at
// once at how long it has heard nobody.
func (n *Raft) pace(leads bool) {
	rc := n.r.ReloadableConfig()
	rc.HeartbeatTimeout, rc.ElectionTimeout = n.cfg.Heartbeat, n.cfg.Election
	if leads {
		rc.HeartbeatTimeout = max(n.cfg.Heartbeat, beatsPerTimeout*n.cfg.Beat)
		rc.ElectionTimeout = max(n.cfg.Election, rc.HeartbeatTimeout) // raft refuses less
	}
	if err := n.r.ReloadConfig(rc); err != nil {
		n.log.Error("set the pace of heartbeats", "error", err)
	}
}

// beatsPerTimeout is raft's: it sends a heartbeat each tenth of HeartbeatTimeout to twice
// that.
const beatsPerTimeout = 10

// Run calls lead each time this node has become the leader and has applied everything
// that earlier leaders recorded, with a ctx that ends with the leadership. The next call
// waits for the last to return. If lead returns while the node still leads, the
// leadership is passed on; if that is not possible, lead is called again after a second.
// Run returns when ctx ends, with its cause, or when the node has stopped, with
// ErrStopped.
func (n *Raft) Run(ctx context.Context, lead func(ctx context.Context, term uint64) error) error {
	for {
		changed := n.LeaderChanged()
		if term, ok := n.leading(); ok {
			n.leadOnce(ctx, term, lead)
			if ctx.Err() == nil && n.State() != Stopped {
				continue
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-n.done:
			return n.stopped()
		case <-changed:
		}
	}
}

// leadOnce is one leadership, from its Barrier to its end.
func (n *Raft) leadOnce(ctx context.Context, term uint64, lead func(ctx context.Context, term uint64) error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan struct{})
	defer func() { <-ended }()
	defer cancel(nil)
	go func() { // joined by ended
		defer close(ended)
		n.untilLost(ctx, term)
		cancel(errLost)
	}()

	if !n.becomeReady(ctx, term) {
		return
	}
	n.log.Info("lead", "term", term)
	err := lead(ctx, term)
	if ctx.Err() != nil {
		n.log.Info("stop leading", "term", term, "cause", context.Cause(ctx), "err", err)
		return
	}
	// A leader whose lead function has returned is worse than none.
	n.log.Error("lead function returned before its leadership ended", "term", term, "err", err)
	n.handOver()
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
}

// untilLost returns when the node no longer leads in term, or ctx ends.
func (n *Raft) untilLost(ctx context.Context, term uint64) {
	for {
		changed := n.LeaderChanged()
		if t, ok := n.leading(); !ok || t != term {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// becomeReady waits until this node has applied every entry of earlier terms.
func (n *Raft) becomeReady(ctx context.Context, term uint64) bool {
	begin := time.Now()
	for {
		err := n.barrier(ctx)
		if err == nil {
			return ctx.Err() == nil
		}
		if ctx.Err() != nil {
			return false
		}
		if errors.Is(err, raft.ErrLeadershipTransferInProgress) && time.Since(begin) > stuckAfter {
			n.fail(fmt.Errorf("lead in term %d: a transfer of leadership never ended: %w", term, ErrReopen))
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// transferTo makes another voter the leader.
func (n *Raft) transferTo(ctx context.Context, id string) error {
	err := n.await(ctx, func() error {
		return n.r.LeadershipTransferToServer(raft.ServerID(id), raft.ServerAddress(id)).Error()
	})
	if err != nil {
		return fmt.Errorf("pass leadership to %s: %w", id, err)
	}
	return nil
}
