package discover

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"
)

// Times of unsolicited announcements after the start: RFC 6762, 8.3, requires two or
// more, with doubling pauses.
var unasked = []time.Duration{0, time.Second, 3 * time.Second}

const (
	// mostOften is the shortest time between two of our packets (RFC 6762, 6).
	mostOften = time.Second
	// An answer is sent a random time after the question, so that not all hosts send at once.
	answerAfter, answerWithin = 20 * time.Millisecond, 120 * time.Millisecond
)

// Announce announces on a link that a member is here, and answers queries, until ctx
// ends; then it sends a good-bye (TTL 0). Any other end is an error: the link cannot be
// used.
func Announce(ctx context.Context, on Link, m Member) error {
	a, err := newAnnouncement(m)
	if err != nil {
		return fmt.Errorf("announce %s: %w", m.Host, err)
	}
	w, err := open(on)
	if err != nil {
		return fmt.Errorf("announce %s: %w", m.Host, err)
	}
	if err := announce(ctx, w, a); err != nil {
		return fmt.Errorf("announce %s on %s: %w", m.Host, on.Name, err)
	}
	return ctx.Err()
}

// announce closes the wire.
func announce(ctx context.Context, w wire, a announcement) error {
	asked := make(chan struct{}, 1)
	ended := listen(w, func(packet []byte, _ netip.AddrPort) {
		if !a.asks(packet) {
			return
		}
		select {
		case asked <- struct{}{}:
		default: // an answer is due already
		}
	})
	stop := func(err error) error {
		w.close()
		<-ended //nolint:errcheck // that it was closed
		return err
	}
	began, said := time.Now(), 0
	var last time.Time
	due := time.NewTimer(0)
	defer due.Stop()
	answering := false
	for {
		select {
		case <-asked:
			if answering {
				continue
			}
			at := time.Now().Add(answerAfter + rand.N(answerWithin-answerAfter))
			if soonest := last.Add(mostOften); at.Before(soonest) {
				at = soonest
			}
			if said < len(unasked) && began.Add(unasked[said]).Before(at) {
				continue // about to be sent anyway
			}
			answering = true
			due.Reset(time.Until(at))
		case <-due.C:
			if err := w.send(a.packet); err != nil {
				return stop(err)
			}
			last, answering = time.Now(), false
			for said < len(unasked) && !began.Add(unasked[said]).After(last) {
				said++
			}
			if said < len(unasked) {
				due.Reset(max(time.Until(began.Add(unasked[said])), mostOften))
			}
		case err := <-ended:
			w.close()
			return err
		case <-ctx.Done():
			if !last.IsZero() {
				_ = w.send(a.goodbye) // without it others forget us after lifetime
			}
			return stop(nil)
		}
	}
}
