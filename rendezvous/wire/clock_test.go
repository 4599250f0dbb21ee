package wire

import (
	"testing"
	"time"
)

// The offset is right to half a round trip, and a quick answer's is not replaced
// by a slow one's before it is old.
func TestClock(t *testing.T) {
	var c clock
	const ahead = time.Hour
	now := time.Now()
	steps := []struct {
		there, back time.Duration // the question's and the answer's way
		pause       time.Duration // before the question
		late        bool          // the answer is to the question before
		want        bool
	}{
		{there: 40 * time.Millisecond, back: 10 * time.Millisecond, want: true},
		{there: time.Millisecond, back: 2 * time.Millisecond, want: true},
		{there: 50 * time.Millisecond, back: time.Millisecond},
		{there: time.Microsecond, back: time.Microsecond, late: true},
		{there: 8 * time.Millisecond, back: 0, pause: clockAge, want: true},
	}
	for i, s := range steps {
		now = now.Add(s.pause)
		q := c.ask(now)
		p := Pong{Ping: q.Ping, Clock: now.Add(s.there + ahead)}
		if s.late {
			p.Ping--
		}
		now = now.Add(s.there + s.back)
		got, ok := c.hear(p, now)
		if ok != s.want {
			t.Fatalf("answer %d: taken %t", i, ok)
		}
		if off := (got - ahead).Abs(); ok && off > (s.there+s.back)/2 {
			t.Errorf("answer %d: wrong by %s after a round of %s", i, off, s.there+s.back)
		}
	}
}
