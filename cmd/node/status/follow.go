package status

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const (
	// coalesce is how long after a word the next one may come: what changes
	// meanwhile is told at once in its newest form. The first change after a
	// quiet time is told without delay.
	coalesce = 50 * time.Millisecond
	// leaderless is how long somebody who has heard a leader's view is left with
	// it while there is none: an election takes no longer, and this node's own
	// view would say that all others are unknown.
	leaderless = 3 * time.Second
	// silences is how often a node without a leader looks again by itself: that
	// somebody does not answer is told by nothing.
	silences = 200 * time.Millisecond
)

// follow tells the cluster's state and then each change of it, never the same
// twice. It goes on under the next leader; without one it is this node's view.
func (s *Status) follow(ctx context.Context, _ wire.Caller, r wire.Empty, send func(wire.Status) error,
	ask wire.AskAll[wire.Empty, wire.Status]) error {
	var told *wire.Status
	var broken error // of send: the caller has gone
	tell := func(st wire.Status) error {
		st.Self = s.cfg.Self.Host
		if told != nil && reflect.DeepEqual(*told, st) {
			return nil
		}
		told = &st
		broken = send(st)
		return broken
	}
	heard := time.Time{} // when a leader's view was the newest
	for {
		_, leadsChanged := s.cfg.Leader.Leads()
		_, leaderChanged := s.cfg.Leads.Watch()
		led := false
		err := ask(ctx, r, func(st wire.Status) error {
			led = true
			return tell(st)
		})
		if led {
			heard = time.Now()
		}
		lost := errors.Is(err, wire.ErrRetry) || errors.Is(err, wire.ErrNoLeader)
		if broken != nil || ctx.Err() != nil || !lost {
			return err
		}
		if time.Since(heard) >= leaderless {
			if err := tell(s.alone(s.Why(err))); err != nil {
				return err
			}
		}
		select {
		case <-leadsChanged:
		case <-leaderChanged:
		case <-time.After(silences):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
