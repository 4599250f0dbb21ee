package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/durable"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/consensus"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// raftBring takes a piece of a backup that is to be restored here. A first piece
// begins anew.
func (n *node) raftBring(_ context.Context, c wire.Caller, p wire.RaftPiece) (wire.Empty, error) {
	if err := mayRestore(c); err != nil {
		return wire.Empty{}, err
	}
	n.restoring.Lock()
	defer n.restoring.Unlock()
	flag := os.O_WRONLY | os.O_CREATE | os.O_APPEND
	if p.Offset == 0 {
		flag |= os.O_TRUNC
	}
	f, err := os.OpenFile(n.cfg.Paths.brought(), flag, 0o600)
	if err != nil {
		return wire.Empty{}, fmt.Errorf("bring a snapshot: %w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	switch {
	case err != nil:
		return wire.Empty{}, fmt.Errorf("bring a snapshot: %w", err)
	case fi.Size() != p.Offset:
		return wire.Empty{}, fmt.Errorf("bring a snapshot: %w: piece at %d after %d bytes: another restore is under way", launcher.ErrInvalid, p.Offset, fi.Size())
	case p.Offset+int64(len(p.Data)) > rendezvous.MaxBackup:
		return wire.Empty{}, fmt.Errorf("bring a snapshot: %w: over %d bytes", launcher.ErrInvalid, rendezvous.MaxBackup)
	}
	if _, err := f.Write(p.Data); err != nil {
		return wire.Empty{}, fmt.Errorf("bring a snapshot: %w", err)
	}
	return wire.Empty{}, nil
}

func mayRestore(c wire.Caller) error {
	if c.Node != "" {
		return fmt.Errorf("restore the record: %w: type it on the machine that is to lead", wire.ErrDenied)
	}
	return mustBeRoot(c, "restore the record")
}

// raftRestore makes this node the leader of a new epoch, whose record begins
// with a backup. rendezvous/DESIGN.md, "A restore", says why no job is started
// twice by that.
func (n *node) raftRestore(ctx context.Context, c wire.Caller, r wire.RaftRestoreRequest) (res wire.RaftRestoreResponse, err error) {
	if err := mayRestore(c); err != nil {
		return res, err
	}
	n.restoring.Lock()
	defer n.restoring.Unlock()
	b, err := readBackup(n.cfg.Paths.brought())
	if err == nil && b.Sum != r.Sum {
		err = fmt.Errorf("%w: another snapshot was brought meanwhile", wire.ErrDenied)
	}
	if err == nil {
		err = n.fits(b)
	}
	if err == nil && !r.Force {
		err = n.nothingBetter(ctx, b)
	}
	if err != nil {
		return res, fmt.Errorf("restore the record: %w; nothing was changed", err)
	}
	e := launcher.Epoch{N: max(n.epoch().N, b.Epoch.N) + 1, By: n.m.Node}
	for _, p := range n.present.Load() {
		e.N = max(e.N, p.Meta.Epoch+1)
	}
	res = wire.RaftRestoreResponse{Host: n.m.Host, Epoch: e.N}
	if !n.blank.Load() && n.hasRecord() {
		res.Kept = n.cfg.Paths.oldRaft()
	}
	if r.Check {
		return res, nil
	}
	n.log.Warn("restore", "epoch", e.N, "index", b.Index, "taken", b.Taken, "sha256", b.Sum, "force", r.Force, "user", c.User.Name)
	if err := n.keepBrought(); err != nil {
		return res, fmt.Errorf("restore the record: %w", err)
	}
	if err := n.enterEpoch(e, pendingRestore, nil); err != nil {
		return res, fmt.Errorf("restore the record: %w", err)
	}
	n.reopenOnce.Do(func() { time.AfterFunc(100*time.Millisecond, func() { close(n.reopen) }) }) // after the answer is out
	return res, nil
}

// readBackup reads a file whole and checks it.
func readBackup(path string) (rendezvous.Backup, error) {
	f, err := os.Open(path)
	if err != nil {
		return rendezvous.Backup{}, err
	}
	defer f.Close()
	return rendezvous.ReadBackup(f)
}

// fits refuses a backup that this machine cannot lead with, by force or not.
func (n *node) fits(b rendezvous.Backup) error {
	if b.Cluster != n.m.Cluster {
		return fmt.Errorf("%w: the snapshot is of cluster %s, and this machine is in %s", wire.ErrDenied, b.Cluster, n.m.Cluster)
	}
	if _, in := b.Node(n.m.Node); !in {
		return fmt.Errorf("%w: %s is not in the snapshot, it has joined since: restore on one of %s", wire.ErrDenied, n.m.Host, strings.Join(b.Hosts(), ", "))
	}
	if _, err := trust.LoadCA(n.cfg.Paths.trust()); err != nil {
		return fmt.Errorf("%w: %s has never had the CA's key, without which nobody can join: restore on a machine that was voter or standby (%w)", wire.ErrDenied, n.m.Host, err)
	}
	return nil
}

// nothingBetter refuses while somebody leads, or may be about to, and where this
// machine has a newer copy of the record itself.
func (n *node) nothingBetter(ctx context.Context, b rendezvous.Backup) error {
	switch host := n.whoLeads(ctx); host {
	case "":
	case n.m.Host:
		return fmt.Errorf("%w: %s leads, with a record that works: nothing needs to be restored. With --force the snapshot takes its place in a new epoch, "+
			"and what was recorded since is merged into it as far as other machines have a copy", wire.ErrDenied, host)
	default:
		return fmt.Errorf("%w: %s leads, with a record that works: nothing needs to be restored. With --force %s leads a new epoch that begins with the snapshot, "+
			"%s gives way, and what it has recorded is merged into it", wire.ErrDenied, host, n.m.Host, host)
	}
	if err := n.noLeader(); errors.Is(err, wire.ErrRetry) {
		return err
	}
	_, _, index := n.record.Cluster()
	if e := n.record.Epoch(); n.hasRecord() && (e.Compare(b.Epoch) > 0 || e == b.Epoch && index >= b.Index) {
		return fmt.Errorf("%w: %s has a newer copy of the record (entry %d, the snapshot has %d): `sudo sparkrun takeover` goes on with that one. "+
			"With --force the snapshot takes its place", wire.ErrDenied, n.m.Host, index, b.Index)
	}
	return nil
}

// whoLeads asks everybody who is there; empty when nobody knows of a leader.
func (n *node) whoLeads(ctx context.Context) string {
	if id := n.leaderID(); id != "" {
		return n.hostOf(id)
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var ids []launcher.NodeID
	for id := range n.gossipAlive() {
		if id != n.m.Node {
			ids = append(ids, id)
		}
	}
	hosts := make([]string, len(ids))
	each(len(ids), func(i int) {
		if res, err := wire.Seen.Call(ctx, n.dial.Client(ids[i]), wire.SeenRequest{}); err == nil {
			hosts[i] = res.Leader
		}
	})
	for _, h := range hosts {
		if h != "" {
			return h
		}
	}
	return ""
}

// keepBrought makes what was brought the snapshot that the next start restores.
func (n *node) keepBrought() error {
	f, err := os.Open(n.cfg.Paths.brought())
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(n.cfg.Paths.brought(), n.cfg.Paths.restore()); err != nil {
		return err
	}
	return durable.SyncDir(n.cfg.Paths.State)
}

// restoredFile, in a raft folder, says of which epoch's restore it is.
const restoredFile = "restored"

func restoredBy(m membership) string { return fmt.Sprintf("%d.%s\n", m.Epoch, m.EpochBy) }

// layRestored lays a raft folder out that begins with the snapshot, and puts it
// in the place of the present one, which is kept. Each step can be done again
// after a crash: the new folder is whole before the old one is moved, and knows
// itself when it has taken its place.
func (n *node) layRestored(cfg consensus.Config) error {
	mark := restoredBy(n.m)
	if b, err := os.ReadFile(filepath.Join(cfg.Dir, restoredFile)); err == nil && string(b) == mark && !moving(cfg.Dir) {
		return nil // it was done, and the note of it was not
	}
	b, err := readBackup(n.cfg.Paths.restore())
	if err != nil {
		return fmt.Errorf("restore the record from %s: %w", n.cfg.Paths.restore(), err)
	}
	state, err := b.Restored(time.Now())
	if err != nil {
		return fmt.Errorf("restore the record: %w", err)
	}
	dir := n.cfg.Paths.newRaft()
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("restore the record: %w", err)
	}
	fresh := cfg
	fresh.Dir, fresh.Machine, fresh.Bootstrap = dir, machine{rendezvous.NewRecord()}, false
	if err := consensus.Seed(fresh, b.Index, state); err != nil {
		return fmt.Errorf("restore the record: %w", err)
	}
	if err := writeWhole(filepath.Join(dir, restoredFile), []byte(mark)); err != nil {
		return fmt.Errorf("restore the record: %w", err)
	}
	if err := n.putAway(cfg.Dir); err != nil {
		return err
	}
	if err := takePlace(dir, cfg.Dir); err != nil {
		return fmt.Errorf("restore the record: %w", err)
	}
	return nil
}
