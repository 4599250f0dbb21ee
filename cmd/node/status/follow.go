package status

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const (
	// coalesce is the least time between two updates: changes meanwhile are sent together
	// in their newest form. The first change after a quiet time is sent without delay.
	coalesce = 50 * time.Millisecond
	// leaderless is how long a caller keeps the last leader's view while there is no
	// leader: an election takes no longer, and this node's own view would call all others
	// unknown.
	leaderless = 3 * time.Second
	// silences is how often a node without a leader looks again by itself, since no event
	// says that another node does not answer.
	silences = 200 * time.Millisecond
)

// follow sends the cluster's state and then each change of it, never the same twice. It
// continues under the next leader; without one it sends this node's view.
func (s *Status) follow(ctx context.Context, _ wire.Caller, r wire.Empty, send func(wire.Status) error,
	ask wire.AskAll[wire.Empty, wire.Status]) error {
	var told *wire.Status
	var broken error // send failed: the caller has gone
	tell := func(st wire.Status) error {
		st.Self = s.cfg.Self.Host
		if told != nil && reflect.DeepEqual(*told, st) {
			return nil
		}
		told = &st
		broken = send(st)
		return broken
	}
	heard := time.Time{} // when the newest view was a leader's
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
