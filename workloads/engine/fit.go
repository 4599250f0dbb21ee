package engine

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads"
)

// Room is a node's memory, in bytes, which its GPU shares.
type Room struct {
	Host             string
	Total, Available int64
	// GPU: it has one; else nothing that runs there is a model's.
	GPU bool
}

// ErrNoRoom is wrapped by the error of Fit where a node's memory is too small, or taken.
var ErrNoRoom = errors.New("no room")

// Fit says, a line a node, what a request to serve takes of its memory; what may keep it from starting
// there; and why it would not: nil errors mean that it fits, for all that is known. What a server needs
// beside weights and cache (its kernels, its graphs, the activations) is not worked out: a fit here is
// no promise.
func (e Engine) Fit(r workloads.Request, rooms []Room) (lines, doubts []string, err error) {
	z, nodes, err := e.Sizes(r)
	if err != nil {
		return nil, nil, err
	}
	m := r.Serve.Config
	if m == nil {
		m = &workloads.Model{}
	}
	weights := m.Bytes / int64(z.TP*z.PP)
	share := e.memory.Share
	if text, given := e.memory.Flag.In(slices.Concat(r.Serve.Command, r.Serve.Args)); given {
		if share, err = strconv.ParseFloat(text, 64); err != nil || !(share > 0 && share <= 1) { // nor NaN
			return nil, nil, fmt.Errorf("%s %s: %w: want a share such as 0.9", e.memory.Flag.Name, text, launcher.ErrInvalid)
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
			line += fmt.Sprintf("; %s takes %s (%s %g)", e.Title, gib(takes), e.memory.Flag.Name, share)
			if cache := takes - weights; weights > 0 && cache > 0 && m.PerToken(z) > 0 {
				line += fmt.Sprintf(", of which %s are left for the KV cache, %d tokens at 16 bits at most", gib(cache),
					cache/m.PerToken(z))
			}
		}
		lines = append(lines, line)
		need := need{Model: m, engine: e, room: room, sizes: z, nodes: nodes, weights: weights, takes: takes, share: share}
		unfit := need.unfit()
		switch {
		case unfit != nil && err == nil:
			err = unfit
		case unfit == nil && takes > room.Available && (room.GPU || !e.saysCache(r)):
			text := need.crowded()
			if room.GPU && err == nil {
				err = fmt.Errorf("%s: %w: %s", room.Host, ErrNoRoom, text)
			} else if !room.GPU {
				doubts = append(doubts, room.Host+": "+text+"; a "+e.Title+" for CPUs may end at once for that")
			}
		}
	}
	return lines, doubts, err
}

// saysCache tells whether the server is told the size of its cache.
func (e Engine) saysCache(r workloads.Request) bool {
	_, space := workloads.Lookup(slices.Concat(r.Serve.Env, r.Env), e.memory.CacheVar)
	_, given := e.memory.Cache.In(slices.Concat(r.Serve.Command, r.Serve.Args))
	return space || given
}

// need is what a server takes of a node, in bytes: its part of the weights, and what it takes in all.
type need struct {
	*workloads.Model
	engine         Engine
	room           Room
	sizes          workloads.Sizes
	nodes          int
	weights, takes int64
	share          float64
}

// ownStart is what a server that takes a share takes by itself, in bytes, before it looks at what is free: Python,
// PyTorch // and the GPU's context. A share that leaves it nothing would fail again.
const ownStart = 3 << 30

// unfit says why the weights have no room on a node, whatever else runs there; nil: they have.
func (n need) unfit() error {
	var why string
	switch {
	case n.weights > n.room.Total:
		why = "it has " + gib(n.room.Total) + " of memory" + n.spread("", n.room.Total)
	case n.weights > n.room.Available:
		why = gib(n.room.Available) + " of its memory are free now: end what runs there (`sparkrun ps`), or take another " +
			"machine" + n.spread(", or more of them", n.room.Available)
	case n.share > 0 && n.weights > n.takes && n.room.GPU:
		why = fmt.Sprintf("%s %g gives %s %s%s", n.engine.memory.Flag.Name, n.share, n.engine.Title, gib(n.takes),
			n.spread(": a larger share, or more machines", n.room.Total))
	default:
		return nil
	}
	return fmt.Errorf("%s: %w: its part of the weights is %s, and %s", n.room.Host, ErrNoRoom, gib(n.weights), why)
}

// spread names the nearest number of machines like this one of which each takes less than most of the
// weights, behind a lead.
func (n need) spread(lead string, most int64) string {
	if n.share > 0 {
		most = min(most, n.takes)
	}
	for nodes := n.nodes + 1; nodes <= workloads.MaxSpread; nodes++ {
		z, _, err := workloads.Spread(nodes, workloads.Sizes{DP: n.sizes.DP}, n.Model)
		if err != nil {
			continue
		}
		if part := n.Bytes / int64(z.TP*z.PP); part < most {
			if lead == "" {
				lead = ": more machines take smaller parts"
			}
			return fmt.Sprintf("%s; nearest that works: --nodes %d, with %s on each", lead, nodes, gib(part))
		}
	}
	return lead
}

// crowded says that its share is more than what is free, and which would not be.
func (n need) crowded() string {
	text := fmt.Sprintf("%s wants %s (%s %g of %s), and %s are free now: ", n.engine.Title, gib(n.takes),
		n.engine.memory.Flag.Name, n.share, gib(n.room.Total), gib(n.room.Available))
	if left := n.room.Available - ownStart; left > n.weights && left*100/n.room.Total > 0 {
		return text + fmt.Sprintf("end what runs there, or give it less: `-- %s %.2f`", n.engine.memory.Flag.Name,
			float64(left*100/n.room.Total)/100)
	}
	return text + "end what runs there (`sparkrun ps`), or take another machine"
}

// gib is a size in GiB, or in MiB where that would be none.
func gib(n int64) string {
	if n > 0 && n < 1<<30/10 {
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}
