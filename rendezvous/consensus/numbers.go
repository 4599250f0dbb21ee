package consensus

import (
	"context"
	"os"
	"path/filepath"
	"time"
)

// Numbers describe a node's copy of the log, for display. Decisions need what Verify
// confirms.
type Numbers struct {
	State   State
	Leader  string // node id; "" if none is known
	Term    uint64
	Commit  uint64 // index of the last entry that is known to be committed
	Applied uint64 // of the last one that the machine has applied
	First   uint64 // of the first entry in the log; 0 for an empty log
	Last    uint64 // of the last entry, in the log or the snapshot
	// Contact is when the leader was last heard; zero if never.
	Contact time.Time

	LogBytes int64 // of the log's file

	// The newest snapshot's; zero if there is none.
	SnapshotIndex uint64
	SnapshotBytes int64
	SnapshotTime  time.Time
}

// Numbers reads them. What the disk does not answer before ctx ends is left out.
func (n *Raft) Numbers(ctx context.Context) Numbers {
	var out Numbers
	out.State = n.State()
	out.Leader, out.Term = n.Leader()
	out.Commit, out.Applied, out.Last = n.r.CommitIndex(), n.AppliedIndex(), n.r.LastIndex()
	out.Contact = n.LastContact()
	type disk struct {
		first, index uint64
		log, size    int64
		at           time.Time
	}
	var d disk // read only after the goroutine has ended
	if err := n.await(ctx, func() error {
		d.first, _ = n.store.FirstIndex()
		if fi, err := os.Stat(filepath.Join(n.cfg.Dir, logFile)); err == nil {
			d.log = fi.Size()
		}
		metas, err := n.snaps.List()
		if err != nil || len(metas) == 0 {
			return err
		}
		d.index, d.size = metas[0].Index, metas[0].Size
		if fi, err := os.Stat(filepath.Join(n.snaps.dir, metas[0].ID)); err == nil {
			d.at = fi.ModTime()
		}
		return nil
	}); err == nil {
		out.First, out.LogBytes, out.SnapshotIndex, out.SnapshotBytes, out.SnapshotTime = d.first, d.log, d.index,
			d.size, d.at
	}
	return out
}
