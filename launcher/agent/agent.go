// Package agent is the node's side of a launch. It decides which orders are stale, whether
// this node can run its part of a plan, and what the ledger says of each attempt. It drives
// the shims, finds them again after a restart, and reads the output that they keep.
//
// It must not decide when an attempt starts or ends, and must not end a rank because
// somebody fell silent: ranks end by an order alone, or by the shim where a job has a
// lease. It knows nothing of networks, leaders or records.
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
	"github.com/sparkrun/sparkrun/launcher/scope"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// Config of an Agent. Required are all fields except StateDir, StageDir, CompileDir, Files, Policy,
// Containers, Secrets, DropCache, Filter, AskHead, Servers, Keep, MemoryFloor,
// ServicesFirst, GPUHeld and DieWithUs.
type Config struct {
	Node launcher.NodeID
	Boot string // this boot's id; orders meant for another are refused
	// RunDir holds the fence and a folder for each attempt: it must not survive a
	// reboot (/run/sparkrun). Absolute.
	RunDir string
	// LogDir keeps the ranks' output: JOB/GENERATION/rank-N.out and .err.
	// Absolute.
	LogDir string
	// StateDir survives reboots. It notes the users for whom we turned lingering on. Empty:
	// logind is left alone, and may remove the shared memory of a user who logs out while
	// their ranks run.
	StateDir string
	// StageDir has a folder for each job that brings files (see Files); it is removed with
	// the job's output. Absolute; empty: jobs cannot bring files.
	StageDir string
	// CompileDir keeps what ranks compile (launcher.CompileCache): USER/MODEL/IMAGE. Absolute;
	// empty: a job that refers to it is refused.
	CompileDir string
	// Files lays out the files that jobs bring; nil: jobs cannot bring files.
	Files Files
	// DropCache frees the page cache before a job that takes GPUs starts, if nothing else
	// runs here; nil: the cache is left alone.
	DropCache func() error
	// Policy refuses what this node's administrator does not allow; nil: there are no
	// rules.
	Policy Policy
	// Secrets opens the secrets of jobs; nil: jobs cannot have secrets.
	Secrets interface {
		Open(launcher.Spec, launcher.SealedSecret) ([]byte, error)
	}
	// Shim is the shim's program (cmd/sparkrun-shim); nil: this program is.
	Shim []byte
	// Containers says how ranks are run in containers; nil: this node starts none.
	Containers *container.Config
	// Filter sets this node's packet filter to exactly what these attempts want; its error
	// says what is not protected. It is called whenever an attempt comes or goes, and in
	// Open. nil: there is no filter.
	Filter func(map[launcher.Key]launcher.Filter) error
	// Servers are those whose metrics and logs are read. None: requests and tokens of
	// services are not counted, and a failed process of a server is not recognised in its
	// log.
	Servers []launcher.Server
	// Keep bounds the output of jobs that have ended.
	Keep logs.Keep
	// Fabric gives the variables that this node's hardware calls for at this moment. It is
	// called once for each attempt, in prepare, and once more if the agent was restarted
	// between prepare and start.
	Fabric func(launcher.Assignment) ([]launcher.Setting, error)
	// AskHead sends a barrier of this node's MPI ranks to rank 0's node (its
	// Agent.Barrier), and returns what the ranks of all nodes have put. nil: jobs have one
	// node.
	AskHead func(context.Context, launcher.Assignment, mpi.Barrier) ([]launcher.Pair, error)
	// MemoryFloor, in bytes of MemAvailable. Below it prepare refuses, and the largest
	// attempt is ended. 0: there is no floor.
	MemoryFloor int64
	// ServicesFirst has a service ended before a larger job that is none and was there first.
	ServicesFirst bool
	// GPUHeld is what each process holds of the machine's memory by the GPU, in bytes by PID, as it was told last: it
	// must not wait. nil, or a nil map: that is not known, or too old. Own: the GPU has memory of its own.
	GPUHeld func() (held map[int]int64, own bool)
	// DieWithUs ends the ranks when this process dies or closes the Agent: the standalone
	// mode.
	DieWithUs bool
	Logger    *slog.Logger
}

// Files lays out the files that jobs bring.
type Files interface {
	// Bring lays out a job's files in StageDir/JOB/tree, owned by uid and gid, and
	// fetches those that are missing here. If that was done before, it does nothing.
	// Called in prepare.
	Bring(ctx context.Context, as launcher.Assignment, uid, gid uint32) error
	// UserOf names the user whose job has brought files here; empty: there are none. It is
	// called for jobs without ranks here.
	UserOf(launcher.JobID) (user string)
}

// Policy is the administrator's rules. They are asked in prepare.
type Policy interface {
	Run(context.Context, launcher.Spec) error
	// Contain is called before a registry is asked.
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
	shims      shim.Program
	sealed     *os.File  // their program, if it is in memory
	booted     time.Time // when this agent began, if it is the first one since the boot; else zero

	watchers logs.Watchers

	ports  atomic.Uint32 // where the next search for a port starts
	linger *linger

	guarded atomic.Int64 // attempts that the memory guard has ended

	filterMu sync.Mutex
	filters  map[launcher.Key]launcher.Filter // of attempts that have not ended
	addrs    map[launcher.NodeID][]netip.Addr // of members, as last told

	mu       sync.Mutex
	fence    launcher.Fence
	attempts map[launcher.Key]*attempt
	feeds    map[*feed]struct{}
	users    map[launcher.Key]login.User // the user whom each attempt's ranks run as
	// claims are the ports with a fixed number that each attempt has, as far as it was
	// prepared by this agent process.
	claims map[launcher.Key][]launcher.Ports

	compiling sync.Mutex // makes or removes folders of compiled code; before mu

	pruning bool      // pruneLogs is to come
	pruned  time.Time // when it last began

	looking   map[string]int // lookups of a user's files that are under way, by user
	heldPorts map[string]int // named ports that are held, by user
}

// Open reads the fence and finds the shims of a previous agent process. Only one Agent at a
// time may be open for a RunDir; the caller sees to that.
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
		attempts: map[launcher.Key]*attempt{}, feeds: map[*feed]struct{}{}, users: map[launcher.Key]login.User{},
		filters: map[launcher.Key]launcher.Filter{}, looking: map[string]int{}, heldPorts: map[string]int{},
		claims: map[launcher.Key][]launcher.Ports{}}
	a.containers = container.NewHost(a.hostConfig())
	a.linger = newLinger("")
	if cfg.StateDir != "" {
		a.linger = newLinger(filepath.Join(cfg.StateDir, "linger"))
	}
	a.ports.Store(rand.Uint32())
	a.shims.Exe = shim.SelfExe
	if cfg.Shim != nil {
		if f, path, err := shim.Seal(ctx, cfg.Shim); err != nil {
			cfg.Logger.Warn("shims are started from the agent's own program, which takes longer", "error", err)
		} else {
			a.sealed, a.shims.Exe = f, path
		}
	}
	if scope.Managed() {
		a.shims.Scope = func(ctx context.Context, name string, pid int) {
			if err := scope.Enter(ctx, name, pid); err != nil {
				cfg.Logger.Warn("no scope: the ranks' cgroup is made beside systemd's", "error", err)
			}
		}
	}
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
		return nil, fmt.Errorf("open agent: %w: if the node has been rebooted since, remove the file", err)
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

// Close stops driving the shims. They and their ranks go on, except with DieWithUs.
func (a *Agent) Close() {
	a.stop()
	a.loops.Wait()
	a.watchers.Close()
	if a.sealed != nil {
		a.sealed.Close()
	}
}

func (a *Agent) jobsDir() string   { return filepath.Join(a.cfg.RunDir, "jobs") }
func (a *Agent) fencePath() string { return filepath.Join(a.cfg.RunDir, "fence.json") }

func (a *Agent) attemptDir(k launcher.Key) string { return filepath.Join(a.jobsDir(), k.String()) }

func (a *Agent) logDir(k launcher.Key) string {
	return filepath.Join(a.cfg.LogDir, string(k.Job), fmt.Sprint(k.Generation))
}

// Raise admits a leader: its fence becomes the lowest that is obeyed. It returns
// ErrStaleFence if a higher one was raised before. The new fence is on disk before Raise
// returns, so that it survives a restart.
func (a *Agent) Raise(f launcher.Fence) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	next, err := a.fence.Raise(f)
	if err == nil {
		a.containers.SweepSoon() // there is a leader now, who can be asked
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

// Ledger lists what this node knows of all attempts, except those that were forgotten.
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

// Order takes a leader's order and never blocks. Stale ones are refused: with an error
// where the fence is too low, with a Refused event where a Prepare does not fit this boot
// or generation.
func (a *Agent) Order(o launcher.Order) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.fence.Admit(o.Fence); err != nil {
		return err
	}
	a.take(o)
	return nil
}

// take passes an order to its attempt. a.mu is held.
func (a *Agent) take(o launcher.Order) {
	switch {
	case o.Prepare != nil:
		a.prepare(o)
	case o.Start != nil:
		a.pass(o.Start.Key, o)
	case o.End != nil:
		if a.attempts[o.End.Key] == nil {
			// A tombstone: a late Prepare must not start anything.
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
			a.containers.SweepSoon() // its end is recorded, and containers of it may be left here
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
	a.pass(as.Key, o) // if it was prepared before, the attempt answers again
}

// admit refuses what must not even be prepared here. a.mu is held.
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
			// Two generations of a job must never run at once. The leader sees to that, and
			// the node checks it again.
			return fmt.Errorf("attempt %d of job %s has not ended on this node: end it first", k.Generation, k.Job)
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

// remove takes an attempt out of the ledger, at the end of its loop. Orders that were too
// late for the loop are handled as those of an unknown attempt.
func (a *Agent) remove(t *attempt) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.attempts, t.key)
	delete(a.users, t.key)
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

// writeJSON is for files in /run, which need not survive a power cut: they belong to this
// boot.
func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return durable.Swap(path, b, 0o600)
}
