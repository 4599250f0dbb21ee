package relay

import (
	"bytes"
	"context"
	"fmt"
	"hash"
	"io"
	"sync"
	"time"
)

// Held is a whole file on this node's disk, as a Source. Chunks are hashed when somebody
// asks for their sums, just before they are read, so that the disk is read once. So is the
// file's own sum: a disk may have lost bits since it was written. Where the sums were kept
// nothing is hashed: whoever reads finds out.
type Held struct {
	cut  layout
	want []byte
	from io.ReaderAt
	drop func(off, n int64)

	mu   sync.Mutex // while chunks are hashed
	h    hash.Hash
	sums []Sum
	kept bool // sums: the file was judged when they were
	err  error
}

// Hold offers a file: Config's Size and sum are used, Kept.Sums if they are of the whole file,
// and Part, of which only ReadAt and Drop are called.
func Hold(cfg Config) (*Held, error) {
	h, want, err := cfg.digest()
	if err != nil {
		return nil, err
	}
	f := &Held{cut: cfg.layout(), want: want, from: cfg.Part, drop: cfg.Part.Drop, h: h}
	if f.kept = len(cfg.Kept.Sums) == f.cut.chunks(); f.kept {
		f.sums = cfg.Kept.Sums
	}
	return f, nil
}

// State is a Source's. It does not wait.
func (f *Held) State(ctx context.Context, from int, _ time.Duration) (State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	count := f.cut.chunks()
	for len(f.sums) < min(from+1, count) && f.err == nil {
		if ctx.Err() != nil {
			return State{}, context.Cause(ctx)
		}
		f.err = f.next()
	}
	var s State
	if f.err != nil {
		s.Failed = f.err.Error()
	}
	if from >= 0 && from < len(f.sums) {
		s.Sums = append(s.Sums, f.sums[from:min(len(f.sums), from+maxSums)]...)
	}
	if len(f.sums) == count {
		s.Word, s.Root = Right, root(f.sums)
		if !f.kept && !bytes.Equal(f.h.Sum(nil), f.want) {
			s.Word, s.Failed = Wrong, ErrSum.Error()
		}
	}
	return s, nil
}

// next hashes one more chunk.
func (f *Held) next() error {
	sum, err := f.cut.sum(len(f.sums), f.from, f.h)
	if err != nil {
		return fmt.Errorf("read what is held: chunk %d: %w", len(f.sums), err)
	}
	f.sums = append(f.sums, sum)
	return nil
}

// Open is a Source's.
func (f *Held) Open(_ context.Context, off, n int64) (io.ReadCloser, error) {
	if off < 0 || n < 0 || off+n > f.cut.size {
		return nil, fmt.Errorf("read %d bytes at %d of %d: %w", n, off, f.cut.size, errRange)
	}
	return &reader{from: f.from, drop: f.drop, wait: func(int64) (int64, error) { return f.cut.size, nil },
		off: off, end: off + n, dropped: off}, nil
}
