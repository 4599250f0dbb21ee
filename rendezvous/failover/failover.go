// Package failover is a node's part in who leads: its vote, the epochs, and the
// record's only writer.
//
// It decides which epoch this node is in, and how it enters another (a take-over, giving
// way, a restore); whether its copy of the record is the one that it voted with; which
// members may have taken over; in which term entries are recorded, and when this side
// stops recording. Each of these survives a crash at any step: the change that is under
// way is written in one file.
//
// It must not start or end ranks, must not decide what is recorded, and must not treat a
// silent member as dead: a person says which machine is dead.
package failover

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/consensus"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/gossip"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// ErrReopen ends a run that is to begin again at once, in another epoch or with another
// copy of the record.
var ErrReopen = errors.New("the node opens again")

// Config of a node's Failover. All of it is needed.
type Config struct {
	// State is the folder for what survives a reboot, Run for what must not.
	State, Run string
	// Trust is the folder of the CA's key, if this node has it.
	Trust string
	Self  rendezvous.Self
	// Raise makes the node's agent refuse every leader below a fence.
	Raise  func(launcher.Fence) error
	Record *rendezvous.Record
	Dial   *dial.Dialer
	// Inventory is this machine's hardware, Present the members that gossip, Leads the
	// leader whose control stream this node has; empty for none.
	Inventory *rendezvous.Latest[envgen.Inventory]
	Present   *rendezvous.Latest[[]gossip.Peer]
	Leads     *rendezvous.Latest[launcher.NodeID]
	Logger    *slog.Logger
}

// Failover is one incarnation of a node's part in who leads. To enter another epoch it is
// opened again.
type Failover struct {
	cfg  Config
	log  *slog.Logger
	raft *consensus.Raft
	// epoch is the one of this incarnation.
	epoch    launcher.Epoch
	liveness *liveness
	conns    chan net.Conn // raft connections that others opened
	began    time.Time

	mu    sync.Mutex
	state state
	told  map[launcher.NodeID]uint64 // the incarnation of this state that each member was told
	blank atomic.Bool                // as state.Blank

	restoring sync.Mutex   // over the snapshot file that is being received
	stopping  atomic.Bool  // the agent is about to end
	promised  atomic.Int64 // this node promised to succeed the leader until then (Unix ns); 0: no promise

	leader  rendezvous.Latest[*Leader] // nil while this node does not lead
	leaving rendezvous.Latest[bool]    // see PassOn

	// A leader of a later epoch comes in on later. yielded is closed when this side
	// records nothing any more; recording orders that after the writes under way. reopen
	// is closed when another incarnation is to begin.
	later      chan wire.Hello
	yielded    chan struct{}
	recording  sync.RWMutex
	leads      atomic.Bool // the function of its leadership runs
	reopen     chan struct{}
	reopenOnce sync.Once
}

// Open reads the state that this node must not forget, finishes a change of epochs that
// was begun, and opens raft.
func Open(cfg Config) (_ *Failover, err error) {
	f := &Failover{
		cfg: cfg, log: cfg.Logger, conns: make(chan net.Conn), began: time.Now(), told: map[launcher.NodeID]uint64{},
		later: make(chan wire.Hello, 1), yielded: make(chan struct{}), reopen: make(chan struct{}),
	}
	if f.state, err = loadState(f.path(stateFile)); err != nil {
		return nil, err
	}
	f.epoch = f.state.epoch()
	// Leaders of earlier epochs are not obeyed any more, even if a reboot has removed the
	// fence.
	if err := cfg.Raise(launcher.Fence{Epoch: f.epoch}); err != nil && !errors.Is(err, launcher.ErrStaleFence) {
		return nil, err
	}
	if f.liveness, err = openLiveness(filepath.Join(cfg.Run, livenessFile)); err != nil {
		return nil, err
	}
	return f, f.openRaft()
}

func (f *Failover) path(name string) string { return filepath.Join(f.cfg.State, name) }

// openRaft bootstraps a founder's raft, once: a founder that loses its raft folder later
// must not begin a second cluster under the same ids.
func (f *Failover) openRaft() (err error) {
	cfg := consensus.Config{
		ID: string(f.cfg.Self.ID), Dir: f.path(raftFolder), Machine: machine{f.cfg.Record}, Bootstrap: f.state.Founder,
		Dialer: f.dialRaft, Accept: f.conns, Logger: f.log,
	}
	if err := f.settleEpoch(cfg); err != nil {
		return err
	}
	if err := f.beginIncarnation(cfg.Dir); err != nil {
		return err
	}
	f.raft, err = consensus.Open(cfg)
	if errors.Is(err, raft.ErrCantBootstrap) { // the agent died between the bootstrap and the note of it
		cfg.Bootstrap = false
		f.raft, err = consensus.Open(cfg)
	}
	if err != nil {
		return f.wayOut(err)
	}
	if _, last := f.raft.Last(); f.state.Founder || last == 0 { // no job can be in its record
		if err := f.liveness.settle(); err != nil {
			return err
		}
	}
	if !f.state.Founder {
		return nil
	}
	return f.change(func(s *state) { s.Founder = false })
}

// Close ends raft. Run must have returned.
func (f *Failover) Close() { f.raft.Close() }

// machine adapts the record to consensus.
type machine struct{ *rendezvous.Record }

func (m machine) Apply(index uint64, entry []byte) any {
	res := m.Record.Apply(index, entry)
	if unknown, ok := res.(rendezvous.UnknownKindError); ok {
		return &consensus.FatalError{Index: index, Err: unknown}
	}
	return res
}

// Calls are the procedures that this part answers.
func (f *Failover) Calls() []wire.Call {
	return []wire.Call{
		wire.Takeover.Serve(f.takeover), wire.Objection.Serve(f.objection), wire.Succeed.Serve(f.succeed),
		wire.RaftBring.Serve(f.raftBring), wire.RaftRestore.Serve(f.raftRestore),
		wire.ReadRaft.Serve(f.NodeRaft), wire.Seen.Serve(f.seen), wire.BeginAnew.Serve(f.beginAnew),
	}
}

// Raft tells who leads and votes. Entries go through a Recorder.
func (f *Failover) Raft() *consensus.Raft { return f.raft }

// Epoch is the one that this node is in; it changes only when the node opens again.
func (f *Failover) Epoch() launcher.Epoch { return f.epoch }

// Blank tells whether this node has lost its copy of the record and takes no part in raft
// until a leader takes it in anew.
func (f *Failover) Blank() bool { return f.blank.Load() }

// Run keeps this node's part in raft and calls lead for each of its leaderships. It
// returns ErrReopen when the node is to open again.
func (f *Failover) Run(ctx context.Context, lead func(ctx context.Context, term uint64) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return f.vote(ctx, lead) })
	g.Go(func() error { return f.yields(ctx) })
	g.Go(func() error { return f.exchangeAll(ctx) })
	g.Go(func() error { return f.settles(ctx) })
	g.Go(func() error {
		select {
		case <-f.reopen:
			return ErrReopen
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return g.Wait()
}

// reopenSoon begins another incarnation after a moment: the answer to the caller goes out first.
func (f *Failover) reopenSoon() {
	f.reopenOnce.Do(func() { time.AfterFunc(100*time.Millisecond, func() { close(f.reopen) }) })
}

// leadIn is one leadership of this node.
func (f *Failover) leadIn(ctx context.Context, term uint64, lead func(ctx context.Context, term uint64) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	select {
	case <-f.yielded: // to the leader of a later epoch
		<-ctx.Done()
		return ctx.Err()
	default:
	}
	f.leads.Store(true)
	defer f.leads.Store(false)
	if err := f.raiseEpoch(ctx); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return lead(ctx, term) })
	g.Go(func() error {
		select {
		case <-f.yielded:
			return ErrReopen
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return g.Wait()
}

// tryDiskEvery is the pause between two checks whether a disk takes writes again.
const tryDiskEvery = time.Second

// vote is this node's part in raft, and its leadership while it leads. A disk that hangs
// or is full ends only that part: ranks and their output go on, calls are answered, the
// next leader's orders are obeyed. Once the disk takes writes again the node opens again.
// A damaged file, or an entry that this version does not know, ends the agent.
func (f *Failover) vote(ctx context.Context, lead func(ctx context.Context, term uint64) error) error {
	err := f.raft.Run(ctx, func(ctx context.Context, term uint64) error { return f.leadIn(ctx, term, lead) })
	if _, disk := errors.AsType[*consensus.DiskError](err); !disk || ctx.Err() != nil {
		return f.wayOut(err)
	}
	f.log.Error("take no part in the vote until the disk takes writes", "error", err)
	for {
		select {
		case <-time.After(tryDiskEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
		tried := make(chan error, 1)
		go func() { tried <- consensus.TryDisk(f.path(raftFolder)) }() // ends when the disk answers
		select {
		case err := <-tried:
			if err == nil {
				f.log.Info("the disk takes writes again")
				return ErrReopen
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Turn returns once this part has shown that it works: its state can be locked, and
// raft's loop and the disk below raft answer.
func (f *Failover) Turn(ctx context.Context) {
	f.mu.Lock()
	_ = f.state
	f.mu.Unlock()
	f.raft.Touch()
	f.raft.Turn(ctx)
}

// NoVote says why this node does not vote although its agent runs; empty if it votes, or
// should not vote.
func (f *Failover) NoVote() string {
	if fault := f.raft.Fault(); fault != nil {
		return fault.Error()
	}
	return ""
}

// Leader is raft's leader, or for a node outside raft the leader whose control stream it
// has; empty for none.
func (f *Failover) Leader() launcher.NodeID {
	if id, _ := f.raft.Leader(); id != "" {
		return launcher.NodeID(id)
	}
	return f.cfg.Leads.Load()
}

// HasRecord tells whether the record is replicated to this node.
func (f *Failover) HasRecord() bool {
	for _, s := range f.raft.Members().Servers {
		if s.ID == string(f.cfg.Self.ID) {
			_, _, index := f.cfg.Record.Cluster()
			return index > 0
		}
	}
	return false
}

// SoleVoter tells whether this node is the only voter.
func (f *Failover) SoleVoter() bool {
	voters, self := 0, false
	for _, s := range f.raft.Members().Servers {
		if s.Role == consensus.Voter {
			voters++
			self = self || s.ID == string(f.cfg.Self.ID)
		}
	}
	return voters == 1 && self
}

// HasPart tells whether a member is a voter or a standby.
func (f *Failover) HasPart(id launcher.NodeID) bool {
	for _, s := range f.raft.Members().Servers {
		if s.ID == string(id) && s.Role != consensus.Outside {
			return true
		}
	}
	return false
}

// Roles are the members' parts in raft.
func (f *Failover) Roles() map[launcher.NodeID]string {
	out := map[launcher.NodeID]string{}
	for _, s := range f.raft.Members().Servers {
		out[launcher.NodeID(s.ID)] = s.Role.String()
	}
	return out
}

// Until polls every few milliseconds until ok or the end of ctx, because raft does not
// report all of its changes.
func Until(ctx context.Context, ok func() bool) bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// present are the members that gossip sees at the moment.
func (f *Failover) present() map[launcher.NodeID]bool {
	alive := map[launcher.NodeID]bool{}
	for _, p := range f.cfg.Present.Load() {
		if p.Alive {
			alive[launcher.NodeID(p.ID)] = true
		}
	}
	return alive
}
