package failover

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

// protoRaft is raft's protocol (ALPN) in an epoch that nobody took over.
const protoRaft = "sparkrun-raft/1"

// Proto is the raft protocol of this node's epoch. Nodes of different epochs have no
// common one: their logs must never meet, whatever their terms are.
func (f *Failover) Proto() string {
	if f.epoch.By == "" {
		return protoRaft
	}
	return fmt.Sprintf("%s+%d.%s", protoRaft, f.epoch.N, f.epoch.By)
}

// settleEpoch finishes a change of epochs that was begun, before raft is opened. It is
// idempotent.
func (f *Failover) settleEpoch(cfg consensus.Config) error {
	switch f.state.Pending {
	case pendingTakeOver:
		f.log.Warn("take the cluster over", "epoch", f.state.Epoch, "dead", f.state.Dead)
		cfg.Machine, cfg.Bootstrap = machine{rendezvous.NewRecord()}, false
		if err := consensus.Recover(cfg); err != nil {
			return err
		}
		if err := f.liveness.dead(f.state.Dead...); err != nil {
			return err
		}
	case pendingGiveWay:
		f.log.Warn("give way to a later epoch", "epoch", f.state.Epoch, "kept", f.path(oldFolder))
		if err := f.putAway(cfg.Dir); err != nil {
			return err
		}
		// Raft of that epoch may already have counted on this node's vote: a state
		// restored from a backup would not know, but its leader does. So the node is
		// blank.
		f.state.RaftIncarnation, f.state.Blank = 0, true
	case pendingRestore:
		f.log.Warn("restore the record from a snapshot", "epoch", f.state.Epoch, "kept", f.path(oldFolder))
		if err := f.layRestored(cfg); err != nil {
			return err
		}
		f.state.RaftIncarnation, f.state.Blank = 0, false
	default:
		return nil
	}
	if err := f.change(func(s *state) { s.Pending = "" }); err != nil {
		return err
	}
	return ignoreMissing(os.Remove(f.path(restoreFile)))
}

// raiseEpoch records the epoch of a node that has taken over. These are the first entries
// of the new leadership: the deaths that a person confirmed with the take-over come
// before the epoch, so that a record with the epoch has them too.
func (f *Failover) raiseEpoch(ctx context.Context) error {
	e := f.epoch
	if cluster, _, _ := f.cfg.Record.Cluster(); cluster == "" || e.Compare(f.cfg.Record.Epoch()) <= 0 {
		return nil // the first entry of a new cluster has its epoch
	}
	f.mu.Lock()
	dead := f.state.Dead
	f.mu.Unlock()
	for _, id := range dead {
		d := rendezvous.Death{Node: id, Boots: f.cfg.Record.Boots(id)}
		if err := f.Recorder(0).Apply(ctx, d.Entry(), func() bool { return false }); err != nil &&
			!errors.Is(err, rendezvous.ErrNoNode) {
			return err
		}
	}
	return f.Recorder(0).Apply(ctx, rendezvous.Entry{Kind: rendezvous.KindEpoch, Epoch: &e},
		func() bool { return f.cfg.Record.Epoch() == e })
}

// enterEpoch ends this incarnation, so that the next one carries out what is pending.
func (f *Failover) enterEpoch(e launcher.Epoch, p pending, dead []launcher.NodeID) error {
	return f.change(func(s *state) { s.Epoch, s.EpochBy, s.Pending, s.Dead = e.N, e.By, p, dead })
}

// GiveWay is called when the leader of a later epoch asks for it. The fence was raised
// already; the rest happens in the background.
func (f *Failover) GiveWay(h wire.Hello) {
	select {
	case f.later <- h:
	default: // under way
	}
}

// handOverWithin bounds how long the record is offered to the leader of a later epoch. If
// the leader does not take it, this node goes on as before until it is asked again.
const handOverWithin = 30 * time.Second

// yields waits for a later epoch, hands this side's record over to it, and enters it.
func (f *Failover) yields(ctx context.Context) error {
	var h wire.Hello
	select {
	case h = <-f.later:
	case <-ctx.Done():
		return ctx.Err()
	}
	f.log.Warn("a later epoch leads", "leader", h.Host, "fence", h.Fence, "ours", f.epoch.N)
	close(f.yielded) // ends our leadership; no other one begins
	if !Until(ctx, func() bool { return !f.leads.Load() }) {
		return ctx.Err()
	}
	func() { // whoever was recording has finished, and nobody records from here on
		f.recording.Lock()
		defer f.recording.Unlock()
	}()
	f.getsWhole(ctx)
	if err := f.handRecordOver(ctx, h.Leader); err != nil {
		f.log.Warn("hand the record over", "leader", h.Host, "error", err)
		return ErrReopen
	}
	if err := f.enterEpoch(h.Fence.Epoch, pendingGiveWay, nil); err != nil {
		return err
	}
	return ErrReopen
}

// wholeWithin bounds the wait for the end of a record: voters that start together elect a
// leader sooner.
const wholeWithin = 10 * time.Second

// getsWhole waits until the record has everything that this side recorded. On a machine
// that was off, the last entries are missing at first: raft decides whether they are
// committed, and goes on electing among the nodes that have not given way yet.
func (f *Failover) getsWhole(ctx context.Context) {
	if f.blank.Load() || f.raft.Fault() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, wholeWithin)
	defer cancel()
	if !Until(ctx, func() bool { return !f.raft.Unapplied() }) {
		f.log.Warn("the last entries of the old record are not handed over: it is not known whether they were acknowledged",
			"folder", f.path(oldFolder))
	}
}

func (f *Failover) handRecordOver(ctx context.Context, to launcher.NodeID) error {
	if _, _, index := f.cfg.Record.Cluster(); index == 0 {
		return nil // it has no record
	}
	ctx, cancel := context.WithTimeout(ctx, handOverWithin)
	defer cancel()
	parts, err := f.cfg.Record.Parts(f.cfg.Self.ID)
	if err != nil {
		f.log.Error("a job is kept in the old record only", "folder", f.path(oldFolder), "error", err)
	}
	for _, p := range parts {
		if _, err := p.Entry().Encode(); err != nil {
			continue // logged above
		}
		for {
			err := wire.Reunite.Call(ctx, f.cfg.Dial.Client(to), p)
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
