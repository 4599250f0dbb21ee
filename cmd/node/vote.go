package node

import (
	"context"
	"errors"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous/consensus"
)

// tryDiskEvery is the pause between two looks whether a disk takes writes again.
const tryDiskEvery = time.Second

// vote is this node's part in raft, and its leadership where it leads. A disk that
// hangs or is full ends that part and no other: ranks and their output go on, calls
// are answered, the next leader's orders are obeyed. Once the disk takes writes
// again the node opens anew. A damaged file, or an entry that this version does not
// know, ends the agent.
func (n *node) vote(ctx context.Context) error {
	err := n.raft.Run(ctx, n.lead)
	if _, disk := errors.AsType[*consensus.DiskError](err); !disk || ctx.Err() != nil {
		return n.wayOut(err)
	}
	n.log.Error("take no part in the vote until the disk takes writes", "error", err)
	for {
		select {
		case <-time.After(tryDiskEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
		tried := make(chan error, 1)
		go func() { tried <- consensus.TryDisk(n.cfg.Paths.raft()) }() // ends when the disk answers
		select {
		case err := <-tried:
			if err == nil {
				n.log.Info("the disk takes writes again")
				return errReopen
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// noVote is why this node has no part in the vote though its agent runs; empty
// where it has one, or is none to have.
func (n *node) noVote() string {
	if fault := n.raft.Fault(); fault != nil {
		return fault.Error()
	}
	return ""
}
