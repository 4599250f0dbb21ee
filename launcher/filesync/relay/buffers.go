package relay

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"
)

// Buffers bound what all files of a node have in memory: each chunk under way takes one.
// They lie outside of Go's heap, which would grow to twice their size, and are given back
// to the kernel when no file uses them.
type Buffers struct {
	free chan []byte // nil: not mapped yet
}

// NewBuffers makes n buffers of 16 MiB. A file takes two at most.
func NewBuffers(n int) *Buffers {
	b := &Buffers{free: make(chan []byte, n)}
	for range n {
		b.free <- nil
	}
	return b
}

// get waits for a buffer for a chunk of a file. A file of a leaf or less waits for none: it would hold a whole one for
// as long as the outside takes to answer.
func (b *Buffers) get(ctx context.Context, of layout) ([]byte, error) {
	if of.size <= of.leaf() {
		return make([]byte, of.size), nil
	}
	select {
	case buf := <-b.free:
		if buf != nil {
			return buf, nil
		}
		buf, err := unix.Mmap(-1, 0, ChunkBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			b.free <- nil
			return nil, fmt.Errorf("take memory for a chunk: %w", err)
		}
		return buf, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (b *Buffers) put(buf []byte) {
	if len(buf) == ChunkBytes {
		b.free <- buf
	}
}

// trim gives the memory of the free buffers back. Whoever needs one again maps it anew.
func (b *Buffers) trim() {
	for range cap(b.free) {
		select {
		case buf := <-b.free:
			if buf != nil {
				_ = unix.Munmap(buf)
			}
			b.free <- nil
		default:
			return
		}
	}
}
