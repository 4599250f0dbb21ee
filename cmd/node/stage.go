package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node/survey"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/stage"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// stageIn takes the manifest of a user's files. Like their contents it is kept
// where it was typed, and needs no leader.
func (n *node) stageIn(_ context.Context, c wire.Caller, r wire.StageRequest) (wire.StageResponse, error) {
	user, err := runsAs(c, r.User)
	if err != nil {
		return wire.StageResponse{}, err
	}
	if r.Drop {
		return wire.StageResponse{Node: n.m.Node}, n.staged.Drop(r.Job, user)
	}
	if err := n.staged.Sweep(halfBrought); err != nil {
		n.log.Warn("remove half-brought files", "error", err)
	}
	missing, err := n.staged.Begin(r.Job, user, r.Manifest)
	if err == nil && len(missing) > 0 {
		if err = n.agent.RoomToStage(r.Manifest.Bytes()); err != nil {
			err = errors.Join(err, n.staged.Drop(r.Job, user))
		}
	}
	return wire.StageResponse{Node: n.m.Node, Missing: missing}, err
}

// halfBrought is after how long without another piece files count as given up by their sender, who was killed.
const halfBrought = time.Hour

// keep takes a piece of a content, if that leaves what is kept for the rest of the machine: others write to the disk, too,
// while gigabytes come. A job that finds no room leaves nothing here.
func (n *node) keep(job launcher.JobID, user, sum string, offset int64, data []byte) error {
	err := n.agent.RoomToStage(int64(len(data)))
	if err == nil {
		err = n.staged.Write(job, user, sum, offset, data)
	}
	if err != nil {
		err = errors.Join(err, n.staged.Drop(job, user))
	}
	return err
}

func (n *node) stageContent(_ context.Context, c wire.Caller, r wire.StageChunk) (wire.Empty, error) {
	user, err := runsAs(c, r.User)
	if err != nil {
		return wire.Empty{}, err
	}
	return wire.Empty{}, n.keep(r.Job, user, r.Sum, r.Offset, r.Data)
}

func (n *node) nodeStaged(_ context.Context, _ wire.Caller, r wire.NodeStageRequest) (stage.Manifest, error) {
	return n.staged.Manifest(r.Job, r.User)
}

func (n *node) nodeStageRead(_ context.Context, _ wire.Caller, r wire.NodeStageRequest, send func(wire.StageChunk) error) error {
	return n.staged.Read(r.Job, r.User, r.Sum, func(offset int64, data []byte) error {
		return send(wire.StageChunk{Job: r.Job, Sum: r.Sum, Offset: offset, Data: data})
	})
}

// bring lays a job's files out on this node, one job at a time, and fetches
// first what is missing here from the node that took them.
func (n *node) bring(ctx context.Context, as launcher.Assignment, uid, gid uint32) error {
	select {
	case n.bringing <- struct{}{}:
		defer func() { <-n.bringing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	spec := as.Spec
	if spec.Staged.From != n.m.Node {
		if err := n.fetch(ctx, spec); err != nil {
			return fmt.Errorf("stage files from %s: %w", n.hostOf(spec.Staged.From), err)
		}
	}
	m, err := n.staged.Manifest(spec.ID, spec.User)
	if err != nil {
		return err
	}
	if m.Sum() != spec.Staged.Sum {
		return fmt.Errorf("stage files: %w: those here are not those that job %s was launched with", launcher.ErrInvalid, spec.ID)
	}
	return n.staged.Lay(spec.ID, spec.User, int(uid), int(gid))
}

// fetch takes what is missing here, one piece at a time, each checked against
// its sum. What is here from an earlier try, or job, is not fetched again.
func (n *node) fetch(ctx context.Context, spec launcher.Spec) error {
	if m, err := n.staged.Manifest(spec.ID, spec.User); err == nil && m.Sum() == spec.Staged.Sum && n.staged.IsLaid(spec.ID) {
		return nil // the node that took them need not be there any more
	}
	from := n.dial.Client(spec.Staged.From)
	m, err := from.NodeStaged(ctx, wire.NodeStageRequest{Job: spec.ID, User: spec.User})
	if err != nil {
		return err
	}
	missing, err := n.staged.Begin(spec.ID, spec.User, m)
	if err != nil {
		return err
	}
	for _, sum := range missing {
		err := from.NodeStageRead(ctx, wire.NodeStageRequest{Job: spec.ID, User: spec.User, Sum: sum}, func(c wire.StageChunk) error {
			return n.keep(spec.ID, spec.User, sum, c.Offset, c.Data)
		})
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", m.PathOf(sum), err), n.staged.Drop(spec.ID, spec.User))
		}
	}
	if len(missing) > 0 {
		n.log.Info("files staged", "job", spec.ID, "from", n.hostOf(spec.Staged.From), "contents", len(missing), "bytes", m.Bytes())
	}
	return nil
}

// dropCache frees the page cache of a machine with a GPU: 1 = clean pages only,
// nothing is written for it (Documentation/admin-guide/sysctl/vm.rst).
func dropCache() error {
	if survey.GPUs("/proc") == 0 {
		return nil
	}
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("1\n"), 0o200)
}
