package relay

import (
	"bytes"
	"context"
	"encoding"
	"fmt"
	"hash"
	"time"
)

// whole hashes a file in order.
type whole struct {
	h     hash.Hash
	from  int           // chunks that it has hashed already
	ready chan struct{} // closed when it has hashed what was there before
}

// newWhole goes on from the state that was kept.
func (f *File) newWhole() (*whole, error) {
	h, _, err := f.cfg.digest()
	if err != nil {
		return nil, err
	}
	w := &whole{h: h, ready: make(chan struct{})}
	if f.hash != nil {
		if err := h.(encoding.BinaryUnmarshaler).UnmarshalBinary(f.hash); err != nil {
			return nil, here(fmt.Errorf("take up a hash: %w", err))
		}
		w.from = f.at
	}
	return w, nil
}

// catchUp reads what came from members, whom it was not hashed for: the only case in which
// a file is read by the node that writes it.
func (w *whole) catchUp(ctx context.Context, f *File, until int) error {
	off, end := f.cut.end(w.from), f.cut.end(until)
	buf := make([]byte, min(1<<20, max(end-off, 0)))
	for began := off; off < end && ctx.Err() == nil; {
		n, err := f.cfg.Part.ReadAt(buf[:min(int64(len(buf)), end-off)], off)
		if n == 0 && err != nil {
			return here(fmt.Errorf("read what is there: %w", err))
		}
		_, _ = w.h.Write(buf[:n])
		if off += int64(n); off-began >= ChunkBytes {
			f.drop(began, off-began)
			began = off
		}
	}
	if ctx.Err() == nil {
		close(w.ready)
	}
	return nil
}

// add hashes the next chunk, and gives the state after it.
func (w *whole) add(ctx context.Context, chunk []byte) ([]byte, error) {
	select {
	case <-w.ready:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	_, _ = w.h.Write(chunk)
	state, err := w.h.(encoding.BinaryMarshaler).MarshalBinary()
	if err != nil {
		return nil, here(err)
	}
	return state, nil
}

// yields ends the reading from outside when a member has more, or one that goes before
// reads from outside too: after a time in which they could not see each other.
func (f *File) yields(ctx context.Context) error {
	for pause(ctx, 2*beat) == nil {
		stuck := f.isStuck()
		for i, a := range f.ask(ctx) {
			first := i < f.cfg.Self
			if a.Stuck != stuck { // one of the two gets something
				first = stuck
			}
			if len(a.Sums) > window || a.Outside && first {
				return errFollowed
			}
		}
	}
	return nil
}

// judge finds out whether the file, all of which is here, is the one that was asked for:
// who read it from outside has hashed it, others take a member's word on the same chunks.
// Where there is no such member any more the file is read.
func (f *File) judge(ctx context.Context) error {
	sum := root(f.sums)
	for ctx.Err() == nil {
		if f.at == f.count && f.hash != nil || f.count == 0 {
			return f.judgeAs(ctx)
		}
		next, waits := -1, false
		for i, a := range f.ask(ctx) {
			if a.Word != "" && a.Root == sum {
				return f.pronounce(a.Word)
			}
			if a.Word == "" && (i < f.cfg.Self || a.Outside) {
				switch {
				case !a.ok:
					waits = waits || time.Since(f.seen[i]) < stall
				case a.Failed == "" && i > next:
					next = i
				}
			}
		}
		switch {
		case next >= 0:
			asking, cancel := context.WithTimeout(ctx, stall)
			_, err := f.cfg.Chain[next].Source.State(asking, f.count, beat)
			cancel()
			if err != nil {
				_ = pause(ctx, again)
			}
		case waits:
			_ = pause(ctx, again)
		default:
			return f.judgeAs(ctx)
		}
	}
	return context.Cause(ctx)
}

// judgeAs hashes what is not hashed yet, and compares.
func (f *File) judgeAs(ctx context.Context) error {
	w, err := f.newWhole()
	if err != nil {
		return err
	}
	if err := w.catchUp(ctx, f, f.count); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	_, want, err := f.cfg.digest()
	if err != nil {
		return err
	}
	if !bytes.Equal(w.h.Sum(nil), want) {
		return f.pronounce(Wrong)
	}
	return f.pronounce(Right)
}

func (f *File) pronounce(w Word) error {
	f.update(func() { f.word = w })
	if w == Wrong {
		return ErrSum
	}
	return nil
}
