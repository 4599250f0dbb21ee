package wire

import (
	"context"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// Pong answers a heartbeat with its number and the node's clock.
type Pong struct {
	Ping  uint64    `json:"ping"`
	Clock time.Time `json:"clock"`
	// Stamp is made at that moment, for Down.Echo. 0: this node gives no leases.
	Stamp launcher.Uptime `json:"stamp,omitempty"`
}

// clockAge is how long a good measurement is preferred to a newer, worse one: in that
// time clocks drift by about 10 ms at worst (100 ppm; RFC 5905 allows 500).
const clockAge = time.Minute

// clock measures how far a node's clock is ahead of ours, by the heartbeats of one
// stream. The answer left the node at some moment between our question and its arrival:
// the middle is wrong by at most half of that time.
type clock struct {
	number uint64    // of the last question
	asked  time.Time // when; by the monotonic clock
	known  bool
	bound  time.Duration // of the error of what was told last
	at     time.Time     // when that was measured
}

// ask makes the next question.
func (c *clock) ask(now time.Time) Down {
	c.number, c.asked = c.number+1, now
	return Down{Ping: c.number}
}

// hear takes an answer; ok: it is the best measurement so far.
func (c *clock) hear(p Pong, now time.Time) (ahead time.Duration, ok bool) {
	if p.Ping != c.number || p.Clock.IsZero() {
		return 0, false
	}
	round := now.Sub(c.asked)
	if c.known && round/2 > c.bound && now.Sub(c.at) < clockAge {
		return 0, false
	}
	c.known, c.bound, c.at = true, round/2, now
	return p.Clock.Sub(now.Add(-round / 2)), true
}

// A node that gives leases stamps its messages with its own clock. A stamp goes back once
// this node has proven that it leads, by a proof that began after the stamp had come: so
// no other node led when it was made. rendezvous/DESIGN.md says what this is for.

// stamp waits for its echo, on the stream and for the boot that it came from.
type stamp struct {
	at     launcher.Uptime // 0: none waits
	boot   string          // of the node
	stream uint64          // of the stream
}

// stampIs takes a stamp; the previous one needs no echo any more.
func (n *linkLoop) stampIs(boot string, at launcher.Uptime) {
	if at == 0 || n.l.cfg.Prove == nil {
		return
	}
	n.mu.Lock()
	n.stamp = stamp{at, boot, n.stream}
	n.mu.Unlock()
	select {
	case n.l.stamped <- struct{}{}:
	default:
	}
}

// echo proves and answers, for all nodes together, until ctx ends.
func (l *Links) echo(ctx context.Context) {
	for {
		select {
		case <-l.stamped:
		case <-ctx.Done():
			return
		}
		due := l.takeStamps() // before the proof begins: it is valid only for these
		if err := l.cfg.Prove(ctx); err != nil {
			continue // later stamps are under way
		}
		for n, s := range due {
			l.cfg.OnEcho(n.node, s.boot, s.at)
			n.answer(s)
		}
		select {
		case <-time.After(l.cfg.EchoPause):
		case <-ctx.Done():
			return
		}
	}
}

func (l *Links) takeStamps() map[*linkLoop]stamp {
	l.mu.Lock()
	defer l.mu.Unlock()
	due := map[*linkLoop]stamp{}
	for _, n := range l.nodes {
		n.mu.Lock()
		if n.stamp.at != 0 {
			due[n] = n.stamp
		}
		n.stamp = stamp{}
		n.mu.Unlock()
	}
	return due
}

// answer echoes a stamp on the stream on which it came, or not at all: another stream may
// lead to another boot.
func (n *linkLoop) answer(s stamp) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stream == s.stream {
		n.enqueue(Down{Echo: s.at})
	}
}
