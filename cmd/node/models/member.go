package models

import (
	"context"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher/filesync/relay"
)

// member is another node as a source of an order's files. One that has given no answer for a while is left out of the
// files that begin: each would wait for it anew.
type member struct {
	relay.Remote
	on *presence
}

type presence struct {
	mu       sync.Mutex
	answered time.Time
	leftOut  time.Time // when it was found silent
}

const (
	silentAfter  = 5 * time.Second
	silentAgain  = 30 * time.Second
	silentAtOnce = time.Second
)

// State is a Source's.
func (s member) State(ctx context.Context, from int, wait time.Duration) (relay.State, error) {
	st, err := s.Remote.State(ctx, from, wait)
	s.on.mu.Lock()
	defer s.on.mu.Unlock()
	if err == nil {
		s.on.answered, s.on.leftOut = time.Now(), time.Time{}
	} else if time.Since(s.on.answered) > silentAfter && s.on.leftOut.IsZero() {
		s.on.leftOut = time.Now()
	}
	return st, err
}

// present tells whether it is worth asking; after a while it is asked again.
func (p *presence) present() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.leftOut.IsZero() && time.Since(p.leftOut) > silentAgain {
		p.leftOut, p.answered = time.Time{}, time.Now().Add(silentAtOnce-silentAfter)
	}
	return p.leftOut.IsZero()
}
