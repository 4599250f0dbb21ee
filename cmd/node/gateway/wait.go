package gateway

import (
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// Bounds of waiting for a service that comes.
const (
	waitingMost   = 1024 // at this member
	waitingOfEach = 256  // for one model
	// waitMost is less than the 10 minutes after which OpenAI's and Anthropic's clients give up and ask anew.
	waitMost = 9 * time.Minute
	// commentEach is how often a client that asked for a stream is told that it waits; one that waits no longer learns
	// the engine's own status.
	commentEach = 5 * time.Second
	// reachPatience is how long a service is tried that is said to be ready but does not take a connection, each
	// reachEach: it may have ended, which the leader will tell.
	reachPatience = 30 * time.Second
	reachEach     = time.Second
	// cutPatience is how long an old map is gone by.
	cutPatience = 30 * time.Second
	// A session's service is left for the least busy one when it has this many more requests, and twice as many.
	sessionSlack = 16
)

// lines count those who wait.
type lines struct {
	mu  sync.Mutex
	all int
	of  map[string]int // by model
}

func (l *lines) enter(model string) *refusal {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.of[model] >= waitingOfEach:
		return refuse(503, "", "model %s starts, and %d requests wait for it, at most so many: ask again later", model,
			waitingOfEach).after(30 * time.Second)
	case l.all >= waitingMost:
		return refuse(503, "", "%d requests wait at this member for models that start, at most so many: ask again later",
			waitingMost).after(30 * time.Second)
	}
	l.all++
	l.of[model]++
	return nil
}

func (l *lines) leave(model string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.of[model]--; l.of[model] == 0 {
		delete(l.of, model)
	}
}

// miss is a service that took no connection.
type miss struct {
	job        launcher.JobID
	generation launcher.Generation
	at         time.Time
	err        error
}

// choice is what is to be done with a request now: exactly one of the first three.
type choice struct {
	to   *backend
	no   *refusal
	wait bool
	// wake are the services that the leader is to be asked for meanwhile: the first one that may start.
	wake []*backend
	// again is when to choose anew even if the map does not change; zero: only then.
	again time.Time
}

// stale tells that the map is none to go by, or when it will not be.
func (x *index) stale(host string, now time.Time) (no *refusal, at time.Time) {
	switch {
	case x.Since.IsZero():
		return refuse(503, "", "member %s has not heard from its leader yet: ask again, or ask another member", host).
			after(2 * time.Second), at
	case !x.Cut:
		return nil, at
	}
	at = x.Since.Add(cutPatience)
	if now.Before(at) {
		return nil, at
	}
	return refuse(503, "", "member %s has been cut off from its leader for %s: ask another member, or see "+
		"`sparkrun status`", host, now.Sub(x.Since).Round(time.Second)).after(15 * time.Second), at
}

// choose decides by the map.
func (g *Gateway) choose(rq *request, x *index, now time.Time) choice {
	no, again := x.stale(g.cfg.Host, now)
	if no != nil {
		return choice{no: no}
	}
	backends := x.models[rq.model]
	if rq.pin != nil {
		if backends, no = rq.pin.among(backends); no != nil {
			return choice{no: no}
		}
	}
	if len(backends) == 0 {
		return choice{no: x.unknown(rq.asked, rq.key)}
	}
	var ready []*backend
	var first time.Time // missed
	var last *miss
	comes, unreached := false, 0
	var asleep, queued []*backend
	for _, b := range backends {
		comes = comes || b.Comes
		if b.Asleep() {
			asleep = append(asleep, b)
		}
		if b.Queued() && rq.key.mayWake() {
			queued = append(queued, b)
		}
		if !b.Ready {
			continue
		}
		m := rq.missed(b)
		if m == nil || now.Sub(m.at) >= reachEach {
			ready = append(ready, b)
			if b.load.unreached.Load() {
				unreached++
			}
		}
		if m != nil {
			last = m
			again = earlier(again, m.at.Add(reachEach))
		}
	}
	if len(rq.misses) > 0 {
		first = rq.misses[0].at
	}
	if unreached > 0 && unreached < len(ready) {
		ready = slices.DeleteFunc(ready, func(b *backend) bool { return b.load.unreached.Load() })
	}
	switch {
	case last != nil && !comes && now.Sub(first) >= reachPatience:
		return choice{no: refuse(503, "", "model %s is said to be ready, but cannot be reached from %s: %s; ask another "+
			"member, or see `sparkrun doctor`", rq.model, g.cfg.Host, last.err).after(10 * time.Second)}
	case len(ready) > 0:
		return choice{to: g.pick(rq.session, ready)}
	case last != nil || comes:
		return choice{wait: true, again: again, wake: queued}
	case len(asleep) > 0 && !rq.key.mayWake():
		return choice{no: refuse(503, "", "model %s is asleep, and key %s may not wake it (--no-wake)", rq.model,
			rq.key.name).after(30 * time.Second)}
	case len(asleep) > 0:
		return choice{wait: true, again: again, wake: asleep}
	}
	return choice{no: down(rq.model, backends)}
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// down tells of a model whose services neither run nor come.
func down(model string, backends []*backend) *refusal {
	b := backends[0]
	text := b.State
	if b.Text != "" {
		text += ": " + b.Text
	}
	return refuse(503, "", "model %s does not answer: its service %s is %s; see `sparkrun service ls`",
		model, b.service(), text).
		after(30 * time.Second)
}

// pick gives one of those that are ready: that of the session, so that the engine finds the beginning of the
// conversation in its cache, or the one with the least under way.
func (g *Gateway) pick(session string, ready []*backend) *backend {
	if len(ready) == 1 {
		return ready[0]
	}
	turn := int(g.turn.Add(1) % uint64(len(ready))) // among equals each has its turn
	least := ready[turn]
	for i := range ready {
		if b := ready[(turn+i)%len(ready)]; b.load.underWay.Load() < least.load.underWay.Load() {
			least = b
		}
	}
	if session == "" {
		return least
	}
	var best *backend
	var most uint64
	for _, b := range ready { // rendezvous hashing: all members choose the same, and few sessions move when one goes
		h := fnv.New64a()
		fmt.Fprintf(h, "%s\x00%s", b.Job, session)
		if sum := mix(h.Sum64()); best == nil || sum > most {
			best, most = b, sum
		}
	}
	if busy, min := best.load.underWay.Load(), least.load.underWay.Load(); busy > 2*min && busy > min+sessionSlack {
		return least
	}
	return best
}

// mix spreads FNV's low bits: its last bytes hardly change the high ones, by which hashes are compared. (The
// finalizer of MurmurHash3.)
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// place gives the service that is to be asked, and waits while one comes.
func (g *Gateway) place(rq *request) (*backend, *refusal) {
	c := g.choose(rq, g.index.Load(), time.Now())
	if !c.wait {
		return c.to, c.no
	}
	if no := g.lines.enter(rq.model); no != nil {
		return nil, no
	}
	if no := g.readOn(rq); no != nil {
		g.lines.leave(rq.model)
		return nil, no
	}
	rq.counter.waiting.Add(1)
	defer func() {
		rq.counter.waiting.Add(-1)
		g.lines.leave(rq.model)
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	if rq.waits.IsZero() {
		rq.waits = time.Now()
		rq.comments = rq.waits.Add(commentEach)
	}
	until := rq.waits.Add(waitMost)
	for {
		x, changed := g.index.Watch()
		now := time.Now()
		if no := x.still(rq.key, now); no != nil {
			return nil, no
		}
		c := g.choose(rq, x, now)
		switch {
		case !c.wait:
			return c.to, c.no
		case !now.Before(until):
			return nil, refuse(503, "", "model %s did not become ready within %s: see `sparkrun service ls`",
				rq.model, waitMost).
				after(maxRetryAfter)
		}
		next := until
		if !c.again.IsZero() {
			next = earlier(next, c.again)
		}
		var woken <-chan struct{}
		if len(c.wake) > 0 {
			switch w := g.uses.wake(c.wake); {
			case !w.is():
				woken = w.done
			case w.no != "" && c.wake[0].Asleep():
				return nil, refuse(503, "", "model %s is asleep and %s", rq.model, w.no).after(30 * time.Second)
			default: // the map will say so
				next = earlier(next, w.at.Add(wakeEach))
			}
		}
		if rq.scan.stream && rq.route.streams {
			if !now.Before(rq.comments) {
				if rq.answer.comment("waiting for "+rq.model+" to start") != nil {
					return nil, errGone
				}
				rq.comments = now.Add(commentEach)
			}
			next = earlier(next, rq.comments)
		}
		timer.Reset(next.Sub(now))
		select {
		case <-changed:
		case <-woken:
		case <-timer.C:
		case <-rq.r.Context().Done():
			return nil, errGone
		}
	}
}

// errGone: the client is, or this member's agent ends. Nobody reads it.
var errGone = &refusal{status: 499, text: "the client is gone"}
