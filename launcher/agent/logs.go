package agent

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
	// lookAgain is between two looks where inotify cannot be had: its instances
	// are few for each user (fs.inotify.max_user_instances).
	lookAgain = 200 * time.Millisecond
)

// LogsRequest asks for the output of a try's local ranks.
type LogsRequest struct {
	Key     launcher.Key
	Ranks   []int // empty: all whose output is there
	Follow  bool  // until each of them has ended; else up to what is there now
	Cursors []launcher.Cursor
	From    launcher.From
	Times   bool // of each chunk
}

// Logs reads the ranks' output files from the cursors on, in the order of their
// bytes within each file. It is told of growth by inotify and of ends by the
// ledger; fn may be slow without slowing any rank. A chunk's Data is only fn's
// until it returns.
//
// A try that is not in the ledger counts as ended. One that is followed and has
// left nothing may have been planned a moment ago: its Prepare is waited for, up
// to awaitPrepare. It writes nothing, so that a question about a job that never
// was leaves no trace.
func (a *Agent) Logs(ctx context.Context, r LogsRequest, fn func(launcher.Chunk) error) error {
	if err := r.Key.Job.Validate(); err != nil {
		return err
	}
	dir := a.logDir(r.Key)
	t := a.try(r.Key)
	if t == nil && r.Follow && !exists(dir) {
		t = a.awaitTry(ctx, r.Key)
	}
	if t == nil && !exists(dir) {
		return fn(launcher.Chunk{Note: fmt.Sprintf("no output of job %s (try %d) is kept here", r.Key.Job, r.Key.Generation)})
	}
	if len(r.Ranks) == 0 {
		r.Ranks = ranksIn(dir)
	}
	l := newReader(dir, r, fn)
	l.try = t
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
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(a.ctx, stop)() // a closed agent hears of no end
	news := a.subscribe()
	defer a.unsubscribe(news)
	l.watch()
	defer l.unwatch()
	for {
		news.clear()
		l.look()
		// Asked before reading: what was written before an end is read after it.
		over := a.allEnded(r.Key, l.wanted)
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
		case <-news.more:
		case ev := <-l.grown:
			l.grew(ev)
		case <-l.lost: //nolint:errcheck // too much happened while fn was slow
			l.allDirty()
		case <-l.tick:
			l.allDirty()
		}
	}
}

// awaitPrepare is how long a reader waits for the order that begins a try: it
// is sent as soon as the plan, by which the reader knows of it, is recorded.
const awaitPrepare = 5 * time.Second

// awaitTry waits until a try is in the ledger; nil: it has not come.
func (a *Agent) awaitTry(ctx context.Context, k launcher.Key) *try {
	late := time.NewTimer(awaitPrepare)
	defer late.Stop()
	news := a.subscribe()
	defer a.unsubscribe(news)
	for {
		news.clear()
		if t := a.try(k); t != nil {
			return t
		}
		select {
		case <-news.more:
		case <-late.C:
			return a.try(k) // it may be preparing, which nobody tells of
		case <-ctx.Done():
			return nil
		}
	}
}

// allEnded tells whether no more output can come from these ranks here.
func (a *Agent) allEnded(k launcher.Key, wanted map[int]bool) bool {
	t := a.try(k)
	return t == nil || t.allEnded(wanted)
}

// try finds one in the ledger; nil: it is not there.
func (a *Agent) try(k launcher.Key) *try {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.tries[k]
}

// reader is one call of Logs.
type reader struct {
	dir    string
	try    *try // nil: was not in the ledger
	fn     func(launcher.Chunk) error
	wanted map[int]bool
	losses map[lostOutput]bool // that fn was told of
	lostAt bool                // there may be others
	files  []*tail
	byName map[string]*tail
	buf    []byte

	watcher *fsnotify.Watcher // nil: none could be had
	watched bool              // dir exists and is
	grown   <-chan fsnotify.Event
	lost    <-chan error
	ticker  *time.Ticker // in the watcher's place
	tick    <-chan time.Time
}

func newReader(dir string, r LogsRequest, fn func(launcher.Chunk) error) *reader {
	l := &reader{dir: dir, fn: fn, wanted: map[int]bool{}, losses: map[lostOutput]bool{}, byName: map[string]*tail{}, buf: make([]byte, chunkBytes)}
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

// list looks once for the parts of all streams: a folder may have those of thousands
// of ranks.
func (l *reader) list() {
	parts := basesIn(l.dir)
	for _, f := range l.files {
		f.listed = append([]int64{0}, parts[f.path]...)
	}
}

func (l *reader) watch() {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		l.poll()
		return
	}
	l.watcher, l.grown, l.lost = w, w.Events, w.Errors
}

// poll takes the watcher's place.
func (l *reader) poll() {
	l.unwatch()
	l.watcher, l.grown, l.lost = nil, nil, nil
	l.ticker = time.NewTicker(lookAgain)
	l.tick = l.ticker.C
}

func (l *reader) unwatch() {
	if l.watcher != nil {
		l.watcher.Close()
	}
	if l.ticker != nil {
		l.ticker.Stop()
	}
}

// look begins to watch the folder once it is there: prepare makes it, and says
// so before any rank writes.
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
	l.allDirty() // what was there before
}

func (l *reader) allDirty() {
	l.lostAt = true
	l.list()
	for _, f := range l.files {
		f.dirty, f.found = true, false
	}
}

func (l *reader) grew(ev fsnotify.Event) {
	l.lostAt = l.lostAt || strings.HasPrefix(filepath.Base(ev.Name), lostName) // or what was to become it
	if path, base, ok := shim.ParsePart(ev.Name); ok && l.byName[path] != nil {
		f := l.byName[path]
		f.dirty, f.newest, f.listed = true, max(f.newest, base), nil
	}
}

// mark takes what has been told meanwhile without waiting for more.
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

// readAll passes on everything up to the present end of the files that may
// hold more. They take turns: one rank that writes without a pause must not
// hide the others. meanwhile is called between the turns.
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
