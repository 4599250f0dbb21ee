package wire

import (
	"context"

	"github.com/sparkrun/sparkrun/launcher"
)

// BarrierRequest brings what the MPI ranks of one node have put before a barrier to
// rank 0's node, and waits there for those of the other nodes.
type BarrierRequest struct {
	Key    launcher.Key    `json:"key"`
	Node   int             `json:"node"`   // the caller's number in the job
	Number int             `json:"number"` // of the barrier, from 1
	Pairs  []launcher.Pair `json:"pairs,omitempty"`
}

// BarrierPart is a part of what the ranks of all nodes have put.
type BarrierPart struct {
	Pairs []launcher.Pair `json:"pairs,omitempty"`
}

// barrierPart is how many bytes of pairs go in one message, plus one pair at most: far
// below maxMessage, which in turn is far above what one node may bring.
const barrierPart = 1 << 20

// ServeBarrier answers with all pairs that fn gives, in parts.
func ServeBarrier(fn func(context.Context, Caller, BarrierRequest) ([]launcher.Pair, error)) Call {
	return barrier.Serve(func(ctx context.Context, c Caller, r BarrierRequest, send func(BarrierPart) error) error {
		all, err := fn(ctx, c, r)
		for err == nil && len(all) > 0 {
			n := 0
			for size := 0; n < len(all) && size < barrierPart; n++ {
				size += all[n].Size()
			}
			err = send(BarrierPart{all[:n]})
			all = all[n:]
		}
		return err
	})
}

// Barrier gives what the ranks of all nodes have put, once all have reached the barrier.
func Barrier(ctx context.Context, c *Client, r BarrierRequest) (all []launcher.Pair, err error) {
	err = barrier.Call(ctx, c, r, func(p BarrierPart) error {
		all = append(all, p.Pairs...)
		return nil
	})
	return all, err
}
