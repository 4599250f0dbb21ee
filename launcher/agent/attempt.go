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

// attempt is one (job, generation) on this node. Only its loop changes its state, and only
// forward: none, prepared, started, ended. What may take long (a disk, a stopped shim) runs
// beside the loop, so that an End never waits for what it is to end.
type attempt struct {
	a   *Agent
	key launcher.Key
	dir string // RunDir/jobs/KEY

	mail     chan struct{} // capacity 1: "there are orders"
	orders   []launcher.Order
	ordersMu sync.Mutex

	entry   launcher.LedgerEntry  // written by the loop under entryMu; the loop alone may read it without
	lost    []logs.Lost           // as the journal says; guarded likewise
	seen    *launcher.ServiceSeen // of a service; guarded by entryMu, and replaced whole
	doing   Doing                 // guarded by entryMu
	entryMu sync.Mutex

	meeting *meeting // where an MPI job's barriers meet; nil: it has none, or they meet on another node

	restartable atomic.Bool // its ranks may be started again, until it has ended
	serves      atomic.Bool // it is a service's

	// Only the loop touches what follows.
	lostUnsaved bool                 // lost differs from what is on disk
	assignment  *launcher.Assignment // nil: a tombstone, or its file was unreadable
	at          map[int]int          // rank -> its index in entry.Ranks
	plan        *prepared            // what prepare found out; nil after a restart of the agent
	hold        held                 // ports held until their step starts
	found       bool                 // dir was left by a previous agent process
	kept        bool                 // dir holds a shim, or what a dead one left
	shim        *shim.Client         // nil: not attached yet
	heard       int                  // the last number of the journal that is in entry
	replaying   bool                 // events are replayed from before a restart
	ready       chan result          // result of the prepare under way
	abort       context.CancelFunc
	begun       chan error         // result of each start
	steps       map[int]bool       // steps whose start was ordered of this agent process
	asked       map[int]*asking    // probes, by step
	news        chan shim.Event    // from the shim's journal
	explains    atomic.Int64       // failed ranks that were explained so far
	unwatch     context.CancelFunc // stops watching a service; nil: none is watched
	lease       renewal
	execd       bool // the journal says that ranks may have run
	ending      bool // an End was ordered of this agent process
	forgotten   bool // remove it once it has ended
}

// prepared is a node's part of a plan, ready to go.
type prepared struct {
	who    login.User
	fabric []launcher.Setting
	// secrets are the variables by which ranks find theirs, without the secrets.
	secrets   []launcher.Setting
	compiled  string // launcher.CompileCache, as the ranks see it
	cfg       shim.Config
	container *container.Prepared // nil: ranks run on the host
	warnings  []string            // for the user; the job starts all the same
	mpi       launcher.MPIFamily  // that the program is linked with
}

type result struct {
	plan *prepared
	at   ports // found free, and held
	hold held
	shim *shim.Client
	// warning is for the user; the job starts all the same.
	warning string
	err     error
}

// newAttempt makes an attempt; with a nil assignment it is a tombstone.
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

// change moves the entry and emits an event in one step, so that a listener who reads the
// ledger after subscribing misses nothing. With a nil fn it only emits.
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
	var beside sync.WaitGroup // what ends soon after ctx
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

// leave releases what only this process holds. The shim goes on, unless it is to die with
// us. A prepare that hangs on a disk is not waited for: when it returns it cleans up, and
// spawns nothing any more.
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
			t.assign(o.Prepare) // a key has only one assignment, ever
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
		go func() { ready <- t.a.ready(pctx, as, t.dir) }() // its result goes to ready; see leave
	}
}

// prepareDone reports whether there is now a shim to attend to.
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
	t.does("is prepared, and waits until all machines of the job are", false)
	image := r.plan.container.ImageSeen()
	t.change(&launcher.Event{Kind: launcher.Prepared, Port: r.at.port, Ports: r.at.own, Text: r.warning, Image: image},
		func(e *launcher.LedgerEntry) {
			e.Phase, e.Port, e.Ports, e.Image = launcher.PhasePrepared, r.at.port, r.at.own, image
		})
	return true
}

// discard undoes a prepare whose result is not needed.
func (t *attempt) discard(r result) {
	r.release()
	if r.shim != nil {
		t.dismiss(t.a.ctx, r.shim, true)
	}
	t.removeDirs()
}

func (t *attempt) removeDirs() {
	c, _ := container.ReadPrepared(t.dir)
	if t.assignment != nil {
		t.a.usedCompiled(t.assignment.Spec, c)
	}
	t.a.dropSecrets(t.key)
	t.a.removeFilter(t.key)
	if err := errors.Join(os.RemoveAll(t.dir), removeTree(errorDir(t.key, t.a.cfg.Node))); err != nil {
		t.a.cfg.Logger.Error("remove attempt", "job", t.key.Job, "error", err)
	}
	t.a.containers.Forget(c)
}

func (r result) release() {
	r.hold.close()
}

// dismiss makes a shim exit, and waits a while for it.
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

// letGo releases all ports that are still held.
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
		beside.Go(func() { t.end(ctx, client, e) })
	default: // a tombstone, refused, or still preparing
		if t.abort != nil {
			t.abort()
		}
		t.ended(time.Time{})
	}
}

// answerWait is how long a shim may take to acknowledge an End.
const answerWait = 3 * time.Second

// end passes an End to the shim, which alone knows when its ranks are gone. If the shim
// cannot be reached, the End is sent again: a lost one would leave its job ending for ever.
// Twice does no harm, as a later End only shortens the grace.
func (t *attempt) end(ctx context.Context, client *shim.Client, e launcher.End) {
	for {
		var err error
		if client == nil {
			client, err = shim.Attach(ctx, t.dir)
		}
		if err == nil {
			answer, cancel := context.WithTimeout(ctx, answerWait)
			if e.Interrupt {
				err = client.Interrupt(answer, max(e.Grace, 0))
			} else {
				err = client.End(answer, max(e.Grace, 0))
			}
			cancel()
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		if errors.Is(err, shim.ErrGone) {
			// attend reaps a dead shim. One whose folder was removed only seems dead: it
			// can still be signalled.
			if shim.SignalShim(t.dir, syscall.SIGTERM) {
				t.a.cfg.Logger.Error("end ranks: the shim's folder is gone, sent it a signal", "job", t.key.Job, "dir", t.dir)
			}
			return
		}
		if errors.Is(err, context.DeadlineExceeded) {
			shim.SignalShim(t.dir, syscall.SIGCONT) // it may have been stopped by a signal
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
	t.a.removeFilter(t.key)
	t.change(&launcher.Event{Kind: launcher.Ended, Time: at},
		func(e *launcher.LedgerEntry) { e.Phase, e.Stuck = launcher.PhaseEnded, "" })
}

// forget drops an attempt whose end is recorded. Its output is kept.
func (t *attempt) forget(ctx context.Context) {
	if t.kept || t.found {
		client, err := t.shim, error(nil)
		if client == nil {
			client, err = shim.Attach(ctx, t.dir)
		}
		if err == nil {
			t.dismiss(ctx, client, !t.kept) // a shim that came up late waits for a start
		}
	}
	t.removeDirs()
	if t.lostUnsaved {
		t.saveLost()
	}
	t.a.remove(t)
	t.a.settleLinger(ctx)
	t.a.pruneSoon()
}
