package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/sparkrun/sparkrun/launcher"
)

// chunkBytes is the most that is read and sent at once.
const chunkBytes = 128 << 10

// LogsRequest asks for the output of a try's local ranks.
type LogsRequest struct {
	Key     launcher.Key
	Ranks   []int
	Follow  bool // until each of them has ended; else up to what is there now
	Cursors []launcher.Cursor
}

// Logs reads the ranks' output files from the cursors on, in the order of their
// bytes within each file. It is told of growth by inotify and of ends by the
// ledger; fn may be slow without slowing any rank.
func (a *Agent) Logs(ctx context.Context, r LogsRequest, fn func(launcher.Chunk) error) error {
	if err := r.Key.Job.Validate(); err != nil {
		return err
	}
	dir := a.logDir(r.Key)
	var grown <-chan fsnotify.Event
	if r.Follow {
		if err := os.MkdirAll(dir, 0o750); err != nil { // may be asked before it is prepared
			return fmt.Errorf("follow output: %w", err)
		}
		w, err := fsnotify.NewWatcher()
		if err != nil {
			return fmt.Errorf("follow output: %w", err)
		}
		defer w.Close()
		if err := w.Add(dir); err != nil {
			return fmt.Errorf("follow output: %w", err)
		}
		grown = w.Events
	}
	next, cancel := a.Events()
	defer cancel()
	ended := make(chan struct{}, 1)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() { // joined by ctx: it holds nothing but the subscription
		for {
			ev, err := next(ctx)
			if err != nil {
				return
			}
			if ev.Key == r.Key {
				select {
				case ended <- struct{}{}:
				default:
				}
			}
		}
	}()

	files := tails(dir, r)
	buf := make([]byte, chunkBytes)
	for {
		// Asked before reading: what was written before an end is read after it.
		over := !r.Follow || a.allEnded(r.Key, r.Ranks)
		for _, f := range files {
			if err := f.read(ctx, buf, fn); err != nil {
				return err
			}
		}
		if over {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
		case <-grown:
			drain(grown)
		}
	}
}

// allEnded tells whether no more output can come from these ranks here. A try
// that is not in the ledger has ended, or has not been heard of: the caller
// asks only for what a plan put here, and the leader forgets nothing early.
func (a *Agent) allEnded(k launcher.Key, ranks []int) bool {
	a.mu.Lock()
	t := a.tries[k]
	a.mu.Unlock()
	if t == nil {
		return true
	}
	e := t.snapshot()
	if e.Phase == launcher.PhaseEnded {
		return true
	}
	for _, rank := range ranks {
		i := slices.IndexFunc(e.Ranks, func(s launcher.RankStatus) bool { return s.Rank == rank })
		if i < 0 || e.Ranks[i].State != launcher.RankEnded {
			return false
		}
	}
	return true
}

// drain takes what else has been told: one reading serves all of it.
func drain(c <-chan fsnotify.Event) {
	for {
		select {
		case <-c:
		default:
			return
		}
	}
}

// tail is one output file and how far it has been read.
type tail struct {
	path string
	at   launcher.Cursor
}

func tails(dir string, r LogsRequest) []*tail {
	var out []*tail
	for _, rank := range r.Ranks {
		for _, stream := range []launcher.Stream{launcher.Stdout, launcher.Stderr} {
			f := &tail{
				path: filepath.Join(dir, fmt.Sprintf("rank-%d.%s", rank, stream)),
				at:   launcher.Cursor{Rank: rank, Stream: stream},
			}
			for _, c := range r.Cursors {
				if c.Rank == rank && c.Stream == stream {
					f.at.Offset = c.Offset
				}
			}
			out = append(out, f)
		}
	}
	return out
}

// read passes on everything up to the present end of the file.
func (f *tail) read(ctx context.Context, buf []byte, fn func(launcher.Chunk) error) error {
	file, err := os.Open(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // not started yet, or never
	}
	if err != nil {
		return fmt.Errorf("read output of rank %d: %w", f.at.Rank, err)
	}
	defer file.Close()
	for ctx.Err() == nil {
		n, err := file.ReadAt(buf, f.at.Offset)
		if n > 0 {
			if err := fn(launcher.Chunk{Rank: f.at.Rank, Stream: f.at.Stream, Offset: f.at.Offset, Data: buf[:n]}); err != nil {
				return err
			}
			f.at.Offset += int64(n)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read output of rank %d: %w", f.at.Rank, err)
		}
	}
	return ctx.Err()
}

// pruneLogs removes the oldest jobs' output beyond KeepLogs. A job that is in
// the ledger is kept whatever its age.
func (a *Agent) pruneLogs() {
	jobs, err := os.ReadDir(a.cfg.LogDir)
	if err != nil || len(jobs) <= a.cfg.KeepLogs {
		return
	}
	a.mu.Lock()
	alive := map[string]bool{}
	for k := range a.tries {
		alive[string(k.Job)] = true
	}
	a.mu.Unlock()
	age := func(d os.DirEntry) time.Time {
		fi, err := d.Info()
		if err != nil {
			return time.Time{}
		}
		return fi.ModTime()
	}
	slices.SortFunc(jobs, func(x, y os.DirEntry) int { return age(x).Compare(age(y)) })
	for _, d := range jobs[:len(jobs)-a.cfg.KeepLogs] {
		if !alive[d.Name()] {
			os.RemoveAll(filepath.Join(a.cfg.LogDir, d.Name()))
		}
	}
}
