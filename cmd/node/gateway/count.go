package gateway

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Count is what one key has asked of one model at this member since its agent started.
type Count struct {
	Model string // as its service calls it
	Key   string // empty: no key was needed
	// Requests have come; of them Errors were refused, or ended before their answer was complete, or were answered by
	// the engine with a status from 400 on. A client that went away is none.
	Requests, Errors  int64
	UnderWay, Waiting int64 // now
	FirstByte         Times
	// TokensIn and TokensOut are what answers said they used: streams say it only where they were asked to.
	TokensIn, TokensOut int64
}

// Times are how long something took: how often, all together, and how often no longer than each of TimesUpTo.
type Times struct {
	Count int64
	Sum   time.Duration
	UpTo  [len(TimesUpTo)]int64
}

// TimesUpTo are the bounds that Times are counted by.
var TimesUpTo = [...]time.Duration{
	5 * time.Millisecond, 25 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond,
	500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second,
	30 * time.Second, time.Minute, 5 * time.Minute,
}

// counter is a Count that is being counted.
type counter struct {
	requests, errors, underWay, waiting atomic.Int64
	tokensIn, tokensOut                 atomic.Int64
	first, sum                          atomic.Int64
	upTo                                [len(TimesUpTo)]atomic.Int64
}

func (c *counter) firstByte(d time.Duration) {
	c.first.Add(1)
	c.sum.Add(int64(d))
	for i := len(TimesUpTo) - 1; i >= 0 && d <= TimesUpTo[i]; i-- {
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
func (g *Gateway) Counts() []Count {
	g.counters.mu.RLock()
	defer g.counters.mu.RUnlock()
	out := make([]Count, 0, len(g.counters.all))
	for p, c := range g.counters.all {
		one := Count{
			Model: p.model, Key: p.key, Requests: c.requests.Load(), Errors: c.errors.Load(), UnderWay: c.underWay.Load(),
			Waiting: c.waiting.Load(), TokensIn: c.tokensIn.Load(), TokensOut: c.tokensOut.Load(),
			FirstByte: Times{Count: c.first.Load(), Sum: time.Duration(c.sum.Load())},
		}
		for i := range c.upTo {
			one.FirstByte.UpTo[i] = c.upTo[i].Load()
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b Count) int { return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Key, b.Key)) })
	return out
}
