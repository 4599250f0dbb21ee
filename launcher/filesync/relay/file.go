package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// File is one file while it arrives. It is a Source for others, from New on.
type File struct {
	cfg   Config
	cut   layout
	count int // of chunks

	mu      sync.Mutex
	changed chan struct{} // closed when sums, word or failed change
	sums    []Sum         // of the verified prefix
	hash    []byte        // state of the whole file's hash after the first at chunks
	at      int
	outside bool
	stuck   bool
	word    Word
	failed  string

	// Of Run alone.
	current string            // the source that was told of last
	out     map[int]time.Time // members that are not asked until then
	seen    []time.Time       // when a member of the chain answered last
	noWay   error             // why the outside gave nothing when it was tried last; nil: it gave something
	tried   time.Time         // when that was
	grew    time.Time         // when there was more last
}

// behind is how many chunks stay in the page cache behind the newest one, for others to
// read. Whoever is slower reads from disk.
const behind = 4

// New takes up a file where it was left.
func New(cfg Config) (*File, error) {
	if _, _, err := cfg.digest(); err != nil {
		return nil, err
	}
	cut := cfg.layout()
	f := &File{cfg: cfg, cut: cut, count: cut.chunks(), changed: make(chan struct{}), sums: slices.Clone(cfg.Kept.Sums),
		hash: cfg.Kept.Hash, at: cfg.Kept.At, out: map[int]time.Time{}, seen: make([]time.Time, len(cfg.Chain))}
	if len(f.sums) > f.count || f.at > len(f.sums) || cfg.Self < 0 || cfg.Self >= len(cfg.Chain) {
		return nil, fmt.Errorf("relay a file: %d chunks kept of %d, node %d of %d", len(f.sums), f.count, cfg.Self,
			len(cfg.Chain))
	}
	for i, m := range cfg.Chain {
		if i != cfg.Self && m.Source == nil {
			return nil, fmt.Errorf("relay a file: node %d of %d is no source", i, len(cfg.Chain))
		}
	}
	if cfg.Outside == nil {
		f.noWay = errNoOutside
	}
	if f.cfg.Event == nil {
		f.cfg.Event = func(Event) {}
	}
	return f, nil
}

// Run takes the file in until it is whole and judged, ctx ends, or there is no use in going
// on: an error of this node's disk, ErrSum, ErrGone. It can be called once.
func (f *File) Run(ctx context.Context) error {
	defer f.cfg.Buffers.trim()
	err := f.fetch(ctx)
	if err == nil {
		err = f.judge(ctx)
	}
	if err != nil {
		f.update(func() { f.failed = err.Error() })
	}
	return err
}

// Have is how many bytes are verified.
func (f *File) Have() int64 { return f.cut.end(f.prefix()) }

func (f *File) prefix() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.sums)
}

// update changes what others wait for.
func (f *File) update(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	close(f.changed)
	f.changed = make(chan struct{})
}

// keep notes that the next chunk is verified, and written.
func (f *File) keep(sum Sum, hash []byte) error {
	if err := f.cfg.Part.Keep(sum, hash); err != nil {
		return here(err)
	}
	f.update(func() {
		f.sums, f.stuck = append(f.sums, sum), false
		if hash != nil {
			f.hash, f.at = hash, len(f.sums)
		}
	})
	return nil
}

func (f *File) isStuck() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stuck
}

func (f *File) setStuck(is bool) {
	if is != f.isStuck() {
		f.update(func() { f.stuck = is })
	}
}

// maxSums bounds one State.
const maxSums = 1024

// State is a Source's.
func (f *File) State(ctx context.Context, from int, wait time.Duration) (State, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for over := wait <= 0; ; {
		f.mu.Lock()
		changed := f.changed
		if over || len(f.sums) > from || f.word != "" || f.failed != "" {
			s := State{Outside: f.outside, Stuck: f.stuck, Word: f.word, Failed: f.failed}
			if from >= 0 && from < len(f.sums) {
				s.Sums = slices.Clone(f.sums[from:min(len(f.sums), from+maxSums)])
			}
			if f.word != "" {
				s.Root = root(f.sums)
			}
			f.mu.Unlock()
			return s, nil
		}
		f.mu.Unlock()
		select {
		case <-changed:
		case <-timer.C:
			over = true
		case <-ctx.Done():
			return State{}, context.Cause(ctx)
		}
	}
}

// Open is a Source's: it waits for bytes until they are verified, and fails when the file
// does.
func (f *File) Open(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	if off < 0 || n < 0 || off+n > f.cfg.Size {
		return nil, fmt.Errorf("read %d bytes at %d of %d: %w", n, off, f.cfg.Size, errRange)
	}
	return &reader{from: f.cfg.Part, drop: f.drop, wait: func(at int64) (int64, error) { return f.wait(ctx, at) },
		off: off, end: off + n, dropped: off}, nil
}

var errRange = errors.New("out of the file")

// wait waits until the byte at an offset is verified, and gives the end of what is.
func (f *File) wait(ctx context.Context, at int64) (int64, error) {
	for {
		f.mu.Lock()
		have, changed, failed := f.cut.end(len(f.sums)), f.changed, f.failed
		f.mu.Unlock()
		switch {
		case have > at:
			return have, nil
		case failed != "":
			return 0, errors.New(failed)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// drop takes what was read out of the page cache, except for the newest chunks.
func (f *File) drop(off, n int64) {
	if have := f.prefix(); have == f.count || off+n <= f.cut.end(have-behind) {
		f.cfg.Part.Drop(off, n)
	}
}

// reader reads what is there, and waits for more.
type reader struct {
	from    io.ReaderAt
	drop    func(off, n int64)
	wait    func(at int64) (until int64, err error)
	off     int64
	end     int64
	dropped int64 // until where drop was called
}

func (r *reader) Read(p []byte) (int, error) {
	if r.off == r.end {
		return 0, io.EOF
	}
	until, err := r.wait(r.off)
	if err != nil {
		return 0, err
	}
	n, err := r.from.ReadAt(p[:min(int64(len(p)), min(until, r.end)-r.off)], r.off)
	if r.off += int64(n); n > 0 {
		err = nil // also io.EOF at the file's end
	}
	if r.off-r.dropped >= ChunkBytes {
		r.release()
	}
	return n, err
}

func (r *reader) release() {
	r.drop(r.dropped, r.off-r.dropped)
	r.dropped = r.off
}

// Close lets the bytes go that were read.
func (r *reader) Close() error {
	if r.off > r.dropped {
		r.release()
	}
	return nil
}

// hereError is an error of this node, for which no source can be blamed.
type hereError struct{ error }

func (e hereError) Unwrap() error { return e.error }

func here(err error) error { return hereError{err} }
