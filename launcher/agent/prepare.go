package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/login"
	"github.com/sparkrun/sparkrun/launcher/preflight"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// spawnWait is how long a shim may take to come up: milliseconds, except on a machine that
// swaps.
const spawnWait = 30 * time.Second

// stepWait is how long a shim waits for the first of its ranks if the steps before are on
// other nodes: as long as these take. Before that comes an End, or the leader's sweep.
const stepWait = 24 * time.Hour

// validate refuses an assignment that no plan could hold. It comes from another node; its
// ids become names of folders, its numbers sizes.
func validate(as launcher.Assignment) error {
	if err := as.Spec.Validate(); err != nil {
		return err
	}
	switch {
	case as.Job != as.Spec.ID:
		return fmt.Errorf("assignment of job %s: %w: its spec is of job %s", as.Job, launcher.ErrInvalid, as.Spec.ID)
	case strings.ContainsAny(string(as.Node), "/\x00"):
		return fmt.Errorf("assignment of job %s: %w: node id %q", as.Job, launcher.ErrInvalid, as.Node)
	case as.Generation < 1:
		return fmt.Errorf("assignment of job %s: %w: generation 0", as.Job, launcher.ErrInvalid)
	case as.Ranks < 1 || as.Ranks > launcher.MaxRanksPerNode || as.FirstRank < 0 || as.World-as.FirstRank < as.Ranks:
		return fmt.Errorf("assignment of job %s: %w: %d ranks from %d in a world of %d", as.Job,
			launcher.ErrInvalid, as.Ranks, as.FirstRank, as.World)
	case as.Spec.Stepped() && (as.NodeRank < 0 || as.NodeRank >= as.NodeCount || as.Spec.RanksOn(as.NodeRank) != as.Ranks):
		return fmt.Errorf("assignment of job %s: %w: %d ranks on node %d of %d, whose stages have %d", as.Job,
			launcher.ErrInvalid, as.Ranks, as.NodeRank, as.NodeCount, as.Spec.RanksOn(as.NodeRank))
	}
	return nil
}

// errAskMPI is a question to the user, in a dry run.
var errAskMPI = errors.New("which MPI the program is for is not known: say --mpi mpich or --mpi openmpi")

// ready does everything that can fail before a rank is started, and leaves a shim that
// waits for the start. It is the only part of a launch that may take long: a path on a hung
// network disk blocks here and nowhere else.
func (a *Agent) ready(ctx context.Context, as launcher.Assignment, dir string) (r result) {
	if m := as.Spec.MainStage().MPI; m != nil && m.Family == launcher.AskMPI {
		r.err = errAskMPI
		return r
	}
	a.does(as.Key, "asks its policy whether the job may run there", true)
	if r.err = a.allow(ctx, as); r.err != nil {
		return r
	}
	a.does(as.Key, "fetches and lays out the files of --stage", false)
	if r.err = a.bring(ctx, as); r.err != nil {
		return r
	}
	a.does(as.Key, "asks its container engine for the image", true)
	if r.err = a.bringImage(ctx, as); r.err != nil {
		return r
	}
	a.does(as.Key, "looks whether the job's folders, files and programs are there", true)
	if r.plan, r.err = a.check(ctx, a.atStage(as)); r.err != nil {
		return r
	}
	if r.plan.container.Unpulled() {
		r.err = fmt.Errorf("image %s was there a moment ago, and is not on this node any more",
			as.Spec.MainStage().Container.Image)
		return r
	}
	if r.err = context.Cause(ctx); r.err != nil {
		return r // ended while a disk hung: the folder is no longer ours
	}
	a.does(as.Key, "lays out what its ranks need", true)
	a.lingerFor(ctx, as.Key, r.plan.who)
	if r.err = a.holdPorts(as, &r); r.err != nil {
		return r
	}
	a.dropCache(as)
	if r.err = a.laySecrets(as, r.plan.who); r.err == nil {
		r.err = a.layOut(as, dir, r.at, r.plan)
	}
	if r.err == nil {
		// This must not be interrupted: a shim that is killed while it comes up leaves its
		// cgroup; one that is up can be ended.
		up, cancel := context.WithTimeout(context.WithoutCancel(ctx), spawnWait)
		defer cancel()
		if r.shim, r.err = shim.Spawn(up, a.shims, dir, r.plan.cfg); r.err == nil {
			r.warning = strings.Join(slices.Concat(r.plan.warnings, a.installFilter(up, as, dir, r.shim, r.at)), "; ")
		}
	}
	if r.err != nil {
		r.err = fmt.Errorf("prepare: %w", r.err)
	}
	return r
}

// bringImage readies the node's engine, the job's image, and the folders that its
// containers mount.
func (a *Agent) bringImage(ctx context.Context, as launcher.Assignment) error {
	if as.Spec.MainStage().Container == nil {
		return nil
	}
	tell := func(text string) {
		a.does(as.Key, text, false)
		a.emitPreparing(as.Key, text)
	}
	a.containers.AwaitEngine(ctx, a.booted, tell)
	if err := a.containers.BringImage(ctx, as, tell); err != nil {
		return err
	}
	return container.MakeMounts(ctx, as)
}

// layOut writes what the agent has to know after a restart. The assignment is written
// before the shim starts: a folder without one has no shim.
func (a *Agent) layOut(as launcher.Assignment, dir string, at ports, p *prepared) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.MkdirAll(p.cfg.LogDir, 0o750); err != nil {
		return err
	}
	// If this cannot be written, the output has no known user when old output is removed:
	// no reason to refuse.
	_ = os.WriteFile(filepath.Join(filepath.Dir(p.cfg.LogDir), userName), []byte(as.Spec.User), 0o640)
	if err := makeErrorDir(as, p.who); err != nil {
		return err
	}
	if err := a.makeCompiled(as.Spec, p.container, p.who); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(dir, "assignment.json"), as); err != nil {
		return err
	}
	if p.container != nil {
		if err := a.containers.LayOut(a.ctx, p.container, as.Spec.MainStage().Container, p.who); err != nil {
			return err
		}
	}
	if err := at.writeOwn(dir); err != nil {
		return err
	}
	if at.port == 0 {
		return nil
	}
	return writePort(dir, at.port)
}

// surroundings finds out what depends on this node: the user whom the ranks run as, and
// what the hardware calls for.
func (a *Agent) surroundings(ctx context.Context, as launcher.Assignment) (*prepared, error) {
	who, err := login.Lookup(ctx, as.Spec.User)
	if err != nil {
		return nil, err
	}
	fabric, err := a.cfg.Fabric(as)
	if err != nil {
		return nil, fmt.Errorf("work out the fabric environment: %w", err)
	}
	secrets := a.secretsDir(as.Key)
	if as.Spec.MainStage().Container != nil {
		secrets = insideSecrets
	}
	compiled, err := a.seesCompiled(as.Spec)
	if err != nil {
		return nil, err
	}
	return &prepared{who: who, fabric: fabric, secrets: as.Spec.SecretSettings(secrets), compiled: compiled}, nil
}

// check finds out whether the ranks could run here, and what as. Once the surroundings are
// known they are returned with an error too.
func (a *Agent) check(ctx context.Context, as launcher.Assignment) (*prepared, error) {
	done, err := a.looks(as.Spec.User, maxLooks)
	if err != nil {
		return nil, err
	}
	defer done()
	p, err := a.surroundings(ctx, as)
	if err != nil {
		return nil, err
	}
	p.cfg = a.shimConfig(as, p.who)
	for i := 0; i < as.Ranks; {
		_, st, _ := as.Local(i)
		if err := a.checkStage(ctx, as, st, i, p); err != nil {
			return p, err
		}
		if !as.Spec.Stepped() {
			break
		}
		i += st.RanksPerNode
	}
	return p, nil
}

// checkStage checks one stage; local is the index of its first rank here.
func (a *Agent) checkStage(ctx context.Context, as launcher.Assignment, st launcher.Stage, local int,
	p *prepared) error {
	first, err := newSurroundings(p, st.Container != nil).plan(as, local, ports{})
	if err != nil {
		return err
	}
	if st.Container != nil && p.container == nil { // what is found out holds for all stages
		at := a.contained(as, p.who, launcher.ValueOf(first.Env, "HF_HOME"))
		if p.container, p.warnings, err = a.containers.Prepare(ctx, at); err != nil {
			return err
		}
	}
	c := preflight.Case{
		Machine: preflight.Machine{
			RunDir: a.cfg.RunDir, LogDir: a.cfg.LogDir, MemoryFloor: a.cfg.MemoryFloor, Secrets: a.cfg.Secrets != nil,
			Containers: a.containers,
		},
		Assignment: as, Stage: st, User: p.who, First: first, Container: p.container, Yet: !a.isThere(as),
	}
	err = c.Run(ctx)
	if st.MPI != nil {
		p.mpi = c.MPI
	}
	var refusal *preflight.RefusedError
	if errors.As(err, &refusal) {
		a.cfg.Logger.Info("ranks cannot run", "job", as.Job, "checks", refusal.Checks, "error", err)
	}
	return err
}

// shimConfig is what the shim of an attempt needs before it knows its ranks.
func (a *Agent) shimConfig(as launcher.Assignment, who login.User) shim.Config {
	c := shim.Config{
		Key: as.Key, LogDir: a.logDir(as.Key), Grace: as.Spec.Grace, StartTimeout: as.Spec.StartTimeout,
		MaxOutput: as.Spec.MaxOutput, DieWithClient: a.cfg.DieWithUs, Cgroup: string(a.cfg.Node) + "-" + as.Key.String(),
	}
	if who.Switches {
		c.UID, c.GID, c.Groups = &who.UID, &who.GID, who.Groups
	}
	if as.Spec.Stepped() && !as.Spec.Steps()[0].On(as.NodeRank) || as.Spec.Memory != nil { // it may wait for its turn
		c.StartTimeout = stepWait
	}
	c.Stays = as.Spec.Stepped() && as.Spec.ReplacesOn(as.NodeRank)
	return c
}

// maxLooks bounds the concurrent lookups of one user's files. On a disk that never answers,
// which may be the user's own (FUSE), each lookup holds a thread, and a Go program with
// 10,000 threads crashes.
const maxLooks = 200

// looks counts a lookup of a user's files until done; it fails if there are that many.
func (a *Agent) looks(user string, most int) (done func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := a.looking[user]; n >= most {
		return nil, fmt.Errorf("jobs of %s have %d reads here that do not end: does one of their disks not answer?",
			user, n)
	}
	a.looking[user]++
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.looking[user]--; a.looking[user] == 0 {
			delete(a.looking, user)
		}
	}, nil
}

// allow applies the administrator's rules.
func (a *Agent) allow(ctx context.Context, as launcher.Assignment) error {
	if a.cfg.Policy == nil {
		return nil
	}
	return a.cfg.Policy.Run(ctx, as.Spec)
}

func (a *Agent) emitPreparing(k launcher.Key, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.emit(launcher.Event{Key: k, Kind: launcher.Preparing, Text: text})
}

func portPath(dir string) string { return filepath.Join(dir, "port.json") }

func writePort(dir string, port int) error { return writeJSON(portPath(dir), port) }

func readPort(dir string) int {
	var port int
	if readJSON(portPath(dir), &port) != nil {
		return 0
	}
	return port
}
