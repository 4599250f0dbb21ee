package fabric

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
)

// idle is how long the next re-read waits at least, in times of what the last read took: a tree that is slow to read (four
// rxe devices of 1024 GIDs on an emulated machine took 6 s) costs a tenth of a core at most. Events do not wait for it.
const idle = 9

// Run reads the node, calls changed with the inventory, and again whenever it differs from the one before: within
// Debounce and a read of a link, address or route event, within Reread of anything else (later where reading is slow: idle). changed is called by one
// goroutine, one call at a time, and holds up the next read while it runs. A read that fails is logged and leaves
// the last inventory standing. Run returns ctx's cause, or the first read's error.
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
			// The wait is not prolonged by further events: under a storm of them news still comes out.
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
			// GID table and port state follow the link and the address, and nothing tells when.
			next = min(max(2*next, r.cfg.Settle), r.cfg.Reread)
			timer.Reset(max(next, idle*time.Since(began)))
		}
	}
}

// listen keeps the event source going. Without it news would be Reread late, not lost.
func (r *Reader) listen(ctx context.Context, events chan<- struct{}) {
	poke := func() {
		select {
		case events <- struct{}{}:
		default: // one is pending, which will see this change too
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
