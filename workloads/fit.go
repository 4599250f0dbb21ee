package workloads

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/sparkrun/sparkrun/launcher"
)

// Room is a node's memory, in bytes, which its GPU shares.
type Room struct {
	Host             string
	Total, Available int64
	// GPU: it has one; else nothing that runs there is a model's.
	GPU bool
}

// The shares of memory that servers take unless they are told otherwise: vLLM's
// --gpu-memory-utilization (vllm/config/cache.py).
const vllmShare = 0.9

// vllmShareFlag says otherwise.
var vllmShareFlag = serverFlag{name: "--gpu-memory-utilization", least: "--gpu-memory-u"}

// ErrNoRoom is wrapped by the error of Fit where a node's memory is too small, or taken.
var ErrNoRoom = errors.New("no room")

// Fit says, a line a node, what a request to serve takes of its memory, and why it would not
// start there; nil errors: it fits, for all that is known. What a server needs beside weights
// and cache (its kernels, its graphs, the activations) is not worked out: a fit here is no promise.
func Fit(workload string, r Request, rooms []Room) (lines []string, err error) {
	z, nodes, err := ServeSizes(workload, r)
	if err != nil {
		return nil, err
	}
	m := r.Serve.Config
	if m == nil {
		m = &Model{}
	}
	weights := m.Bytes / int64(z.TP*z.PP)
	share := 0.0
	if workload == VLLM {
		share = vllmShare
		if text, given := vllmShareFlag.in(slices.Concat(r.Serve.Command, r.Serve.Args)); given {
			if share, err = strconv.ParseFloat(text, 64); err != nil || !(share > 0 && share <= 1) { // nor NaN
				return nil, fmt.Errorf("%s %s: %w: want a share such as 0.9", vllmShareFlag.name, text, launcher.ErrInvalid)
			}
		}
	}
	for _, room := range rooms {
		takes := int64(share * float64(room.Total))
		line := fmt.Sprintf("%s: %s of %s free", room.Host, gib(room.Available), gib(room.Total))
		if weights > 0 {
			line += "; weights " + gib(weights)
			if nodes > 1 {
				line += fmt.Sprintf(" of %s", gib(m.Bytes))
			}
		}
		if share > 0 {
			line += fmt.Sprintf("; vLLM takes %s (%s %g)", gib(takes), vllmShareFlag.name, share)
			if cache := takes - weights; weights > 0 && cache > 0 && m.perToken(z) > 0 {
				line += fmt.Sprintf(", of which %s are left for the KV cache, %d tokens at 16 bits at most", gib(cache), cache/m.perToken(z))
			}
		}
		lines = append(lines, line)
		if err != nil || !room.GPU {
			continue
		}
		err = m.unfit(room, weights, takes, share)
	}
	return lines, err
}

// unfit says why a node has no room; nil: it has.
func (m Model) unfit(room Room, weights, takes int64, share float64) error {
	switch {
	case weights > room.Total:
		return fmt.Errorf("%s: %w: its part of the weights is %s, and it has %s of memory: more machines take smaller parts", room.Host, ErrNoRoom, gib(weights), gib(room.Total))
	case weights > room.Available:
		return fmt.Errorf("%s: %w: its part of the weights is %s, and %s of its memory are free now: end what runs there (`sparkrun ps`), or take another machine", room.Host, ErrNoRoom, gib(weights), gib(room.Available))
	case share > 0 && weights > takes:
		return fmt.Errorf("%s: %w: its part of the weights is %s, and %s %g gives vLLM %s", room.Host, ErrNoRoom, gib(weights), vllmShareFlag.name, share, gib(takes))
	case share > 0 && takes > room.Available:
		return fmt.Errorf("%s: %w: vLLM would want %s (%s %g of %s), and %s are free now: `-- %s %.2f` is what there is, unless something can be ended there",
			room.Host, ErrNoRoom, gib(takes), vllmShareFlag.name, share, gib(room.Total), gib(room.Available), vllmShareFlag.name, float64(room.Available*100/room.Total)/100)
	}
	return nil
}

// perToken is what a token takes of one node's cache, in bytes, at 16 bits a number.
func (m Model) perToken(z Sizes) int64 {
	tp := int64(z.TP)
	if m.Latent {
		tp = 1
	} else if m.KVHeads > 0 {
		tp = min(tp, int64(m.KVHeads)) // beyond that they are copied
	}
	return 2 * m.KVPerToken / (tp * int64(z.PP))
}

func gib(n int64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }
