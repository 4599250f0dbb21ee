package agent

import (
	"context"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// feed is one listener's queue of events. Its length is bounded by what a node's ranks can
// cause: a few events a rank.
type feed struct {
	mu   sync.Mutex
	evs  []launcher.Event
	more chan struct{} // capacity 1
	bell bool          // evs stays empty: the listener only wants to know that something happened
}

// Kinds of subscription.
const (
	events = false
	bell   = true
)

// Events subscribes to what happens from now on. next waits for the next event; cancel ends
// the subscription. Read the Ledger after subscribing: what happens in between is then seen
// twice, which is harmless, and never missed.
func (a *Agent) Events() (next func(context.Context) (launcher.Event, error), cancel func()) {
	f := a.subscribe(events)
	return f.next, func() { a.unsubscribe(f) }
}

func (a *Agent) subscribe(kind bool) *feed {
	f := &feed{more: make(chan struct{}, 1), bell: kind}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.feeds[f] = struct{}{}
	return f
}

func (a *Agent) unsubscribe(f *feed) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.feeds, f)
}

func (f *feed) next(ctx context.Context) (launcher.Event, error) {
	for {
		f.mu.Lock()
		if len(f.evs) > 0 {
			ev := f.evs[0]
			f.evs = f.evs[1:]
			f.mu.Unlock()
			return ev, nil
		}
		f.mu.Unlock()
		select {
		case <-f.more:
		case <-ctx.Done():
			return launcher.Event{}, ctx.Err()
		}
	}
}

// emit sends an event to all listeners. a.mu is held.
func (a *Agent) emit(ev launcher.Event) {
	ev.Node = a.cfg.Node
	if ev.Time.IsZero() {
		ev.Time = time.Now()
	}
	for f := range a.feeds {
		f.mu.Lock()
		if !f.bell {
			f.evs = append(f.evs, ev)
		}
		f.mu.Unlock()
		select {
		case f.more <- struct{}{}:
		default:
		}
	}
}
