package jobs

import (
	"context"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/mpi"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// AskHead brings barriers of this node's MPI ranks to rank 0's node, one per call.
// The leader has no part in it.
func AskHead(d *dial.Dialer) func(context.Context, launcher.Assignment, mpi.Barrier) ([]launcher.Pair, error) {
	return func(ctx context.Context, as launcher.Assignment, b mpi.Barrier) ([]launcher.Pair, error) {
		return wire.Barrier(ctx, d.Client(as.HeadNode), wire.BarrierRequest{
			Key: as.Key, Node: as.NodeRank, Number: b.Number, Pairs: b.Pairs,
		})
	}
}

func (k *Ranks) barrier(ctx context.Context, c wire.Caller, r wire.BarrierRequest) ([]launcher.Pair, error) {
	return k.cfg.Agent.Barrier(ctx, c.Node, r.Key, r.Node, mpi.Barrier{Number: r.Number, Pairs: r.Pairs})
}
