package agent

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/login"
	"github.com/sparkrun/sparkrun/launcher/logs"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// attempt is one (job, generation) on this node. Its loop is the only one to move
// its state, and only forward: none, prepared, started, ended. Whatever may
// take long (a disk, a shim that is stopped) happens beside the loop, so that
// an End is never kept waiting by what it is to end.
type attempt struct {
	a   *Agent
	key launcher.Key
	dir string // RunDir/jobs/KEY

	mail     chan struct{} // has room for one: "there are orders"
	orders   []launcher.Order
	ordersMu sync.Mutex

	entry   launcher.LedgerEntry  // written by the loop under entryMu, which alone may read it without
	lost    []logs.Lost           // as the journal tells it; likewise
	seen    *launcher.ServiceSeen // of a service; entryMu guards it, and it is replaced whole
	entryMu sync.Mutex

	meeting *meeting // of an MPI job's barriers; nil: it has none, or they meet elsewhere

	stays atomic.Bool // ranks of it may come again, until it has ended

	// The loop's own.
	lostUnsaved bool                 // lost is not on the disk as it is here
	assignment  *launcher.Assignment // nil: a tombstone, or its file was unreadable
	at          map[int]int          // rank -> its index in entry.Ranks
	plan        *prepared            // what prepare found out; nil in a later incarnation
	hold        held                 // keeps ports until the start of their step
	found       bool                 // dir is of a previous incarnation
	kept        bool                 // dir holds a shim, or what a dead one left
	shim        *shim.Client         // nil: has yet to be attached to
	heard       int                  // last number of the journal that is in entry
	replaying   bool                 // what is noted is of a previous incarnation
	ready       chan result          // of the prepare under way
	abort       context.CancelFunc
	begun       chan error         // of each start
	steps       map[int]bool       // that were told to start in this incarnation
	asked       map[int]*asking    // probes, by step
	news        chan shim.Event    // from the shim's journal
	explains    atomic.Int64       // failed ranks so far
	unwatch     context.CancelFunc // of the looks at a service; nil: there are none
	lease       renewal
	execd       bool // the journal says that ranks may have run
	ending      bool // an End has been ordered in this incarnation
	forgotten   bool // remove it once it has ended
}

// prepared is a node's part of a plan, ready to go.
type prepared struct {
	who    login.User
	fabric []launcher.Setting
	// secrets are the variables by which ranks find theirs, without the secrets.
	secrets   []launcher.Setting
	cfg       shim.Config
	container *container.Prepared // nil: on the host
	warnings  []string            // of what the job should know, and starts in spite of
	mpi       launcher.MPIFamily  // that the program is linked to
}

type result struct {
	plan *prepared
	at   ports // found free, and held
	hold held
	shim *shim.Client
	// warning is what the job should know of, and starts in spite of.
	warning string
	err     error
}

// newAttempt makes an attempt; a nil assignment makes a tombstone.
func newAttempt(a *Agent, k launcher.Key, as *launcher.Assignment) *attempt {
	t := &attempt{
		a: a, key: k, dir: a.attemptDir(k), at: map[int]int{},
		mail: make(chan struct{}, 1), news: make(chan shim.Event), entry: launcher.LedgerEntry{Key: k},
		lease: renewal{wake: make(chan struct{}, 1)}, begun: make(chan error, launcher.MaxStages),
		steps: map[int]bool{}, asked: map[int]*asking{},
	}
	t.assign(as)
	return t
}

func (t *attempt) snapshot() launcher.LedgerEntry {
	t.entryMu.Lock()
	defer t.entryMu.Unlock()
	e := t.entry
	e.Ranks, e.Service = slices.Clone(e.Ranks), t.seen
	return e
}

// change moves the entry and tells about it in one step, so that a listener
// who reads the ledger after subscribing misses nothing. A nil fn only tells.
func (t *attempt) change(ev *launcher.Event, fn func(e *launcher.LedgerEntry)) {
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	if fn != nil {
		t.entryMu.Lock()
		fn(&t.entry)
		t.entryMu.Unlock()
	}
	if ev != nil {
		ev.Key = t.key
		t.a.emit(*ev)
	}
}

func (t *attempt) post(o launcher.Order) {
	t.ordersMu.Lock()
	t.orders = append(t.orders, o)
	t.ordersMu.Unlock()
	select {
	case t.mail <- struct{}{}:
	default:
	}
}

func (t *attempt) takeOrders() []launcher.Order {
	t.ordersMu.Lock()
	defer t.ordersMu.Unlock()
	os := t.orders
	t.orders = nil
	return os
}

func (t *attempt) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var beside sync.WaitGroup // what ends soon once ctx has
	defer t.leave()
	defer beside.Wait()
	defer cancel()
	attend := func() {
		client, from := t.shim, t.heard+1
		beside.Go(func() { t.attend(ctx, client, from) })
	}
	barriers := func() {
		if as := t.assignment; as != nil && meetsInBarriers(*as) {
			beside.Go(func() { t.carryBarriers(ctx, *as) })
		}
	}
	if t.kept && t.entry.Phase != launcher.PhaseEnded {
		attend()
		if t.entry.Phase == launcher.PhaseStarted {
			barriers()
			t.watch(ctx, &beside)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.mail:
			for _, o := range t.takeOrders() {
				t.obey(ctx, &beside, o)
			}
		case r := <-t.ready:
			if t.prepareDone(r) {
				attend()
			}
		case err := <-t.begun:
			t.startDone(ctx, err)
			if err == nil {
				barriers()
				t.watch(ctx, &beside)
			}
		case ev := <-t.news:
			t.note(ev)
		case <-t.lease.wake:
			t.renew(ctx, &beside)
		case stamp := <-t.lease.giving:
			t.renewed(stamp)
		}
		if t.forgotten && t.entry.Phase == launcher.PhaseEnded && t.ready == nil {
			t.forget(ctx)
			return
		}
	}
}

// leave lets go of what only this process holds; the shim goes on, unless it
// is to die with us. A prepare that hangs on a disk is not waited for: it
// cleans up when it comes back, and spawns nothing any more.
func (t *attempt) leave() {
	t.letGo()
	if t.shim != nil {
		t.shim.Close()
	}
	if ready := t.ready; ready != nil {
		t.abort()
		go func() {
			r := <-ready
			r.release()
			if r.shim != nil {
				r.shim.Close()
			}
		}()
	}
}

func (t *attempt) obey(ctx context.Context, beside *sync.WaitGroup, o launcher.Order) {
	switch {
	case o.Prepare != nil:
		if t.assignment == nil {
			t.a.mu.Lock()
			t.assign(o.Prepare) // of a key there is only one, ever
			t.a.mu.Unlock()
		}
		t.obeyPrepare(ctx)
	case o.Start != nil:
		t.obeyStart(ctx, *o.Start)
	case o.End != nil:
		t.obeyEnd(ctx, beside, *o.End)
	case o.Probe != nil:
		t.obeyProbe(ctx, beside, *o.Probe)
	case o.Again != nil:
		t.obeyAgain(ctx, beside, *o.Again)
	case o.Forget != nil:
		t.forgotten = true
		if t.entry.Phase != launcher.PhaseEnded {
			t.obeyEnd(ctx, beside, launcher.End{Key: t.key, Reason: "its end is recorded"})
		}
	}
}

func (t *attempt) obeyPrepare(ctx context.Context) {
	switch {
	case t.entry.Refused != "":
		t.change(&launcher.Event{Kind: launcher.Refused, Text: t.entry.Refused}, nil)
	case t.entry.Phase == launcher.PhaseEnded:
		t.change(&launcher.Event{Kind: launcher.Ended}, nil)
	case t.entry.Phase >= launcher.PhasePrepared:
		t.change(&launcher.Event{Kind: launcher.Prepared, Port: t.entry.Port, Ports: t.entry.Ports,
			Image: t.entry.Image}, nil)
	case t.ready == nil:
		pctx, abort := context.WithCancel(ctx)
		ready := make(chan result, 1)
		as := *t.assignment
		t.ready, t.abort = ready, abort
		go func() { ready <- t.a.ready(pctx, as, t.dir) }() // joined by ready, see leave
	}
}

// prepareDone tells whether there is a shim to attend to now.
func (t *attempt) prepareDone(r result) bool {
	t.ready = nil
	t.abort()
	switch {
	case t.entry.Phase == launcher.PhaseEnded: // ended meanwhile
		t.discard(r)
		return false
	case r.err != nil:
		t.discard(r)
		t.refuse(r.err.Error())
		return false
	}
	t.plan, t.hold, t.shim, t.kept = r.plan, r.hold, r.shim, true
	image := r.plan.container.ImageSeen()
	t.change(&launcher.Event{Kind: launcher.Prepared, Port: r.at.port, Ports: r.at.own, Text: r.warning, Image: image},
		func(e *launcher.LedgerEntry) {
			e.Phase, e.Port, e.Ports, e.Image = launcher.PhasePrepared, r.at.port, r.at.own, image
		})
	return true
}

// discard undoes a prepare that comes to nothing.
func (t *attempt) discard(r result) {
	r.release()
	if r.shim != nil {
		t.dismiss(t.a.ctx, r.shim, true)
	}
	t.removeDirs()
}

func (t *attempt) removeDirs() {
	c, _ := container.ReadPrepared(t.dir)
	t.a.dropSecrets(t.key)
	t.a.unshield(t.key)
	if err := errors.Join(os.RemoveAll(t.dir), removeTree(errorDir(t.key, t.a.cfg.Node))); err != nil {
		t.a.cfg.Logger.Error("remove attempt", "job", t.key.Job, "error", err)
	}
	t.a.containers.Forget(c)
}

func (r result) release() {
	r.hold.close()
}

// dismiss has a shim exit, and waits a while for it.
func (t *attempt) dismiss(ctx context.Context, c *shim.Client, end bool) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var err error
	if end {
		err = c.End(ctx, 0)
	}
	if err == nil {
		err = c.Release(ctx)
	}
	if err != nil && !errors.Is(err, shim.ErrGone) {
		t.a.cfg.Logger.Error("release shim", "job", t.key.Job, "error", err)
	}
	c.Close()
}

func (t *attempt) refuse(why string) {
	t.change(&launcher.Event{Kind: launcher.Refused, Text: why}, func(e *launcher.LedgerEntry) { e.Refused = why })
}

// letGo frees all ports that are still held.
func (t *attempt) letGo() { t.hold.close() }

func (t *attempt) obeyEnd(ctx context.Context, beside *sync.WaitGroup, e launcher.End) {
	t.ending = true
	t.askNoMore()
	switch {
	case t.entry.Phase == launcher.PhaseEnded:
		t.change(&launcher.Event{Kind: launcher.Ended}, nil)
	case t.kept:
		t.a.cfg.Logger.Info("end ranks", "job", t.key.Job, "grace", e.Grace, "reason", e.Reason)
		t.letGo()
		client := t.shim
		beside.Go(func() { t.end(ctx, client, max(e.Grace, 0)) })
	default: // a tombstone, refused, or still preparing
		if t.abort != nil {
			t.abort()
		}
		t.ended(time.Time{})
	}
}

// answerWait is how long a shim may take to say that it has heard an End.
const answerWait = 3 * time.Second

// end tells the shim, which alone knows when it is done. A shim that cannot be
// reached is told again: an End that got lost would leave its job for ever
// ending. Twice does no harm, for a later End only shortens the grace.
func (t *attempt) end(ctx context.Context, client *shim.Client, grace time.Duration) {
	for {
		var err error
		if client == nil {
			client, err = shim.Attach(ctx, t.dir)
		}
		if err == nil {
			answer, cancel := context.WithTimeout(ctx, answerWait)
			err = client.End(answer, grace)
			cancel()
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		if errors.Is(err, shim.ErrGone) {
			// attend buries who is gone. One whose folder was removed seems gone and
			// is not: it can still be signalled.
			if shim.Rouse(t.dir, syscall.SIGTERM) {
				t.a.cfg.Logger.Error("end ranks: the shim's folder is gone, told it by a signal", "job", t.key.Job, "dir", t.dir)
			}
			return
		}
		if errors.Is(err, context.DeadlineExceeded) {
			shim.Rouse(t.dir, syscall.SIGCONT) // somebody may have stopped it
		}
		t.a.cfg.Logger.Error("end ranks", "job", t.key.Job, "error", err)
		if !pause(ctx, again) {
			return
		}
	}
}

func (t *attempt) ended(at time.Time) {
	t.askNoMore()
	t.a.dropSecrets(t.key)
	t.a.unshield(t.key)
	t.change(&launcher.Event{Kind: launcher.Ended, Time: at},
		func(e *launcher.LedgerEntry) { e.Phase, e.Stuck = launcher.PhaseEnded, "" })
}

// forget drops an attempt whose end is recorded. Its output stays.
func (t *attempt) forget(ctx context.Context) {
	if t.kept || t.found {
		client, err := t.shim, error(nil)
		if client == nil {
			client, err = shim.Attach(ctx, t.dir)
		}
		if err == nil {
			t.dismiss(ctx, client, !t.kept) // one that came up late waits for a start
		}
	}
	t.removeDirs()
	if t.lostUnsaved {
		t.saveLost()
	}
	t.a.remove(t)
	t.a.settleLinger(ctx)
	t.a.pruneLogs()
}
