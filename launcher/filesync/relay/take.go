package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/blake3"
	"golang.org/x/sync/errgroup"
)

// session takes chunks from one source.
type session struct {
	f      *File
	from   Source // nil: the outside
	whole  *whole // of the outside
	piece  int64
	conns  chan struct{}
	window chan struct{}

	mu       sync.Mutex
	promised []Sum         // by a member, from chunk base on
	more     chan struct{} // closed when promised grows
	base     int
	last     error // of a request

	waiting atomic.Int32 // how many wait for the source
	pieces  atomic.Int32 // of them, for bytes
	gave    atomic.Int64 // when it gave something last, Unix ns
}

// take takes what a source has. Nil means that all chunks are verified; else it says why
// the source was left.
func (f *File) take(ctx context.Context, i int) error {
	s := &session{f: f, base: f.prefix(), more: make(chan struct{}), window: make(chan struct{}, window)}
	s.gave.Store(time.Now().UnixNano())
	g, ctx := errgroup.WithContext(ctx)
	under, over := context.WithCancel(ctx)
	defer over()
	if i == outsideIndex {
		w, err := f.newWhole()
		if err != nil {
			return err
		}
		s.whole, s.piece, s.conns = w, f.cut.chunk/outsideCut, make(chan struct{}, outsideConns)
		f.update(func() { f.outside = true })
		defer f.update(func() { f.outside = false })
		g.Go(func() error { return w.catchUp(under, f, s.base) })
		g.Go(func() error { return f.yields(under) })
	} else {
		s.from, s.piece, s.conns = f.cfg.Chain[i].Source, f.cut.chunk/memberCut, make(chan struct{}, memberConns)
		g.Go(func() error { return s.supply(under) })
	}
	g.Go(func() error { return s.watch(under) })
	g.Go(func() error {
		defer over()
		return s.chunks(ctx)
	})
	return g.Wait()
}

// watch ends a session in which nothing came for 5 s though something was waited for.
func (s *session) watch(ctx context.Context) error {
	tick := time.NewTicker(stall / 20)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if s.waiting.Load() > 0 && time.Since(time.Unix(0, s.gave.Load())) >= stall {
				return s.stalled(ctx)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// hangsError is a member's that answers, and does not give what it has.
type hangsError struct{ error }

func (e hangsError) Unwrap() error { return e.error }

// stalled says why nothing came.
func (s *session) stalled(ctx context.Context) error {
	s.mu.Lock()
	err := ErrStalled
	if s.last != nil {
		err = fmt.Errorf("%w: %w", ErrStalled, s.last)
	}
	s.mu.Unlock()
	if s.from == nil || s.pieces.Load() == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	if _, gone := s.from.State(ctx, s.base, 0); gone == nil {
		return hangsError{err}
	}
	return err
}

// begin notes that somebody waits for the source, until end.
func (s *session) begin() {
	if s.waiting.Add(1) == 1 {
		s.gave.Store(time.Now().UnixNano())
	}
}

func (s *session) end() { s.waiting.Add(-1) }

// noted keeps an error of a request, for the reason why the source is left.
func (s *session) noted(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = err
}

// supply asks a member for the sums of what it has, a little ahead of what is verified.
func (s *session) supply(ctx context.Context) error {
	for next := s.base; next < s.f.count; {
		state, ok := s.state(ctx, next)
		if !ok {
			return nil // it is over, and chunks says why
		}
		if len(state.Sums) == 0 {
			if s.f.prefix() == next {
				return errNoMore
			}
			_ = pause(ctx, again)
			continue
		}
		next += len(state.Sums)
		s.mu.Lock()
		s.promised = append(s.promised, state.Sums...)
		close(s.more)
		s.more = make(chan struct{})
		s.mu.Unlock()
	}
	return nil
}

// state waits until what is verified comes near, and asks until there is an answer.
func (s *session) state(ctx context.Context, from int) (_ State, ok bool) {
	if _, err := s.f.wait(ctx, s.f.cut.end(from-2*window)-1); err != nil {
		return State{}, false
	}
	s.begin()
	defer s.end()
	for ctx.Err() == nil {
		asking, cancel := context.WithTimeout(ctx, stall)
		state, err := s.from.State(asking, from, beat)
		cancel()
		if err == nil {
			return state, true
		}
		s.noted(err)
		_ = pause(ctx, again)
	}
	return State{}, false
}

// promise waits until the source has a chunk, and gives the sum that a member told.
func (s *session) promise(ctx context.Context, i int) (Sum, error) {
	for s.from != nil {
		s.mu.Lock()
		more, promised := s.more, s.promised
		s.mu.Unlock()
		if i-s.base < len(promised) {
			return promised[i-s.base], nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return Sum{}, context.Cause(ctx)
		}
	}
	return Sum{}, nil
}

// chunks takes all chunks that are missing. Requests begin in order; a chunk is handed on
// when those before it are.
func (s *session) chunks(outer context.Context) error {
	g, ctx := errgroup.WithContext(outer)
	before := make(chan struct{})
	close(before)
	for i := s.base; i < s.f.count; i++ {
		want, err := s.promise(ctx, i)
		if err == nil {
			err = acquire(ctx, s.window)
		}
		if err != nil {
			break
		}
		buf, err := s.f.cfg.Buffers.get(ctx, s.f.cut, s.f.cfg.Turn)
		if err != nil {
			<-s.window
			if ctx.Err() == nil {
				return errors.Join(here(err), g.Wait())
			}
			break
		}
		off, n := s.f.cut.at(i)
		leaf := s.f.cut.leaf()
		sums := make([]Sum, (n+leaf-1)/leaf)
		var pieces sync.WaitGroup
		for at := int64(0); at < n && acquire(ctx, s.conns) == nil; at += s.piece {
			pieces.Add(1)
			g.Go(func() error {
				defer pieces.Done()
				defer func() { <-s.conns }()
				return s.bring(ctx, buf[at:min(at+s.piece, n)], off+at, sums[at/leaf:])
			})
		}
		prev, done := before, make(chan struct{})
		before = done
		g.Go(func() error {
			defer func() { <-s.window }()
			defer s.f.cfg.Buffers.put(buf)
			pieces.Wait()
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			sum := root(sums)
			if s.from != nil && sum != want {
				return fmt.Errorf("%w at %d", ErrWrongBytes, off)
			}
			if err := s.finish(ctx, buf[:n], sum, prev); err != nil {
				return err
			}
			close(done)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return context.Cause(outer)
}

func acquire(ctx context.Context, slots chan struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// bring reads one piece into memory, hashes its leaves and writes it. What is not verified
// yet lies beyond what is kept.
func (s *session) bring(ctx context.Context, piece []byte, off int64, sums []Sum) error {
	if err := s.fill(ctx, piece, off); err != nil {
		return err
	}
	k := 0
	for leaf := range slices.Chunk(piece, int(s.f.cut.leaf())) {
		sums[k] = blake3.Sum256(leaf)
		k++
	}
	if _, err := s.f.cfg.Part.WriteAt(piece, off); err != nil {
		return here(err)
	}
	return nil
}

// finish keeps a chunk that is verified and written, when the ones before it are kept.
func (s *session) finish(ctx context.Context, buf []byte, sum Sum, before <-chan struct{}) error {
	select {
	case <-before:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	var state []byte
	if s.whole != nil {
		var err error
		if state, err = s.whole.add(ctx, buf); err != nil {
			return err
		}
	}
	return s.f.keep(sum, state)
}

// fill reads one piece; what breaks off is asked for again from there on.
func (s *session) fill(ctx context.Context, dst []byte, off int64) error {
	s.begin()
	defer s.end()
	s.pieces.Add(1)
	defer s.pieces.Add(-1)
	for {
		n, err := s.read(ctx, dst, off)
		if n == len(dst) {
			return nil
		}
		dst, off = dst[n:], off+int64(n)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, ErrGone) {
			return err
		}
		s.noted(err)
		if err := pause(ctx, again); err != nil {
			return err
		}
	}
}

// readBytes is one read, and what Limit counts by.
const readBytes = 128 << 10

// read reads a piece over one connection, which is given up where it is silent while
// others may not be.
func (s *session) read(ctx context.Context, dst []byte, off int64) (got int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(stall/2, func() { cancel(errSilent) })
	defer silent.Stop()
	open := s.f.cfg.Outside
	if s.from != nil {
		open = s.from.Open
	}
	body, err := open(ctx, off, int64(len(dst)))
	if err != nil {
		return 0, err
	}
	defer body.Close()
	for got < len(dst) {
		piece := dst[got:min(got+readBytes, len(dst))]
		n, err := io.ReadAtLeast(body, piece, 1)
		if got += n; n > 0 {
			s.gave.Store(time.Now().UnixNano())
			if s.f.cfg.Limit != nil { // paid after, so that only what came holds a source up
				silent.Stop()
				s.end()
				_ = s.f.cfg.Limit.wait(ctx, n)
				s.begin()
			}
			silent.Reset(stall / 2)
		}
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return got, err
		}
	}
	return got, nil
}

var errSilent = errors.New("a connection is silent")
