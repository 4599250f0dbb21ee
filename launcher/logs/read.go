package logs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

const (
	// chunkBytes is the most that is read and sent at once.
	chunkBytes = 128 << 10
	// lookAgain is the polling interval if inotify is not available: each user has few
	// instances (fs.inotify.max_user_instances).
	lookAgain = 200 * time.Millisecond
)

// Request asks for the output of an attempt's local ranks.
type Request struct {
	Key     launcher.Key
	Ranks   []int // empty: all that have output
	Follow  bool  // until each of them has ended; else up to what is there now
	Cursors []launcher.Cursor
	From    launcher.From
	Times   bool // of each chunk
}

// Live is what is known of an attempt besides its files.
type Live struct {
	// Lost are the gaps in its journal; nil: the file beside the output is read.
	Lost func() []Lost
	// Ended reports whether no more output can come from these ranks.
	Ended func(ranks map[int]bool) bool
	// News is signalled whenever Ended may have another answer.
	News <-chan struct{}
	// Watchers are where a reader that follows gets its inotify instance; required then.
	Watchers *Watchers
}

// Read reads the ranks' output files in dir from the cursors on, in the order of their
// bytes within each file. It learns of growth by inotify and of ends by live; fn may be
// slow without slowing any rank. fn may use a chunk's Data only until it returns. Read
// writes nothing.
func Read(ctx context.Context, dir string, r Request, live Live, fn func(launcher.Chunk) error) error {
	if len(r.Ranks) == 0 {
		r.Ranks = ranksIn(dir)
	}
	l := newReader(dir, r, fn)
	l.live = live
	if err := l.begin(r); err != nil {
		return err
	}
	if !r.Follow {
		l.allDirty()
		if err := l.readAll(ctx, func() {}); err != nil {
			return err
		}
		return l.tellLost()
	}
	l.watch()
	defer l.unwatch()
	for {
		l.look()
		// Called before reading, so that what was written before an end is still read.
		over := live.Ended(l.wanted)
		if over {
			l.allDirty()
		}
		if err := l.readAll(ctx, l.mark); err != nil {
			return err
		}
		if err := l.tellLost(); err != nil || over {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-live.News:
		case ev := <-l.grown:
			l.grew(ev)
		case <-l.lost: //nolint:errcheck // too much happened while fn was slow
			l.allDirty()
		case <-l.tick:
			l.allDirty()
		}
	}
}

// reader is one call of Read.
type reader struct {
	dir    string
	live   Live
	fn     func(launcher.Chunk) error
	wanted map[int]bool
	losses map[Lost]bool // that fn has got
	lostAt bool          // there may be new ones
	files  []*tail
	byName map[string]*tail
	buf    []byte

	watcher *fsnotify.Watcher // nil: inotify is not available
	watched bool              // dir exists and is watched
	grown   <-chan fsnotify.Event
	lost    <-chan error
	ticker  *time.Ticker // instead of the watcher
	tick    <-chan time.Time
}

func newReader(dir string, r Request, fn func(launcher.Chunk) error) *reader {
	l := &reader{dir: dir, fn: fn, wanted: map[int]bool{}, losses: map[Lost]bool{}, byName: map[string]*tail{},
		buf: make([]byte, chunkBytes)}
	from := map[launcher.Cursor]int64{}
	for _, c := range r.Cursors {
		from[launcher.Cursor{Rank: c.Rank, Stream: c.Stream}] = c.Offset
	}
	for _, rank := range r.Ranks {
		if l.wanted[rank] {
			continue
		}
		l.wanted[rank] = true
		for _, stream := range []launcher.Stream{launcher.Stdout, launcher.Stderr} {
			name := fmt.Sprintf("rank-%d.%s", rank, stream)
			at := launcher.Cursor{Rank: rank, Stream: stream}
			at.Offset = from[at]
			f := &tail{path: filepath.Join(dir, name), at: at, times: r.Times}
			l.files = append(l.files, f)
			l.byName[f.path] = f
		}
	}
	l.list()
	return l
}

// list looks once for the parts of all streams: a folder may have those of thousands of
// ranks.
func (l *reader) list() {
	parts := Parts(l.dir)
	for _, f := range l.files {
		f.listed = append([]int64{0}, parts[f.path]...)
	}
}

func (l *reader) watch() {
	w, err := l.live.Watchers.take()
	if err != nil {
		l.poll()
		return
	}
	l.watcher, l.grown, l.lost = w, w.Events, w.Errors
}

// poll replaces the watcher.
func (l *reader) poll() {
	l.unwatch()
	l.watcher, l.grown, l.lost = nil, nil, nil
	l.ticker = time.NewTicker(lookAgain)
	l.tick = l.ticker.C
}

func (l *reader) unwatch() {
	if l.watcher != nil {
		l.live.Watchers.putBack(l.watcher)
	}
	if l.ticker != nil {
		l.ticker.Stop()
	}
}

// look starts to watch the folder once it exists: prepare makes it, and says so before any
// rank writes.
func (l *reader) look() {
	if l.watched {
		return
	}
	if l.watcher != nil {
		err := l.watcher.Add(l.dir)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err != nil { // fs.inotify.max_user_watches
			l.poll()
		}
	}
	l.watched = true
	l.allDirty() // what was written before
}

func (l *reader) allDirty() {
	l.lostAt = true
	l.list()
	for _, f := range l.files {
		f.dirty, f.found = true, false
	}
}

func (l *reader) grew(ev fsnotify.Event) {
	l.lostAt = l.lostAt || strings.HasPrefix(filepath.Base(ev.Name), lostName) // or its temporary file
	if path, base, ok := shim.ParsePart(ev.Name); ok && l.byName[path] != nil {
		f := l.byName[path]
		f.dirty, f.newest, f.listed = true, max(f.newest, base), nil
	}
}

// mark takes the changes so far without waiting for more.
func (l *reader) mark() {
	for {
		select {
		case ev := <-l.grown:
			l.grew(ev)
		case <-l.lost: //nolint:errcheck // a channel of signals
			l.allDirty()
		default:
			return
		}
	}
}

// readAll passes on everything up to the present end of the files that may have more. They
// take turns: a rank that writes without a pause must not delay the others. meanwhile is
// called between the turns.
func (l *reader) readAll(ctx context.Context, meanwhile func()) error {
	for {
		meanwhile()
		left := false
		for _, f := range l.files {
			if !f.dirty {
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := f.read(l.buf, l.fn); err != nil {
				return err
			}
			left = left || f.dirty
		}
		if !left {
			return nil
		}
	}
}
