// Package agent is the node's side of a launch. It decides which orders are
// stale, whether this node can run its part of a plan, and what the ledger says
// of each try; it drives the shims, finds them again after a restart, and reads
// the output that they keep.
//
// It must not decide when a gang starts or ends, and must not end a rank
// because somebody fell silent: only an order ends ranks. It knows nothing of
// networks, leaders or records.
package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// Config of an Agent.
type Config struct {
	Node launcher.NodeID
	Boot string // this boot's id; orders meant for another are refused
	// RunDir holds the fence and a folder for each try: it must not survive a
	// reboot (/run/sparkrun).
	RunDir string
	// LogDir keeps the ranks' output: JOB/GENERATION/rank-N.out and .err.
	LogDir string
	// KeepLogs is how many jobs' output is kept; 0 means 200.
	KeepLogs int
	// Fabric gives the variables this node's hardware calls for, at this moment.
	Fabric func(launcher.Assignment) ([]launcher.Setting, error)
	// DieWithUs ends the ranks when this process dies: the standalone mode.
	DieWithUs bool
	Logger    *slog.Logger
}

// Agent holds what this node knows of its tries. All methods are safe for use
// from several goroutines.
type Agent struct {
	cfg Config
	ctx context.Context

	stop  context.CancelFunc
	loops sync.WaitGroup // one per try

	mu    sync.Mutex
	fence launcher.Fence
	tries map[launcher.Key]*try
	feeds map[*feed]struct{}
}

// Open reads the fence and finds the shims of a previous life again.
func Open(cfg Config) (*Agent, error) {
	if cfg.KeepLogs == 0 {
		cfg.KeepLogs = 200
	}
	ctx, stop := context.WithCancel(context.Background())
	a := &Agent{cfg: cfg, ctx: ctx, stop: stop, tries: map[launcher.Key]*try{}, feeds: map[*feed]struct{}{}}
	if err := os.MkdirAll(a.jobsDir(), 0o700); err != nil {
		return nil, fmt.Errorf("open agent: %w", err)
	}
	if err := os.MkdirAll(cfg.LogDir, 0o750); err != nil {
		return nil, fmt.Errorf("open agent: %w", err)
	}
	if err := readJSON(a.fencePath(), &a.fence); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open agent: %w: remove the file if the node has been rebooted since", err)
	}
	dirs, err := os.ReadDir(a.jobsDir())
	if err != nil {
		return nil, fmt.Errorf("open agent: %w", err)
	}
	for _, d := range dirs {
		if err := a.reattach(filepath.Join(a.jobsDir(), d.Name())); err != nil {
			cfg.Logger.Error("re-attach", "dir", d.Name(), "error", err)
		}
	}
	return a, nil
}

// Close stops driving; the shims and their ranks go on.
func (a *Agent) Close() {
	a.stop()
	a.loops.Wait()
}

func (a *Agent) jobsDir() string   { return filepath.Join(a.cfg.RunDir, "jobs") }
func (a *Agent) fencePath() string { return filepath.Join(a.cfg.RunDir, "fence.json") }

func (a *Agent) tryDir(k launcher.Key) string { return filepath.Join(a.jobsDir(), k.String()) }

func (a *Agent) logDir(k launcher.Key) string {
	return filepath.Join(a.cfg.LogDir, string(k.Job), fmt.Sprint(k.Generation))
}

// Raise lets a leader in: its fence becomes the lowest that is obeyed. It
// returns ErrStaleFence when a higher one has been here. The new fence is on
// disk before Raise returns, so that a restart does not forget it.
func (a *Agent) Raise(f launcher.Fence) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch f.Compare(a.fence) {
	case -1:
		return fmt.Errorf("fence %s: %w: %s has been here", f, launcher.ErrStaleFence, a.fence)
	case 0:
		return nil
	}
	if err := writeJSON(a.fencePath(), f); err != nil {
		return fmt.Errorf("raise fence: %w", err)
	}
	a.fence = f
	return nil
}

// Ledger lists what this node knows of every try that is not forgotten.
func (a *Agent) Ledger() []launcher.LedgerEntry {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []launcher.LedgerEntry
	for _, t := range a.tries {
		out = append(out, t.snapshot())
	}
	slices.SortFunc(out, func(x, y launcher.LedgerEntry) int { return strings.Compare(x.String(), y.String()) })
	return out
}

// Order takes a leader's order and never blocks. Stale ones are refused: with
// an error where the fence is too low, with a Refused event where it is a
// Prepare that does not fit this boot or generation.
func (a *Agent) Order(o launcher.Order) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if o.Fence.Compare(a.fence) != 0 {
		return fmt.Errorf("fence %s: %w: this node obeys %s", o.Fence, launcher.ErrStaleFence, a.fence)
	}
	switch {
	case o.Prepare != nil:
		a.prepare(o)
	case o.Start != nil:
		a.pass(o.Start.Key, o)
	case o.End != nil:
		if a.tries[o.End.Key] == nil {
			// A tombstone: a Prepare that comes late must not start anything.
			a.add(newTry(a, o.End.Key, nil))
		}
		a.pass(o.End.Key, o)
	case o.Forget != nil:
		a.pass(*o.Forget, o)
	}
	return nil
}

func (a *Agent) prepare(o launcher.Order) {
	as := o.Prepare
	if t := a.tries[as.Key]; t != nil {
		t.post(o) // asked again: it repeats what it has come to
		return
	}
	refuse := func(why error) {
		a.emit(launcher.Event{Key: as.Key, Kind: launcher.Refused, Text: why.Error()})
	}
	if err := errors.Join(as.Job.Validate(), as.Spec.Validate()); err != nil {
		refuse(err) // its id becomes the name of a folder
		return
	}
	if as.Boot != a.cfg.Boot {
		refuse(launcher.ErrOtherBoot)
		return
	}
	for k := range a.tries {
		if k.Job == as.Job && k.Generation > as.Generation {
			refuse(launcher.ErrStaleGeneration)
			return
		}
	}
	a.add(newTry(a, as.Key, as))
	a.pass(as.Key, o)
}

func (a *Agent) pass(k launcher.Key, o launcher.Order) {
	if t := a.tries[k]; t != nil {
		t.post(o)
	}
}

// add starts a try's loop. a.mu is held, except while Open runs.
func (a *Agent) add(t *try) {
	a.tries[t.key] = t
	a.loops.Add(1)
	go func() {
		defer a.loops.Done()
		t.run(a.ctx)
	}()
}

func (a *Agent) remove(t *try) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.tries, t.key)
}

// feed is one listener's queue of events. It is bounded only by what a node's
// ranks can cause: a few events a rank.
type feed struct {
	mu   sync.Mutex
	evs  []launcher.Event
	more chan struct{} // has room for one
}

// Events subscribes to what happens from now on. next waits for the next
// event; cancel ends the subscription. Ask for the Ledger after subscribing:
// what happens between is then told twice, which is harmless, and never missed.
func (a *Agent) Events() (next func(context.Context) (launcher.Event, error), cancel func()) {
	f := &feed{more: make(chan struct{}, 1)}
	a.mu.Lock()
	a.feeds[f] = struct{}{}
	a.mu.Unlock()
	return f.next, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.feeds, f)
	}
}

func (f *feed) next(ctx context.Context) (launcher.Event, error) {
	for {
		f.mu.Lock()
		if len(f.evs) > 0 {
			ev := f.evs[0]
			f.evs = f.evs[1:]
			f.mu.Unlock()
			return ev, nil
		}
		f.mu.Unlock()
		select {
		case <-f.more:
		case <-ctx.Done():
			return launcher.Event{}, ctx.Err()
		}
	}
}

// emit tells every listener. a.mu is held.
func (a *Agent) emit(ev launcher.Event) {
	ev.Node = a.cfg.Node
	if ev.Time.IsZero() {
		ev.Time = time.Now()
	}
	for f := range a.feeds {
		f.mu.Lock()
		f.evs = append(f.evs, ev)
		f.mu.Unlock()
		select {
		case f.more <- struct{}{}:
		default:
		}
	}
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// writeJSON replaces a file as a whole. It lives in /run, so that no fsync is
// needed: what a power cut loses was of a boot that is over.
func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
