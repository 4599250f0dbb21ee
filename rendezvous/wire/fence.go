package wire

import (
	"context"

	"github.com/sparkrun/sparkrun/launcher"
)

// FenceRequest brings what the MPI ranks of one node have put before a fence to
// rank 0's node, and waits there for the other nodes'.
type FenceRequest struct {
	Key    launcher.Key    `json:"key"`
	Node   int             `json:"node"`   // the caller's number in the job
	Number int             `json:"number"` // of the fence, from 1
	Pairs  []launcher.Pair `json:"pairs,omitempty"`
}

// FencePart is a part of what those of all nodes have put.
type FencePart struct {
	Pairs []launcher.Pair `json:"pairs,omitempty"`
}

// fencePart is how many bytes of pairs go in one message, and one pair more: far below
// maxMessage, as far as that is above what one node may bring.
const fencePart = 1 << 20

// ServeFence has fn answer with all pairs; they go in parts.
func ServeFence(fn func(context.Context, Caller, FenceRequest) ([]launcher.Pair, error)) Call {
	return fence.Serve(func(ctx context.Context, c Caller, r FenceRequest, send func(FencePart) error) error {
		all, err := fn(ctx, c, r)
		for err == nil && len(all) > 0 {
			n := 0
			for size := 0; n < len(all) && size < fencePart; n++ {
				size += all[n].Size()
			}
			err = send(FencePart{all[:n]})
			all = all[n:]
		}
		return err
	})
}

// Fence gives what the ranks of all nodes have put, once they are in the fence.
func Fence(ctx context.Context, c *Client, r FenceRequest) (all []launcher.Pair, err error) {
	err = fence.Call(ctx, c, r, func(p FencePart) error {
		all = append(all, p.Pairs...)
		return nil
	})
	return all, err
}
