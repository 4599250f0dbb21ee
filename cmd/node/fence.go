package node

import (
	"context"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/mpi"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// askHead brings one fence of this node's MPI ranks to rank 0's node. No leader has a
// part in it.
func (n *node) askHead(ctx context.Context, as launcher.Assignment, f mpi.Fence) ([]launcher.Pair, error) {
	return wire.Fence(ctx, n.dial.Client(as.HeadNode), wire.FenceRequest{Key: as.Key, Node: as.NodeRank, Number: f.Number, Pairs: f.Pairs})
}

func (n *node) fence(ctx context.Context, c wire.Caller, r wire.FenceRequest) ([]launcher.Pair, error) {
	return n.agent.Fence(ctx, c.Node, r.Key, r.Node, mpi.Fence{Number: r.Number, Pairs: r.Pairs})
}
