package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/consensus"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// errReopen ends a run that begins anew at once, in another epoch.
var errReopen = errors.New("the node opens anew")

// epoch is the one this node is in; it changes only when it opens anew.
func (n *node) epoch() launcher.Epoch { return n.opened }

// raftProto is the raft protocol of an epoch. Nodes of two epochs find no common
// one: their logs must never meet, whatever their terms are.
func raftProto(e launcher.Epoch) string {
	if e.By == "" {
		return protoRaft
	}
	return fmt.Sprintf("%s+%d.%s", protoRaft, e.N, e.By)
}

// settleEpoch finishes a change of epochs that was begun, before raft is opened.
// Done twice it does no harm.
func (n *node) settleEpoch(cfg consensus.Config) error {
	switch n.m.Pending {
	case pendingTakeOver:
		n.log.Warn("take the cluster over", "epoch", n.m.Epoch, "dead", n.m.Dead)
		cfg.Machine, cfg.Bootstrap = machine{rendezvous.NewRecord()}, false
		if err := consensus.Recover(cfg); err != nil {
			return err
		}
		if err := n.met.buries(n.m.Dead...); err != nil {
			return err
		}
	case pendingGiveWay:
		n.log.Warn("give way to a later epoch", "epoch", n.m.Epoch, "kept", n.cfg.Paths.oldRaft())
		if err := n.putAway(cfg.Dir); err != nil {
			return err
		}
		// Whether that epoch's raft has ever counted on this node, a state that was
		// put back to a backup would not know: its leader does.
		n.m.RaftLife, n.m.Blank = 0, true
	case pendingRestore:
		n.log.Warn("restore the record from a snapshot", "epoch", n.m.Epoch, "kept", n.cfg.Paths.oldRaft())
		if err := n.layRestored(cfg); err != nil {
			return err
		}
		n.m.RaftLife, n.m.Blank = 0, false
	default:
		return nil
	}
	n.m.Pending = ""
	if err := n.m.save(n.cfg.Paths); err != nil {
		return err
	}
	return ignoreMissing(os.Remove(n.cfg.Paths.restore()))
}

// raiseEpoch makes the epoch of a node that has taken over the record's: its
// first entry under the new leadership, but for the word that it was given with
// it. That comes before, so that it is recorded if the epoch is.
func (n *node) raiseEpoch(ctx context.Context) error {
	e := n.epoch()
	if e.Compare(n.record.Epoch()) <= 0 {
		return nil
	}
	n.mu.Lock()
	dead := n.m.Dead
	n.mu.Unlock()
	for _, id := range dead {
		d := rendezvous.Death{Node: id, Boots: n.record.Boots(id)}
		if err := (recorder{n: n}).apply(ctx, d.Entry(), func() bool { return false }); err != nil && !errors.Is(err, rendezvous.ErrNoNode) {
			return err
		}
	}
	return recorder{n: n}.apply(ctx, rendezvous.Entry{Kind: rendezvous.KindEpoch, Epoch: &e}, func() bool { return n.record.Epoch() == e })
}

// enterEpoch has the run end and begin anew under what is pending.
func (n *node) enterEpoch(e launcher.Epoch, p pending, dead []launcher.NodeID) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	m := n.m
	m.Epoch, m.EpochBy, m.Pending, m.Dead = e.N, e.By, p, dead
	if err := m.save(n.cfg.Paths); err != nil {
		return err
	}
	// Whoever saves it next must not take this back. The rest of it is read without
	// the lock.
	n.m.Epoch, n.m.EpochBy, n.m.Pending, n.m.Dead = m.Epoch, m.EpochBy, m.Pending, m.Dead
	return nil
}

// giveWay is asked for by the leader of a later epoch. The fence has risen
// already; the rest is done beside.
func (n *node) giveWay(h wire.Hello) {
	select {
	case n.later <- h:
	default: // under way
	}
}

// handOverWithin bounds how long a record is offered to a later epoch's leader
// that does not take it. Then this node goes on as before, until it is asked
// again.
const handOverWithin = 30 * time.Second

// yields waits for a later epoch, gives this side's record to it, and enters it.
func (n *node) yields(ctx context.Context) error {
	var h wire.Hello
	select {
	case h = <-n.later:
	case <-ctx.Done():
		return ctx.Err()
	}
	n.log.Warn("a later epoch leads", "leader", h.Host, "fence", h.Fence, "ours", n.epoch().N)
	close(n.yielded) // ends our leadership, and no other begins
	if !n.until(ctx, func() bool { return n.leading.Load() == nil }) {
		return ctx.Err()
	}
	func() { // whoever was recording has, and nobody does from here on
		n.recording.Lock()
		defer n.recording.Unlock()
	}()
	n.getsWhole(ctx)
	if err := n.handRecordOver(ctx, h.Leader); err != nil {
		n.log.Warn("hand the record over", "leader", h.Host, "error", err)
		return errReopen
	}
	if err := n.enterEpoch(h.Fence.Epoch, pendingGiveWay, nil); err != nil {
		return err
	}
	return errReopen
}

// wholeWithin bounds the wait for the end of a record: voters that start together
// elect one of them sooner.
const wholeWithin = 10 * time.Second

// getsWhole waits until the record has all that this side has recorded. Of a machine
// that was off it lacks the last entries at first: whether they count is for
// raft to say, which goes on electing among those that have not given way yet.
func (n *node) getsWhole(ctx context.Context) {
	if n.blank.Load() || n.raft.Fault() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, wholeWithin)
	defer cancel()
	if !n.until(ctx, func() bool { return !n.raft.Unapplied() }) {
		n.log.Warn("the last entries of the old record are not handed over: nobody can say that they were acknowledged", "folder", n.cfg.Paths.oldRaft())
	}
}

func (n *node) handRecordOver(ctx context.Context, to launcher.NodeID) error {
	if _, _, index := n.record.Cluster(); index == 0 {
		return nil // it has none
	}
	ctx, cancel := context.WithTimeout(ctx, handOverWithin)
	defer cancel()
	parts, err := n.record.Parts(n.m.Node)
	if err != nil {
		n.log.Error("a job is kept in the old record only", "folder", n.cfg.Paths.oldRaft(), "error", err)
	}
	for _, p := range parts {
		if _, err := p.Entry().Encode(); err != nil {
			continue // told above
		}
		for {
			err := wire.Reunite.Call(ctx, n.dial.Client(to), p)
			if err == nil {
				break
			}
			if !errors.Is(err, wire.ErrRetry) && !errors.Is(err, wire.ErrUnreachable) {
				return err
			}
			select {
			case <-time.After(200 * time.Millisecond):
			case <-ctx.Done():
				return fmt.Errorf("%w: %w", ctx.Err(), err)
			}
		}
	}
	return nil
}

// reunite takes a part of the record of a side that gives way.
func (l *leadership) reunite(ctx context.Context, c wire.Caller, p rendezvous.Reunited) (wire.Empty, error) {
	n := l.n
	if p.Node != c.Node {
		return wire.Empty{}, fmt.Errorf("%w: %s hands over the record of %s", wire.ErrDenied, c.Host, p.Node)
	}
	if err := (recorder{n: n}).apply(ctx, p.Entry(), func() bool { return false }); err != nil {
		return wire.Empty{}, err
	}
	if p.Job != nil {
		n.log.Info("reunited", "job", p.Job.Spec.ID, "from", c.Host, "epoch", p.From.N)
		l.Adopt(p.Job.Spec.ID)
		for _, place := range p.Job.Plan.Nodes { // who is connected already tells its ledger again
			l.links.Reopen(place.Node)
		}
	}
	return wire.Empty{}, nil
}
