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
	// Later: the server starts once others have gone, so that what they hold now does not count.
	Later bool
}

// free is what a server may find free there.
func (r Room) free() int64 {
	if r.Later {
		return r.Total
	}
	return r.Available
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
	claim, err := e.claim(r)
	if err != nil {
		return nil, nil, err
	}
	for _, room := range rooms {
		takes, said := claim.of(room)
		line := fmt.Sprintf("%s: %s of %s free", room.Host, gib(room.Available), gib(room.Total))
		if weights > 0 {
			line += "; weights " + gib(weights)
			if nodes > 1 {
				line += fmt.Sprintf(" of %s", gib(m.Bytes))
			}
		}
		if takes > 0 {
			line += fmt.Sprintf("; %s takes %s (%s)", e.Title, gib(takes), said)
			if cache := takes - weights; weights > 0 && cache > 0 && m.PerToken(z) > 0 {
				line += fmt.Sprintf(", of which %s are left for the KV cache, %d tokens at 16 bits at most", gib(cache),
					cache/m.PerToken(z))
			}
		}
		lines = append(lines, line)
		need := need{Model: m, engine: e, room: room, sizes: z, nodes: nodes, weights: weights, takes: takes, said: said,
			planned: claim.planned != nil}
		unfit := need.unfit()
		switch {
		case unfit != nil && err == nil:
			err = unfit
		case unfit == nil && takes > room.free() && (room.GPU || !e.saysCache(r)):
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

// claim is what a server takes of a machine's memory: what --memory plans, or else a share of all.
type claim struct {
	planned *launcher.Memory
	share   float64 // 0: what it needs
	flag    string
}

// claim reads it from a request. What stands after -- decides; a recipe's flag gives way to --memory.
func (e Engine) claim(r workloads.Request) (claim, error) {
	c := claim{planned: r.Job.Memory, share: e.memory.Share, flag: e.memory.Flag.Name}
	words := r.Serve.Args
	if c.planned == nil {
		words = slices.Concat(r.Serve.Command, r.Serve.Args)
	}
	text, given := e.memory.Flag.In(words)
	if !given {
		return c, nil
	}
	c.planned = nil
	var err error
	if c.share, err = strconv.ParseFloat(text, 64); err != nil || !(c.share > 0 && c.share <= 1) { // nor NaN
		return c, fmt.Errorf("%s %s: %w: want a share such as 0.9", c.flag, text, launcher.ErrInvalid)
	}
	return c, nil
}

// of gives the bytes that it takes of a machine, 0 where that is not known, and what says so.
func (c claim) of(room Room) (takes int64, said string) {
	if c.planned != nil {
		return c.planned.Bytes, "--memory"
	}
	return int64(c.share * float64(room.Total)), fmt.Sprintf("%s %g", c.flag, c.share)
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
	said           string // what says how much it takes
	planned        bool   // --memory does
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
	case n.weights > n.room.free():
		why = gib(n.room.Available) + " of its memory are free now: end what runs there (`sparkrun ps`), or take another " +
			"machine" + n.spread(", or more of them", n.room.Available)
	case n.takes > 0 && n.weights > n.takes && n.room.GPU:
		more := ": a larger share, or more machines"
		if n.planned {
			more = ": more of it, or more machines"
		}
		why = fmt.Sprintf("%s gives %s %s%s", n.said, n.engine.Title, gib(n.takes), n.spread(more, n.room.Total))
	default:
		return nil
	}
	return fmt.Errorf("%s: %w: its part of the weights is %s, and %s", n.room.Host, ErrNoRoom, gib(n.weights), why)
}

// spread names the nearest number of machines like this one of which each takes less than most of the
// weights, behind a lead.
func (n need) spread(lead string, most int64) string {
	if n.takes > 0 {
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

// crowded says that what it takes is more than what is free, and what would not be.
func (n need) crowded() string {
	of := ""
	if !n.planned {
		of = " of " + gib(n.room.Total)
	}
	text := fmt.Sprintf("%s wants %s (%s%s), and %s are free now: ", n.engine.Title, gib(n.takes), n.said, of,
		gib(n.room.Available))
	left := n.room.Available - ownStart
	switch {
	case left <= n.weights || left*100/n.room.Total == 0:
		return text + "end what runs there (`sparkrun ps`), or take another machine"
	case n.planned:
		return text + fmt.Sprintf("end what runs there, or give it less: --memory %dG", left>>30)
	}
	return text + fmt.Sprintf("end what runs there, or give it less: `-- %s %.2f`", n.engine.memory.Flag.Name,
		float64(left*100/n.room.Total)/100)
}

// gib is a size in GiB, or in MiB where that would be none.
func gib(n int64) string {
	if n > 0 && n < 1<<30/10 {
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}
