package jobs

import (
	"context"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/mpi"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// AskHead brings fences of this node's MPI ranks to rank 0's node, one a call. No
// leader has a part in it.
func AskHead(d *dial.Dialer) func(context.Context, launcher.Assignment, mpi.Barrier) ([]launcher.Pair, error) {
	return func(ctx context.Context, as launcher.Assignment, f mpi.Barrier) ([]launcher.Pair, error) {
		return wire.Fence(ctx, d.Client(as.HeadNode), wire.FenceRequest{
			Key: as.Key, Node: as.NodeRank, Number: f.Number, Pairs: f.Pairs,
		})
	}
}

func (k *Ranks) fence(ctx context.Context, c wire.Caller, r wire.FenceRequest) ([]launcher.Pair, error) {
	return k.cfg.Agent.Barrier(ctx, c.Node, r.Key, r.Node, mpi.Barrier{Number: r.Number, Pairs: r.Pairs})
}
