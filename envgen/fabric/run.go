package fabric

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
)

// idle is the least pause before the next re-read, in multiples of the time of the last one: a tree that is slow to
// read (four rxe devices of 1024 GIDs on an emulated machine took 6 s) costs at most a tenth of a core. Events do
// not wait for it.
const idle = 9

// Run reads the node and calls changed with the inventory, and again whenever it differs from the one before: after
// a link, address or route event within Debounce and a read, after anything else within Reread (later where reading
// is slow: idle). changed is called from one goroutine, one call at a time, and delays the next read. A read that
// fails is logged and leaves the last inventory in force. Run returns ctx's cause, or the first read's error.
func (r *Reader) Run(ctx context.Context, changed func(envgen.Inventory)) error {
	ctx, cancel := context.WithCancel(ctx)
	var listener sync.WaitGroup
	defer listener.Wait()
	defer cancel()

	events := make(chan struct{}, 1)
	listener.Go(func() { r.listen(ctx, events) })

	last, err := r.Read(ctx)
	if err != nil {
		return err
	}
	changed(last)

	timer := time.NewTimer(r.cfg.Reread)
	defer timer.Stop()
	incoming := (<-chan struct{})(events)
	for next := r.cfg.Reread; ; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-incoming:
			// Further events do not extend the wait, so that changes are reported during a storm of
			// them too.
			incoming, next = nil, 0
			timer.Reset(r.cfg.Debounce)
		case <-timer.C:
			began := time.Now()
			if now, err := r.Read(ctx); err != nil {
				if !errors.Is(err, context.Canceled) {
					r.cfg.Log.Warn("cannot read the fabric; the last inventory stands", "err", err)
				}
			} else if !reflect.DeepEqual(now, last) {
				last = now
				changed(now)
			}
			incoming = events
			// GID table and port state follow link and address later, without an event.
			next = min(max(2*next, r.cfg.Settle), r.cfg.Reread)
			timer.Reset(max(next, idle*time.Since(began)))
		}
	}
}

// listen keeps the event source running. Without it changes are found Reread later, not
// lost.
func (r *Reader) listen(ctx context.Context, events chan<- struct{}) {
	poke := func() {
		select {
		case events <- struct{}{}:
		default: // an event is pending, which will cover this change too
		}
	}
	for {
		err := r.cfg.Events(ctx, poke)
		if ctx.Err() != nil {
			return
		}
		r.cfg.Log.Warn("lost the kernel's network events; subscribing again", "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(r.cfg.Reread):
		}
	}
}
