package wire

import (
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
