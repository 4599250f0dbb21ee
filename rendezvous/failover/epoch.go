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

// Proto is the raft protocol of this node's epoch. Nodes of two epochs find no
// common one: their logs must never meet, whatever their terms are.
func (f *Failover) Proto() string {
	if f.epoch.By == "" {
		return protoRaft
	}
	return fmt.Sprintf("%s+%d.%s", protoRaft, f.epoch.N, f.epoch.By)
}

// settleEpoch finishes a change of epochs that was begun, before raft is opened.
// Done twice it does no harm.
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
		// Whether raft of that epoch has ever counted on this node, a state that was
		// put back to a backup would not know: its leader does.
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

// raiseEpoch makes the epoch of a node that has taken over that of the record. It
// is the first entry of the new leadership, behind the person's word that came with
// the take-over, so that the word is recorded if the epoch is.
func (f *Failover) raiseEpoch(ctx context.Context) error {
	e := f.epoch
	if cluster, _, _ := f.cfg.Record.Cluster(); cluster == "" || e.Compare(f.cfg.Record.Epoch()) <= 0 {
		return nil // a cluster's first entry has its epoch
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

// enterEpoch ends the run, so that the next one carries out what is pending.
func (f *Failover) enterEpoch(e launcher.Epoch, p pending, dead []launcher.NodeID) error {
	return f.change(func(s *state) { s.Epoch, s.EpochBy, s.Pending, s.Dead = e.N, e.By, p, dead })
}

// GiveWay is called when the leader of a later epoch asks for it. The fence has been
// raised already; the rest is done in the background.
func (f *Failover) GiveWay(h wire.Hello) {
	select {
	case f.later <- h:
	default: // under way
	}
}

// handOverWithin bounds how long the record is offered to the leader of a later epoch.
// If that does not take it, this node goes on as before until it is asked again.
const handOverWithin = 30 * time.Second

// yields waits for a later epoch, gives this side's record to it, and enters it.
func (f *Failover) yields(ctx context.Context) error {
	var h wire.Hello
	select {
	case h = <-f.later:
	case <-ctx.Done():
		return ctx.Err()
	}
	f.log.Warn("a later epoch leads", "leader", h.Host, "fence", h.Fence, "ours", f.epoch.N)
	close(f.yielded) // ends our leadership, and no other begins
	if !Until(ctx, func() bool { return !f.leads.Load() }) {
		return ctx.Err()
	}
	func() { // whoever was recording has, and nobody does from here on
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

// wholeWithin bounds the wait for the end of a record: voters that start together
// elect one of them sooner.
const wholeWithin = 10 * time.Second

// getsWhole waits until the record has all that this side has recorded. On a machine
// that was off it lacks the last entries at first: whether they are committed is decided
// by raft, which goes on electing among those that have not given way yet.
func (f *Failover) getsWhole(ctx context.Context) {
	if f.blank.Load() || f.raft.Fault() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, wholeWithin)
	defer cancel()
	if !Until(ctx, func() bool { return !f.raft.Unapplied() }) {
		f.log.Warn("the last entries of the old record are not handed over: nobody can say that they were acknowledged",
			"folder", f.path(oldFolder))
	}
}

func (f *Failover) handRecordOver(ctx context.Context, to launcher.NodeID) error {
	if _, _, index := f.cfg.Record.Cluster(); index == 0 {
		return nil // it has none
	}
	ctx, cancel := context.WithTimeout(ctx, handOverWithin)
	defer cancel()
	parts, err := f.cfg.Record.Parts(f.cfg.Self.ID)
	if err != nil {
		f.log.Error("a job is kept in the old record only", "folder", f.path(oldFolder), "error", err)
	}
	for _, p := range parts {
		if _, err := p.Entry().Encode(); err != nil {
			continue // told above
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
