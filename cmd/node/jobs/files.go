package jobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync"
	"github.com/sparkrun/sparkrun/launcher/preflight"
	"github.com/sparkrun/sparkrun/launcher/proc"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// FilesConfig says where the jobs' files are kept.
type FilesConfig struct {
	Self   launcher.NodeID
	Dir    string // for the files of all jobs
	Dial   *dial.Dialer
	Logger *slog.Logger
}

// Files are the files that jobs bring along.
type Files struct {
	cfg      FilesConfig
	store    *filesync.Store
	bringing chan struct{} // its one slot is taken by the job whose files are being laid out
}

// OpenFiles opens the folder.
func OpenFiles(cfg FilesConfig) (*Files, error) {
	store, err := filesync.OpenStore(cfg.Dir)
	if err != nil {
		return nil, err
	}
	return &Files{cfg: cfg, store: store, bringing: make(chan struct{}, 1)}, nil
}

// Close closes the store.
func (f *Files) Close() { f.store.Close() }

// UserOf is the user of a job whose files are here; empty where no job's are.
func (f *Files) UserOf(job launcher.JobID) string { return f.store.UserOf(job) }

// Stage takes the manifest of a user's files. Like their contents it is kept on the node
// where the user typed, and needs no leader.
func (f *Files) Stage(_ context.Context, c wire.Caller, r wire.StageRequest) (wire.StageResponse, error) {
	user, err := c.RunsAs(r.User)
	if err != nil {
		return wire.StageResponse{}, err
	}
	if r.Drop {
		return wire.StageResponse{Node: f.cfg.Self}, f.store.Drop(r.Job, user)
	}
	if err := f.store.Sweep(halfBrought); err != nil {
		f.cfg.Logger.Warn("remove half-brought files", "error", err)
	}
	missing, err := f.store.Begin(r.Job, user, r.Manifest)
	if err == nil && len(missing) > 0 {
		if err = preflight.RoomToStage(f.cfg.Dir, r.Manifest.Bytes()); err != nil {
			err = errors.Join(err, f.store.Drop(r.Job, user))
		}
	}
	return wire.StageResponse{Node: f.cfg.Self, Missing: missing}, err
}

// halfBrought is how long an unfinished upload is kept after its last piece: its sender
// was killed.
const halfBrought = time.Hour

// keep stores a piece of a file if that leaves the rest of the machine its reserve of
// disk space: others write to the disk too while gigabytes arrive. A job that finds no
// room leaves nothing here.
func (f *Files) keep(job launcher.JobID, user, sum string, offset int64, data []byte) error {
	err := preflight.RoomToStage(f.cfg.Dir, int64(len(data)))
	if err == nil {
		err = f.store.Write(job, user, sum, offset, data)
	}
	if err != nil {
		err = errors.Join(err, f.store.Drop(job, user))
	}
	return err
}

// Content takes a piece of one file.
func (f *Files) Content(_ context.Context, c wire.Caller, r wire.StageChunk) (wire.Empty, error) {
	user, err := c.RunsAs(r.User)
	if err != nil {
		return wire.Empty{}, err
	}
	return wire.Empty{}, f.keep(r.Job, user, r.Sum, r.Offset, r.Data)
}

// NodeStaged lists the files of a job for another member.
func (f *Files) NodeStaged(_ context.Context, _ wire.Caller, r wire.NodeStageRequest) (filesync.Manifest, error) {
	return f.store.Manifest(r.Job, r.User)
}

// NodeRead gives one of those files.
func (f *Files) NodeRead(_ context.Context, _ wire.Caller, r wire.NodeStageRequest,
	send func(wire.StageChunk) error) error {
	return f.store.Read(r.Job, r.User, r.Sum, func(offset int64, data []byte) error {
		return send(wire.StageChunk{Job: r.Job, Sum: r.Sum, Offset: offset, Data: data})
	})
}

// Bring lays out a job's files on this node, one job at a time; what is missing here is
// fetched first from the node that took them.
func (f *Files) Bring(ctx context.Context, as launcher.Assignment, uid, gid uint32) error {
	select {
	case f.bringing <- struct{}{}:
		defer func() { <-f.bringing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	spec := as.Spec
	if spec.Staged.From != f.cfg.Self {
		if err := f.fetch(ctx, spec); err != nil {
			return fmt.Errorf("stage files from %s: %w", f.cfg.Dial.HostOf(spec.Staged.From), err)
		}
	}
	m, err := f.store.Manifest(spec.ID, spec.User)
	if err != nil {
		return err
	}
	if m.Sum() != spec.Staged.Sum {
		return fmt.Errorf("stage files: %w: those here are not those that job %s was launched with",
			launcher.ErrInvalid, spec.ID)
	}
	return f.store.Lay(spec.ID, spec.User, int(uid), int(gid))
}

// fetch gets what is missing here, one piece at a time, each checked against its sum.
// What an earlier attempt or job left here is not fetched again.
func (f *Files) fetch(ctx context.Context, spec launcher.Spec) error {
	have, err := f.store.Manifest(spec.ID, spec.User)
	if err == nil && have.Sum() == spec.Staged.Sum && f.store.IsLaid(spec.ID) {
		return nil // the node that took them may be gone
	}
	from := f.cfg.Dial.Client(spec.Staged.From)
	m, err := wire.NodeStaged.Call(ctx, from, wire.NodeStageRequest{Job: spec.ID, User: spec.User})
	if err != nil {
		return err
	}
	missing, err := f.store.Begin(spec.ID, spec.User, m)
	if err != nil {
		return err
	}
	for _, sum := range missing {
		piece := wire.NodeStageRequest{Job: spec.ID, User: spec.User, Sum: sum}
		err := wire.NodeStageRead.Call(ctx, from, piece, func(c wire.StageChunk) error {
			return f.keep(spec.ID, spec.User, sum, c.Offset, c.Data)
		})
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", m.PathOf(sum), err), f.store.Drop(spec.ID, spec.User))
		}
	}
	if len(missing) > 0 {
		f.cfg.Logger.Info("files staged", "job", spec.ID, "from", f.cfg.Dial.HostOf(spec.Staged.From),
			"contents", len(missing), "bytes", m.Bytes())
	}
	return nil
}

// DropCache frees the page cache of a machine with a GPU: 1 = clean pages only,
// nothing is written for it (Documentation/admin-guide/sysctl/vm.rst).
func DropCache() error {
	if proc.Here.GPUs() == 0 {
		return nil
	}
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("1\n"), 0o200)
}
