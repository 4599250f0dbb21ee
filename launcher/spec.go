package launcher

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// JobID names a job. The client makes it, so that a repeated request starts the job once.
type JobID string

// NodeID is a node's UUID, given when it joins and never changed.
type NodeID string

// Generation counts the attempts of one job, from 1.
type Generation uint64

const (
	jobIDAlphabet = "23456789abcdefghjkmnpqrstuvwxyz" // no 0/o, 1/i/l: ids are read aloud and typed
	jobIDTaken    = "0123456789abcdefghijklmnopqrstuvwxyz"
)

// Compiled when first used: a shim starts with this package, and does not need them.
var (
	namePattern = plain.Pattern(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)
	envPattern  = plain.Pattern(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// NewJobID makes a random id of ten characters (49 bits).
func NewJobID() JobID {
	b := make([]byte, 10)
	rand.Read(b) // never fails: crypto/rand ends the program instead
	for i := range b {
		b[i] = jobIDAlphabet[int(b[i])%len(jobIDAlphabet)]
	}
	return JobID(b)
}

// IsName tells whether text may name a job, or anything else that people type: a letter or digit, then those and _.-,
// 64 at most.
func IsName(text string) bool { return namePattern().MatchString(text) }

// Validate refuses what cannot be an id, or the name of a folder.
func (id JobID) Validate() error {
	if len(id) < 4 || len(id) > 32 || strings.Trim(string(id), jobIDTaken) != "" {
		return fmt.Errorf("job id %q: %w: want 4 to 32 characters of 0-9 and a-z", id, ErrInvalid)
	}
	return nil
}

// Defaults of a Spec's durations, used where a Spec says zero.
const (
	DefaultGrace        = 10 * time.Second // between TERM and KILL, as docker stop
	DefaultStartTimeout = 60 * time.Second // from plan to the last rank started
	DefaultNodeTimeout  = 60 * time.Second // of silence until a batch job gives a node up
)

// Never is a time-out that does not come, which services have for their nodes. Added to a
// time of today it does not overflow (292 years later).
const Never = time.Duration(1<<63 - 1)

// FailurePolicy says what happens to an attempt when one of its ranks fails or one of its
// nodes is lost.
type FailurePolicy string

const (
	StopOnFailure     FailurePolicy = "stop"     // the others are ended; also what "" means
	ContinueOnFailure FailurePolicy = "continue" // the others run to their own ends
)

// Spec is a job as it was requested: complete, validated, and the same on every node. It
// names no node by address and has no secret that is not sealed.
type Spec struct {
	ID JobID `json:"id"`
	// Epoch of the cluster when the id was made. A retry from an older epoch that the
	// record does not know is answered "unknown", never started. The zero Epoch: not known.
	Epoch    uint64 `json:"epoch,omitempty"`
	EpochBy  NodeID `json:"epoch_by,omitempty"` // see Epoch.By
	Name     string `json:"name,omitempty"`
	Workload string `json:"workload"`
	// User is the login name that the ranks run as, looked up on each node. Empty: the user
	// of the process that starts them (standalone).
	User string `json:"user,omitempty"`

	Nodes   int      `json:"nodes"`             // how many, 1 or more; 0 = as many as On names
	On      []string `json:"on,omitempty"`      // only these hosts, in this order
	Near    string   `json:"near,omitempty"`    // a host that is taken first where On leaves the choice
	Exclude []string `json:"exclude,omitempty"` // never these hosts

	// Force starts the job although the preflight says that the fabric would fail.
	Force bool `json:"force,omitempty"`
	// NCCL is the version that the ranks load, such as 2.28.9; empty: not known.
	NCCL string `json:"nccl,omitempty"`
	// NCCLSubnetAware says that this NCCL routes by subnet although it is older than
	// 2.30.7: a fork.
	NCCLSubnetAware bool `json:"nccl_subnet_aware,omitempty"`

	Grace        time.Duration `json:"grace,omitempty"`
	StartTimeout time.Duration `json:"start_timeout,omitempty"`
	NodeTimeout  time.Duration `json:"node_timeout,omitempty"` // Never is allowed
	// Timeout bounds the whole job, from the moment it was first placed; 0: no bound.
	Timeout   time.Duration `json:"timeout,omitempty"`
	OnFailure FailurePolicy `json:"on_failure,omitempty"`
	// OnPartition is for nodes that get no answer from a leader for NodeTimeout.
	OnPartition PartitionPolicy `json:"on_partition,omitempty"`
	// MaxOutput bounds what is kept of each stream of a rank, in bytes: its start and its
	// end. 0 means 1 GiB.
	MaxOutput int64 `json:"max_output,omitempty"`

	// MinNodes allows an attempt on fewer nodes, down to this many: it takes as many as
	// there are. 0 means Nodes.
	MinNodes int `json:"min_nodes,omitempty"`
	// Spare nodes are reserved and not used, until an attempt after the loss of a node.
	Spare int `json:"spare,omitempty"`
	// MaxRestarts is how often the main stage is started again after a failure.
	MaxRestarts int `json:"max_restarts,omitempty"`

	// GPUs are those that the job takes of each of its nodes: while it has them, no other
	// job that takes some is placed there. A Spark has one GPU, so that every number means
	// all.
	GPUs GPUs `json:"gpus,omitempty"`
	// Wait queues the job while others have the GPUs; else it is refused.
	Wait bool `json:"wait,omitempty"`
	// Share uses GPUs without taking them.
	Share bool `json:"share,omitempty"`
	// Memory is what it plans to take of each node's; nil: it is not said.
	Memory *Memory `json:"memory,omitempty"`

	// Staged are files that the job brings; nil: none.
	Staged *Staged `json:"staged,omitempty"`
	// KeepCache leaves the page cache of the nodes alone; else it is dropped if the job
	// takes GPUs and nothing else runs.
	KeepCache bool `json:"keep_cache,omitempty"`
	// Publish are the ranks' TCP ports that hosts other than the job's nodes may reach.
	Publish []Ports `json:"publish,omitempty"`
	// Secrets are sealed; each node opens them for its ranks.
	Secrets []SealedSecret `json:"secrets,omitempty"`

	// Service: the job is a service; nil: it ends by itself.
	Service *Service `json:"service,omitempty"`

	Stages    []Stage   `json:"stages"`
	Submitted time.Time `json:"submitted"` // by the client's clock
}

// Stage is one step of a job: the same program on each chosen node.
type Stage struct {
	Name string `json:"name"`
	// Main marks the stage whose ranks decide the job's exit code: exactly one.
	Main         bool    `json:"main,omitempty"`
	RanksPerNode int     `json:"ranks_per_node"`
	Argv         []Value `json:"argv"` // see Command
	Env          []Var   `json:"env,omitempty"`
	Workdir      string  `json:"workdir"` // absolute; in a container, empty is the image's own
	// Files must exist on each of the stage's nodes before any rank starts: scripts that argv
	// names, or a model's file. Relative ones are relative to Workdir.
	Files []string `json:"files,omitempty"`
	// UsesPort asks for a free rendezvous port on rank 0's node.
	UsesPort bool `json:"uses_port,omitempty"`
	// GPU: its ranks compute on each node's GPU, so that a node where another user's
	// process does so refuses.
	GPU bool `json:"gpu,omitempty"`

	Stdin Stdin `json:"stdin,omitempty"`
	// TTY gives the one rank that Stdin names a terminal of this size for all three
	// streams; its output is then Stdout alone.
	TTY *Window `json:"tty,omitempty"`
	RankOptions

	Container *Container `json:"container,omitempty"` // nil: on the host
	// What follows is for stages that start in steps (steps.go).

	Where Where       `json:"where,omitempty"` // which nodes it has ranks on
	Ports []NamedPort `json:"ports,omitempty"`
	// Ready are the probes that all must pass before the next step starts; none: the stage
	// is ready once its ranks run.
	Ready []Probe `json:"ready,omitempty"`
	// Patience bounds how long there may be no progress before it is ready; 0 means
	// DefaultPatience.
	Patience time.Duration `json:"patience,omitempty"`
	// Spares: once it is ready, the loss of one of its ranks is reported and ends nothing,
	// unless the job may be restarted.
	Spares bool `json:"spares,omitempty"`
	// Replace: if the job may be restarted (MaxRestarts), a rank of it that is lost once it
	// is ready is started again, as often, while the rest of the job runs on. It goes with
	// Spares.
	Replace bool `json:"replace,omitempty"`
	// PIDsOf names an earlier stage, on the same nodes, whose processes those of this one
	// see in containers: Ray's driver looks for its node among them
	// (ray/_private/services.py). Empty: none.
	PIDsOf string `json:"pids_of,omitempty"`
	// MPI: its ranks are MPI ranks; nil: they are not.
	MPI *MPI `json:"mpi,omitempty"`
	// Agents: its ranks are torchrun's agents, whose workers have ranks of their own.
	Agents bool `json:"agents,omitempty"`
}

// Var is one variable of a rank's environment and its source. Later entries win over
// earlier ones of the same name.
type Var struct {
	Name   string `json:"name"`
	Value  Value  `json:"value"`
	Source string `json:"source"`
}

// GPUs says which of a node's GPUs a job takes: one of these words, or how many.
type GPUs string

const (
	NoGPUs  GPUs = ""    // and "none"
	AnyGPUs GPUs = "any" // all, if a node has some
	AllGPUs GPUs = "all" // all; a node without a known GPU may be taken, too
)

func (g GPUs) valid() bool {
	n, err := strconv.Atoi(string(g))
	return g == NoGPUs || g == AnyGPUs || g == AllGPUs || err == nil && n > 0
}

// MainStage returns the stage that decides the exit code.
func (s Spec) MainStage() *Stage {
	for i := range s.Stages {
		if s.Stages[i].Main {
			return &s.Stages[i]
		}
	}
	return nil
}

// Names of the stages that are not steps. Each runs once, as a single rank on rank 0's
// node: before the first attempt of the main stage, and after one that completed.
const (
	StageBefore = "before"
	StageAfter  = "after"
)

// Stage gives a stage by its name, the main one for "".
func (s Spec) Stage(name string) *Stage {
	if name == "" {
		return s.MainStage()
	}
	for i := range s.Stages {
		if s.Stages[i].Name == name && !s.Stages[i].Main {
			return &s.Stages[i]
		}
	}
	return nil
}

// Only is the part of the spec that one generation runs; nodes get no other stages.
func (s Spec) Only(name string) Spec {
	if name == "" {
		s.Stages = s.Steps()
		return s
	}
	if st := s.Stage(name); st != nil {
		only := *st
		only.Main = true
		s.Stages, s.Service = []Stage{only}, nil
	}
	return s
}

// WithDefaults fills in missing durations and the node count.
func (s Spec) WithDefaults() Spec {
	if s.Grace == 0 {
		s.Grace = DefaultGrace
	}
	if s.StartTimeout == 0 {
		s.StartTimeout = DefaultStartTimeout
	}
	if s.NodeTimeout == 0 && s.Service != nil {
		s.NodeTimeout = Never
	}
	if s.NodeTimeout == 0 {
		s.NodeTimeout = DefaultNodeTimeout
	}
	if s.Nodes == 0 {
		s.Nodes = max(1, len(s.On))
	}
	if d := s.OnDemand(); d != nil {
		v := *s.Service
		v.OnDemand = &OnDemand{cmp.Or(d.Idle, DefaultIdle), cmp.Or(d.MinUp, DefaultMinUp)}
		s.Service = &v
	}
	return s
}

// Limits that keep a record entry, and the arguments of an exec, within reason.
const (
	MaxRanksPerNode = 1024
	MaxRestarts     = 1000
	MaxArgs         = 8 << 10   // each takes some 12 bytes more in the record than its text
	MaxEnv          = 1024      // each takes some 60 bytes more in the record than its text
	MaxTextBytes    = 128 << 10 // argv, files and environment of one stage together
	MaxStages       = 8
	maxNames        = 1024 // hosts that a flag names
	maxWordBytes    = 256  // of words that are not the user's text: a host, a source, a version
)

// ErrInvalid is wrapped by every error of Validate.
var ErrInvalid = errors.New("invalid")

// Validate returns the first error of the spec, in the terms that a user knows.
func (s Spec) Validate() error {
	if err := errors.Join(s.ID.Validate(), s.Staged.validate(), validPublished(s.Publish),
		s.validateSecrets()); err != nil {
		return err
	}
	switch {
	case s.Name != "" && !namePattern().MatchString(s.Name):
		return fmt.Errorf("--name %q: %w: want up to 64 letters, digits, '_', '.' and '-'", s.Name, ErrInvalid)
	case s.Nodes < 0:
		return fmt.Errorf("--nodes %d: %w: want 1 or more", s.Nodes, ErrInvalid)
	case !s.GPUs.valid():
		return fmt.Errorf("--gpus %q: %w: want all, none or a number", s.GPUs, ErrInvalid)
	case s.MinNodes < 0 || s.Nodes > 0 && s.MinNodes > s.Nodes:
		return fmt.Errorf("--nodes %d:%d: %w: want the smaller number first", s.MinNodes, s.Nodes, ErrInvalid)
	case s.Spare < 0 || s.MaxRestarts < 0 || s.MaxRestarts > MaxRestarts:
		return fmt.Errorf("--spare %d, --max-restarts %d: %w: want 0 or more, and at most %d restarts", s.Spare,
			s.MaxRestarts, ErrInvalid, MaxRestarts)
	case s.Spare > 0 && s.MaxRestarts == 0 && s.Service == nil:
		return fmt.Errorf("--spare %d: %w: spare nodes are for another attempt: add --max-restarts", s.Spare, ErrInvalid)
	case len(s.On) > 0 && s.Nodes+s.Spare > len(s.On) && s.Spare > 0:
		return fmt.Errorf("--spare %d: %w: --on names fewer than these and %d nodes: %s", s.Spare, ErrInvalid, s.Nodes,
			strings.Join(s.On, ", "))
	case len(s.On) > 0 && s.Nodes > len(s.On):
		return fmt.Errorf("--nodes %d: %w: --on names fewer: %s", s.Nodes, ErrInvalid, strings.Join(s.On, ", "))
	case s.OnFailure != "" && s.OnFailure != StopOnFailure && s.OnFailure != ContinueOnFailure:
		return fmt.Errorf("--on-failure %q: %w: want %s or %s", s.OnFailure, ErrInvalid, StopOnFailure, ContinueOnFailure)
	case s.MaxOutput < 0:
		return fmt.Errorf("--max-output %d: %w: want 0 or more bytes", s.MaxOutput, ErrInvalid)
	case s.Grace < 0 || s.StartTimeout < 0 || s.NodeTimeout < 0 || s.Timeout < 0:
		return fmt.Errorf("a duration below zero: %w: want for example --grace 10s", ErrInvalid)
	}
	if err := errors.Join(s.validateWords(), s.validateService(), s.validateLease(), s.validateMemory()); err != nil {
		return err
	}
	if twice := firstTwice(s.On); twice != "" {
		return fmt.Errorf("--on %s: %w: named twice", twice, ErrInvalid)
	}
	for _, h := range s.On {
		if slices.Contains(s.Exclude, h) {
			return fmt.Errorf("--exclude %s: %w: --on asks for the same host", h, ErrInvalid)
		}
	}
	if st := s.MainStage(); st != nil {
		if most := s.WorldOf(s.WithDefaults().Nodes); !st.Stdin.within(most) {
			return fmt.Errorf("--stdin %s: %w: the job's ranks are 0 to %d", st.Stdin, ErrInvalid, most-1)
		}
	}
	mains := 0
	for _, st := range s.Stages {
		switch {
		case st.Main:
			mains++
		case st.RanksPerNode != 1 && (st.Name == StageBefore || st.Name == StageAfter):
			return fmt.Errorf("stage %s: %w: %d ranks, want one", st.Name, ErrInvalid, st.RanksPerNode)
		}
		if err := st.validate(); err != nil {
			return err
		}
		if err := st.mayAsk(s.User); err != nil {
			return err
		}
	}
	if mains != 1 {
		return fmt.Errorf("job %s: %w: %d main stages, want one", s.ID, ErrInvalid, mains)
	}
	return s.validateSteps()
}

// validateWords bounds what no flag can make long or odd, but a client other than this
// program can: it goes into the record and onto terminals.
func (s Spec) validateWords() error {
	if s.Workload != "" && !namePattern().MatchString(s.Workload) {
		return fmt.Errorf("workload %q: %w: want up to 64 letters, digits, '_', '.' and '-'", s.Workload, ErrInvalid)
	}
	if len(s.Stages) > MaxStages {
		return fmt.Errorf("job %s: %w: %d stages, at most %d", s.ID, ErrInvalid, len(s.Stages), MaxStages)
	}
	if len(s.On) > maxNames || len(s.Exclude) > maxNames {
		return fmt.Errorf("--on, --exclude: %w: %d and %d hosts, at most %d", ErrInvalid, len(s.On), len(s.Exclude), maxNames)
	}
	words := slices.Concat([]string{s.Near, s.NCCL, string(s.EpochBy)}, s.On, s.Exclude)
	for _, st := range s.Stages {
		if st.Name != "" && !namePattern().MatchString(st.Name) {
			return fmt.Errorf("stage %q: %w: want up to 64 letters, digits, '_', '.' and '-'", st.Name, ErrInvalid)
		}
		for _, e := range st.Env {
			words = append(words, e.Source)
		}
	}
	for _, w := range words {
		if len(w) > maxWordBytes {
			return fmt.Errorf("job %s: %w: %q...: %d bytes, at most %d", s.ID, ErrInvalid, w[:16], len(w), maxWordBytes)
		}
	}
	return nil
}

func (st Stage) validate() error {
	argv := st.Command()
	switch {
	case len(argv) == 0 || argv[0].String() == "" || st.Container != nil && len(st.Argv) > 0:
		return fmt.Errorf("stage %s: %w: no command", st.Name, ErrInvalid)
	case st.RanksPerNode < 1 || st.RanksPerNode > MaxRanksPerNode:
		return fmt.Errorf("--nproc-per-node %d: %w: want 1 to %d", st.RanksPerNode, ErrInvalid, MaxRanksPerNode)
	case len(argv) > MaxArgs:
		return fmt.Errorf("stage %s: %w: %d arguments, at most %d", st.Name, ErrInvalid, len(argv), MaxArgs)
	case !strings.HasPrefix(st.Workdir, "/") && (st.Workdir != "" || st.Container == nil):
		return fmt.Errorf("--workdir %q: %w: want an absolute path", st.Workdir, ErrInvalid)
	}
	if err := validText(st.Workdir); err != nil {
		return fmt.Errorf("--workdir %q: %w", st.Workdir, err)
	}
	if err := st.Container.validate(); err != nil {
		return err
	}
	for _, f := range st.Files {
		if err := validText(f); err != nil {
			return fmt.Errorf("file %q: %w", f, err)
		}
	}
	if err := errors.Join(st.validatePlacement(), st.MPI.validate()); err != nil {
		return err
	}
	for _, v := range argv {
		if err := v.validate(); err != nil {
			return fmt.Errorf("argument %q: %w", v.String(), err)
		}
	}
	for _, e := range st.Env {
		if !envPattern().MatchString(e.Name) {
			return fmt.Errorf("--env %q: %w: a name is letters, digits and '_', and begins with no digit", e.Name, ErrInvalid)
		}
		if err := e.Value.validate(); err != nil {
			return fmt.Errorf("--env %s: %w", e.Name, err)
		}
	}
	if size := st.textBytes(); size > MaxTextBytes {
		return fmt.Errorf("stage %s: %w: command and environment take %d bytes, at most %d: put them into a file "+
			"that the program reads", st.Name, ErrInvalid, size, MaxTextBytes)
	}
	if len(st.Env) > MaxEnv {
		return fmt.Errorf("stage %s: %w: %d variables, at most %d: put them into a file that the program reads",
			st.Name, ErrInvalid, len(st.Env), MaxEnv)
	}
	return nil
}

// TextBytes is the size of the user's words in it: command lines, files, environment.
func (s Spec) TextBytes() (size int) {
	for _, st := range s.Stages {
		size += st.textBytes()
	}
	return size
}

func (st Stage) textBytes() (size int) {
	for _, f := range st.Files {
		size += len(f)
	}
	for _, v := range st.Command() {
		size += v.size()
	}
	for _, e := range st.Env {
		size += len(e.Name) + e.Value.size()
	}
	for _, p := range st.Ready {
		size += p.textBytes()
	}
	return size + st.Container.textBytes()
}

func firstTwice(names []string) string {
	seen := map[string]bool{}
	for _, n := range names {
		if seen[n] {
			return n
		}
		seen[n] = true
	}
	return ""
}
