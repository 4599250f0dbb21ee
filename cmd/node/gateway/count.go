package gateway

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// counter is a wire.GatewayCount that is being counted.
type counter struct {
	requests, errors, underWay, waiting atomic.Int64
	tokensIn, tokensOut                 atomic.Int64
	first, sum                          atomic.Int64
	upTo                                [len(wire.GatewayTimes)]atomic.Int64
}

func (c *counter) firstByte(d time.Duration) {
	c.first.Add(1)
	c.sum.Add(int64(d))
	for i := len(wire.GatewayTimes) - 1; i >= 0 && d <= wire.GatewayTimes[i]; i-- {
		c.upTo[i].Add(1)
	}
}

// maxCounters bounds them: models come and go, and so do keys. What comes later is counted together.
const maxCounters = 4096

type pair struct{ model, key string }

type counters struct {
	mu  sync.RWMutex
	all map[pair]*counter
}

func (c *counters) of(model, key string) *counter {
	p := pair{model, key}
	c.mu.RLock()
	one := c.all[p]
	c.mu.RUnlock()
	if one != nil {
		return one
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.all) >= maxCounters {
		p = pair{"(others)", "(others)"}
	}
	if one = c.all[p]; one == nil {
		one = &counter{}
		c.all[p] = one
	}
	return one
}

// Counts are what was asked for at this member, by model and key.
func (g *Gateway) Counts() []wire.GatewayCount {
	g.counters.mu.RLock()
	defer g.counters.mu.RUnlock()
	out := make([]wire.GatewayCount, 0, len(g.counters.all))
	for p, c := range g.counters.all {
		one := wire.GatewayCount{
			Model: p.model, Key: p.key, Requests: c.requests.Load(), Errors: c.errors.Load(), UnderWay: c.underWay.Load(),
			Waiting: c.waiting.Load(), TokensIn: c.tokensIn.Load(), TokensOut: c.tokensOut.Load(),
			FirstByte: wire.GatewayFirstByte{Count: c.first.Load(), Sum: time.Duration(c.sum.Load())},
		}
		for i := range c.upTo {
			one.FirstByte.UpTo = append(one.FirstByte.UpTo, c.upTo[i].Load())
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b wire.GatewayCount) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Key, b.Key))
	})
	return out
}

// passing is how many requests are under way, and how many were told of.
type passing struct {
	now  atomic.Int64
	mu   sync.Mutex
	told int64
}

// passingStep is the least change that is told.
const passingStep = 64

// pass counts a request in, or out again: it is told when there are more than were told of, or less than half of them.
func (g *Gateway) pass(n int64) {
	now := g.passing.now.Add(n)
	if g.cfg.Passing == nil || now%passingStep != 0 {
		return
	}
	g.passing.mu.Lock()
	defer g.passing.mu.Unlock()
	now = g.passing.now.Load()
	if told := g.passing.told; now > told || now < told/2 || now == 0 && told > 0 {
		g.passing.told = (now + passingStep - 1) / passingStep * passingStep
		g.cfg.Passing(int(g.passing.told))
	}
}
