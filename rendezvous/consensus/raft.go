package consensus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// State is a node's state in raft.
type State int

// The states. Only a Leader may decide anything, and only once Run has called its lead
// function.
const (
	Follower State = iota
	Candidate
	Leader
	Stopped
)

func (s State) String() string {
	return [...]string{"follower", "candidate", "leader", "stopped"}[s]
}

// Raft is one node's part in the log.
type Raft struct {
	cfg    Config
	log    *slog.Logger
	r      *raft.Raft
	fsm    *fsm
	store  *failStop
	trans  raft.Transport
	snaps  *snapshots
	copies *copies

	closeOnce sync.Once
	doneOnce  sync.Once
	done      chan struct{} // closed when the node stops taking part
	stopping  raft.Future   // of raft's shutdown; set before done is closed
	joined    sync.WaitGroup

	mu      sync.Mutex
	started bool // Open has succeeded and Close has not begun
	fatal   error
	changed chan struct{} // closed and replaced at every change of view
	last    view
	silent  map[string]silence
}

// lastWord is how long a node that has stopped may still take to answer.
const lastWord = 200 * time.Millisecond

// view is what LeaderChanged watches.
type view struct {
	state  State
	leader string
	term   uint64
}

// Open starts the node on what its folder holds. It refuses a folder that is
// damaged (*CorruptError), that belongs to another node, or that has state
// when Bootstrap is set.
func Open(cfg Config) (_ *Raft, err error) {
	n, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	if err := n.start(); err != nil {
		_, closeErr := n.store.close(n.cfg.StoreDeadline)
		return nil, errors.Join(err, closeErr)
	}
	return n, nil
}

// prepare opens the store of a node whose raft does not run yet.
func prepare(cfg Config) (_ *Raft, err error) {
	cfg, err = cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make raft folder %s: %w", cfg.Dir, err)
	}
	bolt, err := openStore(cfg.Dir, cfg.ID)
	if err != nil {
		return nil, err
	}
	var disk diskStore = bolt
	if cfg.wrapStore != nil {
		disk = cfg.wrapStore(bolt)
	}
	n := &Raft{
		cfg: cfg, log: cfg.Logger,
		done: make(chan struct{}), changed: make(chan struct{}), silent: map[string]silence{}, copies: newCopies(),
	}
	n.store = &failStop{disk: disk, dir: cfg.Dir, limit: cfg.StoreDeadline, fatal: n.fail}
	n.fsm = &fsm{machine: cfg.Machine, fatal: n.fail, lastLog: func() uint64 { i, _ := n.store.LastIndex(); return i }}
	return n, nil
}

func (n *Raft) start() error {
	snaps, newest, err := openSnapshots(n.cfg, n.store)
	if err != nil {
		return err
	}
	n.snaps = snaps
	if err := n.reconcile(newest); err != nil {
		return err
	}
	notify := make(chan bool, 64)
	rc := n.cfg.raftConfig(notify)
	n.trans = newTransport(n.cfg, n.copies)
	closeTransport := func() { n.trans.(raft.WithClose).Close() }

	if n.cfg.Bootstrap {
		err := raft.BootstrapCluster(rc, n.store, n.store, snaps, n.trans, raft.Configuration{Servers: []raft.Server{
			{Suffrage: raft.Voter, ID: raft.ServerID(n.cfg.ID), Address: raft.ServerAddress(n.cfg.ID)},
		}})
		if err != nil {
			closeTransport()
			if errors.Is(err, raft.ErrCantBootstrap) {
				err = fmt.Errorf("%w: a node can begin or join one cluster only; it must leave first", err)
			}
			return fmt.Errorf("bootstrap raft folder %s: %w", n.cfg.Dir, err)
		}
	}
	if n.r, err = newRaft(rc, n.fsm, n.store, snaps, n.trans); err != nil {
		closeTransport()
		return fmt.Errorf("start raft in %s: %w", n.cfg.Dir, errors.Join(err, n.fsm.halted))
	}
	n.fsm.live.Store(true)
	n.store.live.Store(true)
	commit := n.r.CommitIndex
	n.store.commitIndex.Store(&commit)

	obs := make(chan raft.Observation, 256)
	n.r.RegisterObserver(raft.NewObserver(obs, false, func(o *raft.Observation) bool {
		switch o.Data.(type) {
		case raft.RaftState, raft.LeaderObservation, raft.FailedHeartbeatObservation, raft.ResumedHeartbeatObservation:
			return true
		}
		return false
	}))
	n.joined.Go(func() { n.watch(notify, obs) })
	err = n.replay(newest)
	n.mu.Lock()
	n.started = true
	err = errors.Join(err, n.fatal)
	n.mu.Unlock()
	if err != nil {
		n.shutdown()
	}
	return err
}

// newRaft turns raft's panics on start into errors.
func newRaft(rc *raft.Config, f raft.FSM, s *failStop, snaps raft.SnapshotStore, t raft.Transport) (r *raft.Raft,
	err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	return raft.NewRaft(rc, f, s, s, snaps, t)
}

// reconcile makes the log fit the newest snapshot after a crash between the two writes.
func (n *Raft) reconcile(newest *raft.SnapshotMeta) error {
	first, _ := n.store.FirstIndex()
	last, _ := n.store.LastIndex()
	if newest == nil {
		if first > 1 {
			return &CorruptError{n.cfg.Dir,
				fmt.Errorf("the log begins at entry %d and there is no snapshot of what was before", first)}
		}
		return nil
	}
	if _, err := n.store.GetUint64([]byte("CurrentTerm")); err != nil {
		return &CorruptError{n.cfg.Dir,
			errors.New("there are snapshots and no term: the log has been lost, and the vote with it")}
	}
	drop := last > 0 && last < newest.Index
	if last >= newest.Index && first <= newest.Index {
		// The rule that raft leaves out (#697): with an entry that conflicts with the
		// snapshot, everything after it goes too.
		var l raft.Log
		if err := n.store.GetLog(newest.Index, &l); err != nil {
			return err
		}
		drop = l.Term != newest.Term
	}
	if first > newest.Index+1 {
		return &CorruptError{n.cfg.Dir,
			fmt.Errorf("the newest snapshot ends at %d and the log begins at %d", newest.Index, first)}
	}
	if drop {
		n.log.Warn("drop raft log that a snapshot has replaced", "first", first, "last", last, "snapshot", newest.Index)
		return n.store.DeleteRange(first, last)
	}
	return nil
}

// replay applies the entries that were known to be committed when the node stopped, so
// that its state can be read before a leader is found. (raft's own RestoreCommittedLogs
// loses the membership entries among them.)
func (n *Raft) replay(newest *raft.SnapshotMeta) error {
	n.fsm.mu.Lock()
	defer n.fsm.mu.Unlock()
	next := n.fsm.applied.Load() + 1
	if newest != nil {
		next = max(next, newest.Index+1)
	}
	for i := next; i <= n.store.disk.committed(); i++ {
		var l raft.Log
		if err := n.store.disk.GetLog(i, &l); errors.Is(err, raft.ErrLogNotFound) {
			return nil // a leader's snapshot was replacing the log
		} else if err != nil {
			return fmt.Errorf("replay entry %d: %w", i, err)
		}
		switch l.Type {
		case raft.LogCommand:
			n.fsm.applyLocked(i, l.Data)
		case raft.LogConfiguration:
			n.fsm.StoreConfiguration(i, raft.DecodeConfiguration(l.Data))
		}
	}
	return nil
}

// fail stops the node for good. It returns at once, because it is called from raft's own
// goroutines with their locks held.
func (n *Raft) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fatal != nil {
		return
	}
	n.fatal = err
	if !n.started {
		return // Open returns the error, or Close is at work
	}
	n.joined.Go(func() {
		n.log.Error("stop taking part in consensus", "err", err)
		n.quiet()
		n.cfg.OnFatal(err)
	})
}

// quiet silences the node: no more heartbeats, so that the others elect a leader. It does
// not wait for raft, whose main loop may hang on the disk.
func (n *Raft) quiet() {
	n.doneOnce.Do(func() {
		n.trans.(raft.WithClose).Close()
		n.stopping = n.r.Shutdown()
		close(n.done)
	})
	n.publish()
}

// Close hands the leadership over if there is another voter, stops the node and waits for
// its goroutines. It waits at most StoreDeadline for raft and as long again for a disk
// that hangs; the folder then stays locked until that disk answers, and is not touched
// afterwards.
func (n *Raft) Close() error {
	n.closeOnce.Do(func() {
		n.handOver()
		n.shutdown()
	})
	return nil
}

func (n *Raft) shutdown() {
	n.mu.Lock()
	n.started = false // no goroutine is added from here on
	n.mu.Unlock()
	n.quiet()
	ended := make(chan struct{})
	go func() { // ends with raft, which may be waiting for a disk
		defer close(ended)
		_ = n.stopping.Error()
	}()
	select {
	case <-ended:
	case <-time.After(n.cfg.StoreDeadline):
		n.log.Error("raft has not ended", "dir", n.cfg.Dir)
	}
	switch done, err := n.store.close(n.cfg.StoreDeadline); {
	case err != nil:
		n.log.Error("close raft log", "dir", n.cfg.Dir, "err", err)
	case !done:
		n.log.Error("leave raft log open until its disk answers", "dir", n.cfg.Dir)
	}
	n.joined.Wait()
}

// handOver tries to make another voter the leader, for at most HandOver.
func (n *Raft) handOver() {
	if _, leads := n.leading(); !leads || n.cfg.HandOver < 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), n.cfg.HandOver)
	defer cancel()
	for _, s := range n.Members().Servers {
		if s.Role != Voter || s.ID == n.cfg.ID || s.Silent > 0 {
			continue
		}
		if err := n.transferTo(ctx, s.ID); err == nil {
			return
		} else {
			n.log.Warn("hand leadership over", "node", s.ID, "err", err)
		}
	}
}

// Done is closed when the node has stopped taking part, by Close or a fault.
func (n *Raft) Done() <-chan struct{} { return n.done }

// await waits for a future until the end of ctx or of the node.
func (n *Raft) await(ctx context.Context, wait func() error) error {
	got := make(chan error, 1)
	// It ends with the future, at the latest with raft; but what is in the state
	// machine's queue when raft ends is never answered (hashicorp/raft issue 498), and
	// then a goroutine of this stopped node is left.
	go func() { got <- wait() }()
	select {
	case err := <-got:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-n.done:
		// The real answer may be about to come: what we wait for may be what stopped the
		// node.
		select {
		case err := <-got:
			return err
		case <-ctx.Done():
		case <-time.After(lastWord):
		}
		return ErrStopped
	}
}

// Fault is why the node has stopped taking part; nil while it takes part, and after a
// Close without a fault.
func (n *Raft) Fault() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.fatal
}

// Apply records one entry and returns the result of this node's machine. It may block
// until ctx ends; the errors above say what is known then.
func (n *Raft) Apply(ctx context.Context, entry []byte) (any, error) {
	return n.apply(ctx, entry, func() error { return nil })
}

// ApplyIn is Apply for a decision that a leader made with its knowledge in term: if it
// has lost that leadership, even if it leads again by now, nothing is recorded
// (ErrNotLeader).
func (n *Raft) ApplyIn(ctx context.Context, term uint64, entry []byte) (any, error) {
	return n.apply(ctx, entry, func() error {
		if now, leads := n.leading(); !leads || now != term {
			return raft.ErrNotLeader
		}
		return nil
	})
}

func (n *Raft) apply(ctx context.Context, entry []byte, may func() error) (any, error) {
	if len(entry) > MaxEntry {
		return nil, fmt.Errorf("record entry of %d bytes: %w (at most %d)", len(entry), ErrTooLarge, MaxEntry)
	}
	if err := n.mayLead(); err != nil {
		return nil, fmt.Errorf("record entry: %w", err)
	}
	timeout := n.cfg.ApplyTimeout
	if d, ok := ctx.Deadline(); ok {
		timeout = min(timeout, max(time.Until(d), time.Millisecond))
	}
	var res any
	err := n.await(ctx, func() error {
		if err := may(); err != nil {
			return err
		}
		f := n.r.Apply(entry, timeout)
		if err := f.Error(); err != nil {
			return err
		}
		res = f.Response()
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("record entry: %w", n.explain(err))
	}
	if fe, ok := res.(*FatalError); ok {
		return nil, fmt.Errorf("record entry: %w", fe)
	}
	return res, nil
}

// mayLead refuses early what raft would refuse, with a better answer.
func (n *Raft) mayLead() error {
	switch n.State() {
	case Stopped:
		return n.stopped()
	case Leader:
		return nil
	}
	leader, _ := n.Leader()
	return &NotLeaderError{leader}
}

func (n *Raft) stopped() error {
	if fault := n.Fault(); fault != nil {
		return fmt.Errorf("%w: %w", ErrStopped, fault)
	}
	return ErrStopped
}

// explain translates raft's errors. Unless it is certain that nothing was recorded, the
// error is ErrUnknownOutcome: a failed write may have reached the disk, and the next
// leader may commit an entry that this one lost.
func (n *Raft) explain(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader):
		leader, _ := n.Leader()
		return &NotLeaderError{leader}
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return ErrBusy
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return fmt.Errorf("%w: leadership is moving", ErrNoLeader)
	}
	return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
}

// Snapshot writes a snapshot now, if there is anything new to write.
func (n *Raft) Snapshot(ctx context.Context) error {
	err := n.await(ctx, func() error { return n.r.Snapshot().Error() })
	if err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return fmt.Errorf("write raft snapshot: %w", err)
	}
	return nil
}

// Turn returns when raft's own loop has taken a turn, or ctx has ended.
func (n *Raft) Turn(ctx context.Context) {
	// A working loop answers this, even if with an error.
	_ = n.await(ctx, func() error { return n.r.VerifyLeader().Error() })
}

// Touch writes a byte durably to the folder's disk. A disk that hangs ends this node's
// part in raft, as a write of raft would, but an idle cluster makes no writes. A disk
// that returns an error has answered, and raft finds out when it writes.
func (n *Raft) Touch() {
	_ = n.store.do("write", n.store.limit, func() error {
		_ = tryDisk(n.cfg.Dir, 1)
		return nil
	})
}

// barrier commits an empty entry and waits until this node has applied it.
func (n *Raft) barrier(ctx context.Context) error {
	return n.await(ctx, func() error { return n.r.Barrier(n.cfg.ApplyTimeout).Error() })
}

// Verify returns nil if this node leads now and its machine has every entry that was
// acknowledged to anybody: a read after it is linearizable.
//
// It commits an empty entry instead of asking raft's VerifyLeader, which counts any
// answer that comes in, also one that a follower sent before it elected somebody else: a
// leader that was stopped for half a minute finds such answers in its sockets and would
// be confirmed by them. No old answer can acknowledge a new entry.
func (n *Raft) Verify(ctx context.Context) error {
	if err := n.mayLead(); err != nil {
		return fmt.Errorf("verify leadership: %w", err)
	}
	err := n.barrier(ctx)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("verify leadership: %w", err)
	case errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrNotLeader):
		leader, _ := n.Leader()
		return fmt.Errorf("verify leadership: %w", &NotLeaderError{leader})
	case errors.Is(err, ErrStopped):
		return fmt.Errorf("verify leadership: %w", n.stopped())
	}
	return fmt.Errorf("verify leadership: %w", n.explain(err))
}
