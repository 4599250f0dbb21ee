package relay

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Buffers bound what all files of a node have in memory: each chunk under way takes one.
// They lie outside of Go's heap, which would grow to twice their size, and are given back
// to the kernel when no file uses them. Files get them in their turn: so one file after the
// other goes through a chain as fast as a link carries it, and the next fills the gap at its end.
type Buffers struct {
	mu      sync.Mutex
	free    [][]byte // nil: not mapped yet
	waiting []*waiter
}

// waiter stands in line: the lowest turn first, of one turn who came first.
type waiter struct {
	turn int
	got  chan []byte
}

// NewBuffers makes n buffers of 16 MiB. A file takes two at most.
func NewBuffers(n int) *Buffers { return &Buffers{free: make([][]byte, n)} }

// get waits for a buffer for a chunk of a file. A file of a leaf or less waits for none: it would hold a whole one for
// as long as the outside takes to answer.
func (b *Buffers) get(ctx context.Context, of layout, turn int) ([]byte, error) {
	if of.size <= of.leaf() {
		return make([]byte, of.size), nil
	}
	buf, err := b.inLine(ctx, turn)
	if err != nil || buf != nil {
		return buf, err
	}
	buf, err = unix.Mmap(-1, 0, ChunkBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		b.hand(nil)
		return nil, fmt.Errorf("take memory for a chunk: %w", err)
	}
	return buf, nil
}

func (b *Buffers) inLine(ctx context.Context, turn int) ([]byte, error) {
	b.mu.Lock()
	if n := len(b.free); n > 0 {
		buf := b.free[n-1]
		b.free = b.free[:n-1]
		b.mu.Unlock()
		return buf, nil
	}
	w := &waiter{turn, make(chan []byte, 1)}
	at := slices.IndexFunc(b.waiting, func(o *waiter) bool { return o.turn > turn })
	if at < 0 {
		at = len(b.waiting)
	}
	b.waiting = slices.Insert(b.waiting, at, w)
	b.mu.Unlock()
	select {
	case buf := <-w.got:
		return buf, nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	at = slices.Index(b.waiting, w)
	if at >= 0 {
		b.waiting = slices.Delete(b.waiting, at, at+1)
	}
	b.mu.Unlock()
	if at < 0 { // it got one meanwhile
		b.hand(<-w.got)
	}
	return nil, context.Cause(ctx)
}

func (b *Buffers) put(buf []byte) {
	if len(buf) == ChunkBytes {
		b.hand(buf)
	}
}

// hand gives a buffer to the first in line.
func (b *Buffers) hand(buf []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) == 0 {
		b.free = append(b.free, buf)
		return
	}
	b.waiting[0].got <- buf
	b.waiting = slices.Delete(b.waiting, 0, 1)
}

// trim gives the memory of the free buffers back. Whoever needs one again maps it anew.
func (b *Buffers) trim() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, buf := range b.free {
		if buf != nil {
			_ = unix.Munmap(buf)
		}
		b.free[i] = nil
	}
}
