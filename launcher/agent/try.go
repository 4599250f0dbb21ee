package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// try is one (job, generation) on this node. Its loop is the only one to move
// its state, and only forward: none, prepared, started, ended.
type try struct {
	a          *Agent
	key        launcher.Key
	dir        string               // /run/sparkrun/jobs/KEY
	assignment *launcher.Assignment // nil: a tombstone, or found without one

	mail     chan struct{} // has room for one: "there are orders"
	orders   []launcher.Order
	ordersMu sync.Mutex

	entry   launcher.LedgerEntry // written by the loop under entryMu
	entryMu sync.Mutex

	// The loop's own.
	plan      *prepared // what prepare found out
	shim      *shim.Client
	ready     chan result // of the prepare under way
	abort     context.CancelFunc
	news      chan shim.Event // from the shim's journal
	forgotten bool            // remove it once it has ended
}

// prepared is a node's part of a plan, ready to go.
type prepared struct {
	who  login
	cfg  shim.Config
	hold net.Listener // keeps the head's port until the start
}

type result struct {
	plan *prepared
	shim *shim.Client
	port int
	err  error
}

// newTry makes a try; a nil assignment makes a tombstone.
func newTry(a *Agent, k launcher.Key, as *launcher.Assignment) *try {
	return &try{
		a: a, key: k, dir: a.tryDir(k), assignment: as,
		mail: make(chan struct{}, 1), news: make(chan shim.Event), entry: launcher.LedgerEntry{Key: k},
	}
}

func (t *try) snapshot() launcher.LedgerEntry {
	t.entryMu.Lock()
	defer t.entryMu.Unlock()
	e := t.entry
	e.Ranks = slices.Clone(e.Ranks)
	return e
}

// change moves the entry and tells about it in one step, so that a listener
// who reads the ledger after subscribing misses nothing.
func (t *try) change(ev *launcher.Event, fn func(e *launcher.LedgerEntry)) {
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	t.entryMu.Lock()
	fn(&t.entry)
	t.entryMu.Unlock()
	if ev != nil {
		ev.Key = t.key
		t.a.emit(*ev)
	}
}

func (t *try) post(o launcher.Order) {
	t.ordersMu.Lock()
	t.orders = append(t.orders, o)
	t.ordersMu.Unlock()
	select {
	case t.mail <- struct{}{}:
	default:
	}
}

func (t *try) takeOrders() []launcher.Order {
	t.ordersMu.Lock()
	defer t.ordersMu.Unlock()
	os := t.orders
	t.orders = nil
	return os
}

func (t *try) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer t.letGo()
	if t.shim != nil {
		go t.listen(ctx) // joined by ctx: it holds nothing but the connection
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.mail:
			for _, o := range t.takeOrders() {
				t.obey(ctx, o)
			}
		case r := <-t.ready:
			t.prepareDone(ctx, r)
		case ev := <-t.news:
			t.note(ev)
		}
		if t.forgotten && t.snapshot().Phase == launcher.PhaseEnded && t.ready == nil {
			t.forget()
			return
		}
	}
}

func (t *try) obey(ctx context.Context, o launcher.Order) {
	switch {
	case o.Prepare != nil:
		t.obeyPrepare(ctx)
	case o.Start != nil:
		t.obeyStart(ctx, *o.Start)
	case o.End != nil:
		t.obeyEnd(ctx, *o.End)
	case o.Forget != nil:
		t.forgotten = true
		if t.snapshot().Phase != launcher.PhaseEnded {
			t.obeyEnd(ctx, launcher.End{Key: t.key, Reason: "its end is recorded"})
		}
	}
}

func (t *try) obeyPrepare(ctx context.Context) {
	switch e := t.snapshot(); {
	case e.Refused != "":
		t.change(&launcher.Event{Kind: launcher.Refused, Text: e.Refused}, func(*launcher.LedgerEntry) {})
	case e.Phase == launcher.PhaseEnded:
		t.change(&launcher.Event{Kind: launcher.Ended}, func(*launcher.LedgerEntry) {})
	case e.Phase >= launcher.PhasePrepared:
		t.change(&launcher.Event{Kind: launcher.Prepared, Port: e.Port}, func(*launcher.LedgerEntry) {})
	case t.ready == nil:
		pctx, abort := context.WithCancel(ctx)
		ready := make(chan result, 1)
		t.ready, t.abort = ready, abort
		go func() { ready <- t.a.ready(pctx, *t.assignment, t.dir) }() // joined by ready
	}
}

func (t *try) prepareDone(ctx context.Context, r result) {
	t.ready = nil
	t.abort()
	switch e := t.snapshot(); {
	case e.Phase == launcher.PhaseEnded: // ended meanwhile
		t.discard(r)
	case r.err != nil:
		t.discard(r)
		t.change(&launcher.Event{Kind: launcher.Refused, Text: r.err.Error()}, func(e *launcher.LedgerEntry) { e.Refused = r.err.Error() })
	default:
		t.plan, t.shim = r.plan, r.shim
		go t.listen(ctx)
		t.change(&launcher.Event{Kind: launcher.Prepared, Port: r.port}, func(e *launcher.LedgerEntry) {
			e.Phase, e.Port = launcher.PhasePrepared, r.port
		})
	}
}

// discard undoes a prepare that comes to nothing.
func (t *try) discard(r result) {
	if r.plan != nil && r.plan.hold != nil {
		r.plan.hold.Close()
	}
	if r.shim != nil {
		r.shim.End(t.a.ctx, 0)
		r.shim.Release(t.a.ctx)
		r.shim.Close()
	}
	os.RemoveAll(t.dir)
}

// obeyStart lets the ranks go. The phase rises before the shim is told: from
// here on a rank may have been exec'd, whatever happens to us.
func (t *try) obeyStart(ctx context.Context, s launcher.Start) {
	if t.snapshot().Phase != launcher.PhasePrepared {
		return // told before, or ended
	}
	plan, err := t.planFor(s.Port)
	t.change(nil, func(e *launcher.LedgerEntry) {
		e.Phase, e.Port = launcher.PhaseStarted, s.Port
	})
	t.letGo()
	if err == nil {
		err = t.shim.Start(ctx, plan)
	}
	if err != nil && ctx.Err() == nil {
		t.a.cfg.Logger.Error("start ranks", "job", t.key.Job, "error", err)
		t.change(&launcher.Event{Kind: launcher.Refused, Text: fmt.Sprintf("start ranks: %v", err)}, func(e *launcher.LedgerEntry) {
			e.Refused = fmt.Sprintf("start ranks: %v", err)
		})
	}
}

// letGo frees the head's port for rank 0.
func (t *try) letGo() {
	if t.plan != nil && t.plan.hold != nil {
		t.plan.hold.Close()
		t.plan.hold = nil
	}
}

func (t *try) obeyEnd(ctx context.Context, e launcher.End) {
	switch {
	case t.snapshot().Phase == launcher.PhaseEnded:
		t.change(&launcher.Event{Kind: launcher.Ended}, func(*launcher.LedgerEntry) {})
	case t.shim != nil:
		t.letGo()
		if err := t.shim.End(ctx, e.Grace); err != nil && ctx.Err() == nil {
			t.a.cfg.Logger.Error("end ranks", "job", t.key.Job, "error", err)
		}
	default: // a tombstone, refused, or still preparing
		if t.abort != nil {
			t.abort()
		}
		t.ended()
	}
}

func (t *try) ended() {
	t.change(&launcher.Event{Kind: launcher.Ended}, func(e *launcher.LedgerEntry) { e.Phase = launcher.PhaseEnded })
}

// listen passes on what the shim's journal tells, from its beginning.
func (t *try) listen(ctx context.Context) {
	err := t.shim.Events(ctx, 0, func(ev shim.Event) error {
		select {
		case t.news <- ev:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if err == nil || ctx.Err() != nil {
		return
	}
	// The shim is gone without a last word: end what it left, tell what it knew.
	t.a.cfg.Logger.Error("shim lost", "job", t.key.Job, "error", err)
	for _, ev := range t.autopsy(ctx) {
		select {
		case t.news <- ev:
		case <-ctx.Done():
			return
		}
	}
}

// note takes one fact of the shim's journal.
func (t *try) note(ev shim.Event) {
	switch ev.Kind {
	case shim.Starting:
		t.change(nil, func(e *launcher.LedgerEntry) { e.Phase = max(e.Phase, launcher.PhaseStarted) })
	case shim.OutputLost:
		t.a.cfg.Logger.Warn("output lost", "job", t.key.Job, "rank", ev.Rank, "bytes", ev.Lost.Bytes, "error", ev.Lost.Error)
	case shim.Started:
		t.rankIs(launcher.RankStatus{Rank: ev.Rank, State: launcher.RankRunning, PID: ev.PID, Time: ev.Time})
	case shim.Exited:
		t.rankIs(launcher.RankStatus{Rank: ev.Rank, State: launcher.RankEnded, PID: ev.PID, Time: ev.Time, Exit: ev.Exit})
	case shim.Ended:
		if t.snapshot().Phase != launcher.PhaseEnded {
			t.ended()
		}
	}
}

func (t *try) rankIs(r launcher.RankStatus) {
	before := t.snapshot()
	i := slices.IndexFunc(before.Ranks, func(x launcher.RankStatus) bool { return x.Rank == r.Rank })
	if i >= 0 && r.State <= before.Ranks[i].State {
		return
	}
	note := func(e *launcher.LedgerEntry) {
		e.Phase = max(e.Phase, launcher.PhaseStarted)
		if i < 0 {
			e.Ranks = append(e.Ranks, r)
		} else {
			e.Ranks = slices.Clone(e.Ranks)
			e.Ranks[i] = r
		}
	}
	if r.State == launcher.RankEnded {
		t.change(&launcher.Event{Kind: launcher.Exited, Rank: r.Rank, Exit: r.Exit, Time: r.Time}, note)
	} else {
		t.change(nil, note)
	}
	if t.assignment != nil && i < 0 && len(before.Ranks)+1 == t.assignment.Ranks {
		t.change(&launcher.Event{Kind: launcher.Started, Time: r.Time}, func(*launcher.LedgerEntry) {})
	}
}

// forget drops a try whose end is recorded. Its output stays.
func (t *try) forget() {
	if t.shim != nil {
		ctx, cancel := context.WithTimeout(t.a.ctx, 5*time.Second)
		defer cancel()
		t.shim.Release(ctx)
		t.shim.Close()
	}
	os.RemoveAll(t.dir)
	t.a.remove(t)
	t.a.pruneLogs()
}

// reattach finds a try of this agent's previous life.
func (a *Agent) reattach(dir string) error {
	var as launcher.Assignment
	if err := readJSON(filepath.Join(dir, "assignment.json"), &as); err != nil {
		return errors.Join(err, os.RemoveAll(dir)) // died before it had prepared anything
	}
	ctx, cancel := context.WithTimeout(a.ctx, 10*time.Second)
	defer cancel()
	t := newTry(a, as.Key, &as)
	client, err := shim.Attach(ctx, dir)
	if err != nil {
		left := t.autopsy(ctx)
		if len(left) == 0 {
			return os.RemoveAll(dir) // no rank was ever started: to be prepared anew
		}
		for _, ev := range left {
			t.note(ev)
		}
	} else {
		t.shim = client
		t.entry.Phase = launcher.PhasePrepared // the journal will tell whether more
		t.entry.Port = readPort(dir)
	}
	a.cfg.Logger.Info("re-attached", "job", as.Job, "generation", as.Generation, "phase", t.entry.Phase)
	a.add(t)
	return nil
}

// autopsy ends what a dead shim left behind and tells its journal to the end:
// ranks that may have run and of which no exit is known get one that says so.
// It is empty when nothing was ever exec'd.
func (t *try) autopsy(ctx context.Context) []shim.Event {
	if err := shim.Reap(ctx, t.dir); err != nil {
		t.a.cfg.Logger.Error("reap ranks of a lost shim", "job", t.key.Job, "error", err)
	}
	told, err := shim.Replay(t.dir)
	if err != nil {
		t.a.cfg.Logger.Error("replay journal", "job", t.key.Job, "error", err)
	}
	if !slices.ContainsFunc(told, func(ev shim.Event) bool { return ev.Kind == shim.Starting }) {
		return nil
	}
	exited := map[int]bool{}
	var out []shim.Event
	for _, ev := range told {
		if ev.Kind == shim.Ended {
			continue // told last
		}
		exited[ev.Rank] = exited[ev.Rank] || ev.Kind == shim.Exited
		out = append(out, ev)
	}
	for r := t.assignment.FirstRank; r < t.assignment.FirstRank+t.assignment.Ranks; r++ {
		if !exited[r] {
			out = append(out, shim.Event{Kind: shim.Exited, Time: time.Now(), Rank: r,
				Exit: &launcher.Exit{Error: "ended unseen: its shim was killed"}})
		}
	}
	return append(out, shim.Event{Kind: shim.Ended, Time: time.Now(), Rank: shim.Gang})
}
