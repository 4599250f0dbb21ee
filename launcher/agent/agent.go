// Package agent is the node's side of a launch. It decides which orders are
// stale, whether this node can run its part of a plan, and what the ledger says
// of each attempt; it drives the shims, finds them again after a restart, and reads
// the output that they keep.
//
// It must not decide when an attempt starts or ends, and must not end a rank
// because somebody fell silent: only an order ends ranks, or the shim where a job
// has a lease. It knows nothing of networks, leaders or records.
package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/diagnose"
	"github.com/sparkrun/sparkrun/launcher/durable"
	"github.com/sparkrun/sparkrun/launcher/login"
	"github.com/sparkrun/sparkrun/launcher/logs"
	"github.com/sparkrun/sparkrun/launcher/mpi"
)

// Config of an Agent. All of it is required but StateDir, StageDir, Files,
// Policy, Containers, Secrets, DropCache, Filter, AskHead, Servers, Keep, MemoryFloor and DieWithUs.
type Config struct {
	Node launcher.NodeID
	Boot string // this boot's id; orders meant for another are refused
	// RunDir holds the fence and a folder for each attempt: it must not survive a
	// reboot (/run/sparkrun). Absolute.
	RunDir string
	// LogDir keeps the ranks' output: JOB/GENERATION/rank-N.out and .err.
	// Absolute.
	LogDir string
	// StateDir outlives reboots; it notes which users' lingering is ours to end.
	// Empty: logind is left alone, and may remove the shared memory of a user who
	// logs out while their ranks run.
	StateDir string
	// StageDir holds what jobs have brought along (see Files), a folder for each,
	// which goes with the job's output. Absolute; empty: jobs can bring nothing.
	StageDir string
	// Files are what jobs bring along; nil: they can bring nothing.
	Files Files
	// DropCache frees the page cache before a job that takes GPUs starts where
	// nothing else runs; nil: it is left alone.
	DropCache func() error
	// Policy refuses what this node's administrator will not have; nil: there are no rules.
	Policy Policy
	// Secrets opens those of jobs; nil: they can have none.
	Secrets interface {
		Open(launcher.Spec, launcher.SealedSecret) ([]byte, error)
	}
	// Containers has ranks run in containers where a job wants that; nil: none can.
	Containers *container.Config
	// Filter makes this node's packet filter what these attempts want, and nothing
	// else; its error says what is not guarded. It is asked whenever an attempt comes
	// or goes, and in Open. nil: there is none.
	Filter func(map[launcher.Key]launcher.Filter) error
	// Servers are those whose metrics and logs are read; none: no service's requests and tokens are
	// known, and a failed process of a server is not told from the others.
	Servers []launcher.Server
	// Keep bounds the output of jobs that have ended.
	Keep logs.Keep
	// Fabric gives the variables this node's hardware calls for, at this moment.
	// It is asked once an attempt, in prepare, and once more if the agent was
	// restarted between prepare and start.
	Fabric func(launcher.Assignment) ([]launcher.Setting, error)
	// AskHead brings one barrier of this node's MPI ranks to rank 0's node (its
	// Agent.Barrier), and gives what the ranks of all nodes have put. nil: jobs have one node.
	AskHead func(context.Context, launcher.Assignment, mpi.Barrier) ([]launcher.Pair, error)
	// MemoryFloor, in bytes of MemAvailable: below it prepare refuses, and the
	// largest attempt is ended. 0: none.
	MemoryFloor int64
	// DieWithUs ends the ranks when this process dies, or closes the Agent: the
	// standalone mode.
	DieWithUs bool
	Logger    *slog.Logger
}

// Files are what jobs have brought along.
type Files interface {
	// Bring lays out what a job brings along, as uid and gid's own, in the
	// folder StageDir/JOB/tree, and fetches what is missing here. Done before, it
	// does nothing. Asked in prepare.
	Bring(ctx context.Context, as launcher.Assignment, uid, gid uint32) error
	// UserOf tells whose job has brought files here; empty: nobody's. It is asked of jobs without ranks here.
	UserOf(launcher.JobID) (user string)
}

// Policy is the administrator's. It is asked in prepare.
type Policy interface {
	Run(context.Context, launcher.Spec) error
	// Contain is asked before a registry is.
	Contain(context.Context, container.Wish) error
}

// Agent holds what this node knows of its attempts. All methods are safe for use
// from several goroutines.
type Agent struct {
	cfg Config
	ctx context.Context

	servers *diagnose.Servers

	stop  context.CancelFunc
	loops sync.WaitGroup // one per attempt

	containers *container.Host
	booted     time.Time // when this incarnation began, if it is the first since the boot

	ports  atomic.Uint32 // where the next search for a port begins
	linger *linger

	filterMu sync.Mutex
	filters  map[launcher.Key]launcher.Filter // of attempts that have not ended
	addrs    map[launcher.NodeID][]netip.Addr // of members, as last told

	mu       sync.Mutex
	fence    launcher.Fence
	attempts map[launcher.Key]*attempt
	feeds    map[*feed]struct{}
	lent     map[launcher.Key]login.User // whom each attempt's ranks run as
	// claims are ports of a fixed number by the attempt that is prepared for them, in this incarnation.
	claims map[launcher.Key][]launcher.Ports

	looking   map[string]int // who looks for a user's files now, by user
	lentPorts map[string]int // named ports that are held, by user
}

// Open reads the fence and finds the shims of a previous incarnation again. One Agent
// at a time may be open for a RunDir: the caller sees to that.
func Open(cfg Config) (*Agent, error) {
	if cfg.Keep.Jobs == 0 {
		cfg.Keep.Jobs = logs.DefaultJobs
	}
	if !filepath.IsAbs(cfg.RunDir) || !filepath.IsAbs(cfg.LogDir) || cfg.Fabric == nil || cfg.Logger == nil {
		return nil, fmt.Errorf("open agent: run folder %q, log folder %q: want absolute paths, a Fabric and a Logger",
			cfg.RunDir, cfg.LogDir)
	}
	ctx, stop := context.WithCancel(context.Background())
	a := &Agent{cfg: cfg, ctx: ctx, servers: diagnose.NewServers(cfg.Servers), stop: stop,
		attempts: map[launcher.Key]*attempt{}, feeds: map[*feed]struct{}{}, lent: map[launcher.Key]login.User{},
		filters: map[launcher.Key]launcher.Filter{}, looking: map[string]int{}, lentPorts: map[string]int{},
		claims: map[launcher.Key][]launcher.Ports{}}
	a.containers = container.NewHost(a.hostConfig())
	a.linger = newLinger("")
	if cfg.StateDir != "" {
		a.linger = newLinger(filepath.Join(cfg.StateDir, "linger"))
	}
	a.ports.Store(rand.Uint32())
	if err := os.MkdirAll(a.jobsDir(), 0o700); err != nil {
		return nil, fmt.Errorf("open agent: %w", err)
	}
	if err := os.MkdirAll(cfg.LogDir, 0o750); err != nil {
		return nil, fmt.Errorf("open agent: %w", err)
	}
	switch err := readJSON(a.fencePath(), &a.fence); {
	case errors.Is(err, fs.ErrNotExist):
		a.booted = time.Now()
	case err != nil:
		return nil, fmt.Errorf("open agent: %w: remove the file if the node has been rebooted since", err)
	}
	if err := a.reattachAll(); err != nil {
		return nil, fmt.Errorf("open agent: %w", err)
	}
	a.sweepSecrets()
	a.filterMu.Lock()
	a.applyFilters()
	a.filterMu.Unlock()
	a.settleLinger(ctx)
	if cfg.MemoryFloor > 0 {
		a.loops.Go(func() { a.guard(ctx) })
	}
	return a, nil
}

// Close stops driving; the shims and their ranks go on, but with DieWithUs.
func (a *Agent) Close() {
	a.stop()
	a.loops.Wait()
}

func (a *Agent) jobsDir() string   { return filepath.Join(a.cfg.RunDir, "jobs") }
func (a *Agent) fencePath() string { return filepath.Join(a.cfg.RunDir, "fence.json") }

func (a *Agent) attemptDir(k launcher.Key) string { return filepath.Join(a.jobsDir(), k.String()) }

func (a *Agent) logDir(k launcher.Key) string {
	return filepath.Join(a.cfg.LogDir, string(k.Job), fmt.Sprint(k.Generation))
}

// Raise lets a leader in: its fence becomes the lowest that is obeyed. It
// returns ErrStaleFence when a higher one has been here. The new fence is on
// disk before Raise returns, so that a restart does not forget it.
func (a *Agent) Raise(f launcher.Fence) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	next, err := a.fence.Raise(f)
	if err == nil {
		a.containers.SweepSoon() // there is somebody who can be asked
	}
	if err != nil || next == a.fence {
		return err
	}
	if err := writeJSON(a.fencePath(), f); err != nil {
		return fmt.Errorf("raise fence: %w", err)
	}
	a.fence = f
	return nil
}

// Ledger lists what this node knows of every attempt that is not forgotten.
func (a *Agent) Ledger() []launcher.LedgerEntry {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []launcher.LedgerEntry
	for _, t := range a.attempts {
		out = append(out, t.snapshot())
	}
	slices.SortStableFunc(out, func(x, y launcher.LedgerEntry) int { return strings.Compare(x.String(), y.String()) })
	return out
}

// Order takes a leader's order and never blocks. Stale ones are refused: with
// an error where the fence is too low, with a Refused event where it is a
// Prepare that does not fit this boot or generation.
func (a *Agent) Order(o launcher.Order) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.fence.Admit(o.Fence); err != nil {
		return err
	}
	a.take(o)
	return nil
}

// take hands an order to its attempt. a.mu is held.
func (a *Agent) take(o launcher.Order) {
	switch {
	case o.Prepare != nil:
		a.prepare(o)
	case o.Start != nil:
		a.pass(o.Start.Key, o)
	case o.End != nil:
		if a.attempts[o.End.Key] == nil {
			// A tombstone: a Prepare that comes late must not start anything.
			a.add(newAttempt(a, o.End.Key, nil))
		}
		a.pass(o.End.Key, o)
	case o.Probe != nil:
		a.pass(o.Probe.Key, o)
	case o.Again != nil:
		a.pass(o.Again.Key, o)
	case o.Forget != nil:
		a.pass(*o.Forget, o)
		if a.attempts[*o.Forget] == nil {
			a.containers.SweepSoon() // its end is recorded, and something of it may be here
		}
	}
}

func (a *Agent) prepare(o launcher.Order) {
	as := o.Prepare
	t := a.attempts[as.Key]
	if err := a.admit(*as, t == nil); err != nil {
		a.emit(launcher.Event{Key: as.Key, Kind: launcher.Refused, Text: err.Error()})
		return
	}
	if t == nil {
		a.add(newAttempt(a, as.Key, as))
	}
	a.pass(as.Key, o) // asked again, an attempt repeats what it has come to
}

// admit refuses what this node must not even prepare. a.mu is held.
func (a *Agent) admit(as launcher.Assignment, isNew bool) error {
	if err := validate(as); err != nil {
		return err
	}
	if as.Boot != a.cfg.Boot {
		return launcher.ErrOtherBoot
	}
	for k, t := range a.attempts {
		switch {
		case !isNew || k.Job != as.Job:
		case k.Generation > as.Generation:
			return launcher.ErrStaleGeneration
		case t.snapshot().Phase != launcher.PhaseEnded:
			// Two generations of a job must never run at once. The leader knows;
			// a node that relies on it alone would be the weaker half.
			return fmt.Errorf("generation %d of job %s has not ended on this node: end it first", k.Generation, k.Job)
		}
	}
	return nil
}

func (a *Agent) pass(k launcher.Key, o launcher.Order) {
	if t := a.attempts[k]; t != nil {
		t.post(o)
	}
}

// add starts an attempt's loop. a.mu is held.
func (a *Agent) add(t *attempt) {
	a.attempts[t.key] = t
	a.loops.Add(1)
	go func() {
		defer a.loops.Done()
		t.run(a.ctx)
	}()
}

// remove takes an attempt out of the ledger, at the end of its loop. Orders that
// came too late for the loop are taken as those for an attempt nobody knows.
func (a *Agent) remove(t *attempt) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.attempts, t.key)
	delete(a.lent, t.key)
	delete(a.claims, t.key)
	if a.ctx.Err() != nil {
		return
	}
	for _, o := range t.takeOrders() {
		a.take(o)
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

// writeJSON is for files in /run: what a power cut loses was of a boot that is over.
func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return durable.Swap(path, b, 0o600)
}
