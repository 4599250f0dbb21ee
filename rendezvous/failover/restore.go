package failover

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

// raftBring receives a piece of a backup that is to be restored here. A first piece
// starts the file again.
func (f *Failover) raftBring(_ context.Context, c wire.Caller, p wire.RaftPiece) (wire.Empty, error) {
	if err := mayRestore(c); err != nil {
		return wire.Empty{}, err
	}
	f.restoring.Lock()
	defer f.restoring.Unlock()
	flag := os.O_WRONLY | os.O_CREATE | os.O_APPEND
	if p.Offset == 0 {
		flag |= os.O_TRUNC
	}
	file, err := os.OpenFile(f.path(broughtFile), flag, 0o600)
	if err != nil {
		return wire.Empty{}, fmt.Errorf("bring a snapshot: %w", err)
	}
	defer file.Close()
	fi, err := file.Stat()
	switch {
	case err != nil:
		return wire.Empty{}, fmt.Errorf("bring a snapshot: %w", err)
	case fi.Size() != p.Offset:
		return wire.Empty{}, fmt.Errorf("bring a snapshot: %w: piece at %d after %d bytes: another restore is under way",
			launcher.ErrInvalid, p.Offset, fi.Size())
	case p.Offset+int64(len(p.Data)) > rendezvous.MaxBackup:
		return wire.Empty{}, fmt.Errorf("bring a snapshot: %w: over %d bytes", launcher.ErrInvalid, rendezvous.MaxBackup)
	}
	if _, err := file.Write(p.Data); err != nil {
		return wire.Empty{}, fmt.Errorf("bring a snapshot: %w", err)
	}
	return wire.Empty{}, nil
}

func mayRestore(c wire.Caller) error {
	if c.Node != "" {
		return fmt.Errorf("restore the record: %w: type it on the machine that is to lead", wire.ErrDenied)
	}
	return c.MustBeRoot("restore the record")
}

// raftRestore makes this node the leader of a new epoch whose record begins with a
// backup. rendezvous/DESIGN.md, "A restore", says why this starts no job twice.
func (f *Failover) raftRestore(
	ctx context.Context, c wire.Caller, r wire.RaftRestoreRequest,
) (res wire.RaftRestoreResponse, err error) {
	if err := mayRestore(c); err != nil {
		return res, err
	}
	f.restoring.Lock()
	defer f.restoring.Unlock()
	b, err := readBackup(f.path(broughtFile))
	if err == nil && b.Sum != r.Sum {
		err = fmt.Errorf("%w: another snapshot was sent in the meantime", wire.ErrDenied)
	}
	if err == nil {
		err = f.fits(b)
	}
	if err == nil && !r.Force {
		err = f.nothingBetter(ctx, b)
	}
	if err != nil {
		return res, fmt.Errorf("restore the record: %w; nothing was changed", err)
	}
	e := launcher.Epoch{N: max(f.epoch.N, b.Epoch.N) + 1, By: f.cfg.Self.ID}
	for _, p := range f.cfg.Present.Load() {
		e.N = max(e.N, p.Meta.Epoch+1)
	}
	res = wire.RaftRestoreResponse{Host: f.cfg.Self.Host, Epoch: e.N}
	if !f.blank.Load() && f.HasRecord() {
		res.Kept = f.path(oldFolder)
	}
	if r.Check {
		return res, nil
	}
	f.log.Warn("restore", "epoch", e.N, "index", b.Index, "taken", b.Taken, "sha256", b.Sum, "force", r.Force,
		"user", c.User.Name)
	if err := f.keepBrought(); err != nil {
		return res, fmt.Errorf("restore the record: %w", err)
	}
	if err := f.enterEpoch(e, pendingRestore, nil); err != nil {
		return res, fmt.Errorf("restore the record: %w", err)
	}
	f.reopenSoon()
	return res, nil
}

// readBackup reads a file whole and checks it.
func readBackup(path string) (rendezvous.Backup, error) {
	file, err := os.Open(path)
	if err != nil {
		return rendezvous.Backup{}, err
	}
	defer file.Close()
	return rendezvous.ReadBackup(file)
}

// fits refuses a backup that this machine cannot lead with, even with --force.
func (f *Failover) fits(b rendezvous.Backup) error {
	if b.Cluster != f.cfg.Self.Cluster {
		return fmt.Errorf("%w: the snapshot is of cluster %s, and this machine is in %s", wire.ErrDenied, b.Cluster,
			f.cfg.Self.Cluster)
	}
	if _, in := b.Node(f.cfg.Self.ID); !in {
		return fmt.Errorf("%w: %s is not in the snapshot, it has joined since: restore on one of %s", wire.ErrDenied,
			f.cfg.Self.Host, strings.Join(b.Hosts(), ", "))
	}
	if _, err := trust.LoadCA(f.cfg.Trust); err != nil {
		return fmt.Errorf("%w: %s has never had the CA's key, without which nobody can join: restore on a machine that "+
			"was voter or standby (%w)", wire.ErrDenied, f.cfg.Self.Host, err)
	}
	return nil
}

// nothingBetter refuses while a node leads or may be about to, and if this machine itself
// has a newer copy of the record.
func (f *Failover) nothingBetter(ctx context.Context, b rendezvous.Backup) error {
	switch host := f.whoLeads(ctx); host {
	case "":
	case f.cfg.Self.Host:
		return fmt.Errorf("%w: %s leads, with a record that works: nothing needs to be restored. With --force the "+
			"snapshot takes its place in a new epoch, "+
			"and what was recorded since is merged into it as far as other machines have a copy", wire.ErrConflict, host)
	default:
		return fmt.Errorf("%w: %s leads, with a record that works: nothing needs to be restored. With --force %s leads a "+
			"new epoch that begins with the snapshot, "+
			"%s gives way, and what it has recorded is merged into it", wire.ErrConflict, host, f.cfg.Self.Host, host)
	}
	if err := ctx.Err(); err != nil { // another may lead, and was not asked to the end
		return err
	}
	if err := f.NoLeader(); errors.Is(err, wire.ErrRetry) {
		return err
	}
	_, _, index := f.cfg.Record.Cluster()
	if e := f.cfg.Record.Epoch(); f.HasRecord() && (e.Compare(b.Epoch) > 0 || e == b.Epoch && index >= b.Index) {
		return fmt.Errorf("%w: %s has a newer copy of the record (entry %d, the snapshot has %d): `sudo sparkrun "+
			"takeover` goes on with that one. "+
			"With --force the snapshot takes its place", wire.ErrConflict, f.cfg.Self.Host, index, b.Index)
	}
	return nil
}

// whoLeads asks all members that are up; empty if none knows a leader.
func (f *Failover) whoLeads(ctx context.Context) string {
	if id := f.Leader(); id != "" {
		return f.cfg.Dial.HostOf(id)
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var ids []launcher.NodeID
	for id := range f.present() {
		if id != f.cfg.Self.ID {
			ids = append(ids, id)
		}
	}
	hosts := make([]string, len(ids))
	each(len(ids), func(i int) {
		if res, err := wire.Seen.Call(ctx, f.cfg.Dial.Client(ids[i]), wire.SeenRequest{}); err == nil {
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

// keepBrought makes the received file the snapshot that the next start restores.
func (f *Failover) keepBrought() error {
	file, err := os.Open(f.path(broughtFile))
	if err != nil {
		return err
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.path(broughtFile), f.path(restoreFile)); err != nil {
		return err
	}
	return durable.SyncDir(f.cfg.State)
}

// restoredFile, in a raft folder, names the epoch whose restore made it.
const restoredFile = "restored"

func restoredBy(s state) string { return fmt.Sprintf("%d.%s\n", s.Epoch, s.EpochBy) }

// layRestored makes a raft folder that begins with the snapshot and puts it in the place
// of the present one, which is kept. Each step can be repeated after a crash: the new
// folder is complete before the old one is moved, and restoredFile shows that it has
// taken its place.
func (f *Failover) layRestored(cfg consensus.Config) error {
	mark := restoredBy(f.state)
	if b, err := os.ReadFile(filepath.Join(cfg.Dir, restoredFile)); err == nil && string(b) == mark && !moving(cfg.Dir) {
		return nil // it was done, but the note of it was lost
	}
	b, err := readBackup(f.path(restoreFile))
	if err != nil {
		return fmt.Errorf("restore the record from %s: %w", f.path(restoreFile), err)
	}
	state, err := b.Restored(time.Now())
	if err != nil {
		return fmt.Errorf("restore the record: %w", err)
	}
	dir := f.path(newFolder)
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
	if err := f.putAway(cfg.Dir); err != nil {
		return err
	}
	if err := takePlace(dir, cfg.Dir); err != nil {
		return fmt.Errorf("restore the record: %w", err)
	}
	return nil
}
