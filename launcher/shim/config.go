package shim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sparkrun/sparkrun/launcher"
)

// How long leftovers may run: processes that outlive a rank that has exited by itself.
const (
	// OutputWait is given to processes that still hold a rank's output, and to all that are
	// left once every rank has exited. `exec > >(tee log)` needs milliseconds; a daemon
	// would run for ever. After it comes SIGKILL.
	OutputWait = 2 * time.Second
	// outputCut is given after that kill, for a holder that is no descendant (the
	// descriptor was passed through a socket): then the pipe is abandoned.
	outputCut = time.Second
)

// Config is what Spawn sends a shim at its start.
type Config struct {
	// Key names the attempt. It is in every answer to hello, so that a client never talks
	// to the shim of another attempt.
	Key launcher.Key `json:"key"`
	// LogDir gets rank-N.out and rank-N.err (mode 0600). Absolute; it is made, with mode
	// 0700, if it is missing.
	LogDir string `json:"log_dir"`
	// MaxOutput bounds what is kept of each stream of a rank, in bytes. 0 means
	// DefaultMaxOutput.
	MaxOutput int64 `json:"max_output,omitempty"`
	// Grace is the time between TERM and KILL when the shim itself ends the attempt:
	// SIGTERM to the shim, DieWithClient, EndOnFailure. An End order has its own. 0 means
	// launcher.DefaultGrace.
	Grace time.Duration `json:"grace,omitempty"`
	// UID, GID and Groups are what the ranks run as; nil UID: as the shim does. Setting
	// them needs root. Groups are the supplementary ones, all of them.
	UID    *uint32  `json:"uid,omitempty"`
	GID    *uint32  `json:"gid,omitempty"`
	Groups []uint32 `json:"groups,omitempty"`
	// DieWithClient ends the attempt when the connection that Spawn keeps open drops:
	// standalone mode, where nothing else would end it. After the end the shim then exits
	// without waiting for Release.
	DieWithClient bool `json:"die_with_client,omitempty"`
	// EndOnFailure ends the attempt once one rank has exited otherwise than by 0. False
	// leaves that decision to whoever sees the other nodes' ranks too.
	EndOnFailure bool `json:"end_on_failure,omitempty"`
	// StartTimeout is how long the shim waits for Start. Then it records the end and exits,
	// and nothing was ever exec'd. 0 means launcher.DefaultStartTimeout.
	StartTimeout time.Duration `json:"start_timeout,omitempty"`
	// Cgroup is the name, below sparkrun/ in the cgroup tree, of a group made for the
	// ranks. It must be unique on this kernel (two simulated nodes share one). Empty: none.
	// If none can be made the attempt runs without one, and is ended by walking its
	// descendants.
	Cgroup string `json:"cgroup,omitempty"`
	// Stays: the attempt does not end with its last rank, which may start again, but only
	// on an End. What ranks leave behind is killed all the same.
	Stays bool `json:"stays,omitempty"`
}

func (c Config) withDefaults() Config {
	if c.Grace == 0 {
		c.Grace = launcher.DefaultGrace
	}
	if c.MaxOutput == 0 {
		c.MaxOutput = DefaultMaxOutput
	}
	if c.StartTimeout == 0 {
		c.StartTimeout = launcher.DefaultStartTimeout
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Key.Job == "" || c.Key.Generation == 0:
		return fmt.Errorf("configure shim %s: %w: want a job and a generation", c.Key, launcher.ErrInvalid)
	case !filepath.IsAbs(c.LogDir):
		return fmt.Errorf("configure shim %s: log folder %q: %w: want an absolute path", c.Key, c.LogDir, launcher.ErrInvalid)
	case c.Grace < 0 || c.StartTimeout < 0 || c.MaxOutput < 0:
		return fmt.Errorf("configure shim %s: %w: a duration or size is below zero", c.Key, launcher.ErrInvalid)
	case (c.UID == nil) != (c.GID == nil) || c.UID == nil && c.Groups != nil:
		return fmt.Errorf("configure shim %s: %w: user and group go together", c.Key, launcher.ErrInvalid)
	case c.Cgroup != "" && (strings.ContainsAny(c.Cgroup, "/\x00\n") || c.Cgroup[0] == '.'):
		return fmt.Errorf("configure shim %s: cgroup %q: %w: want a name, not a path", c.Key, c.Cgroup, launcher.ErrInvalid)
	}
	return nil
}

// Rank is one process to exec. Nothing is added to it except the variable SPARKRUN_GANG, by
// which Reap finds what a killed shim left.
type Rank struct {
	Rank      int      `json:"rank"`       // in the world; names the output files
	LocalRank int      `json:"local_rank"` // on this node
	Argv      []string `json:"-"`          // argv[0] without a slash is looked up in Env's PATH
	Env       []string `json:"-"`          // complete: nothing is inherited
	Dir       string   `json:"-"`          // absolute

	Stdin bool             `json:"stdin,omitempty"` // has an input, which Client.Input writes; else an empty one
	TTY   *launcher.Window `json:"tty,omitempty"`   // a terminal for all three, input included
	launcher.RankOptions
	CPUs []int `json:"cpus,omitempty"` // that it may run on, by RankOptions.BindTo; none: any

	// in a container; nil: on the host. RankOptions and CPUs are then in its Spec
	Container *Container `json:"box,omitempty"`
	PMI       *PMI       `json:"pmi,omitempty"` // it has a process manager; nil: none
	// Again counts the incarnations of this rank before this one, all of them over.
	Again int `json:"again,omitempty"`
}

// PMI is what the shim, as an MPI rank's process manager, has to know besides the rank.
type PMI struct {
	Size    int    `json:"size"`    // ranks in the world
	Mapping string `json:"mapping"` // which are on which node: mpi.Mapping
}

func validRanks(ranks []Rank) error {
	if len(ranks) == 0 {
		return errors.New("no ranks")
	}
	seen := map[int]bool{}
	for _, r := range ranks {
		switch {
		case r.Rank < 0 || seen[r.Rank]:
			return fmt.Errorf("rank %d: negative or given twice", r.Rank)
		case r.Again < 0:
			return fmt.Errorf("rank %d: %d incarnations before this one", r.Rank, r.Again)
		case len(r.Argv) == 0 || r.Argv[0] == "":
			return fmt.Errorf("rank %d: no command", r.Rank)
		case !filepath.IsAbs(r.Dir):
			return fmt.Errorf("rank %d: working folder %q: want an absolute path", r.Rank, r.Dir)
		case hasNUL(r.Argv) || hasNUL(r.Env) || strings.ContainsRune(r.Dir, 0):
			return fmt.Errorf("rank %d: a NUL byte in its command, environment or folder", r.Rank)
		case (r.PMI == nil) != (ranks[0].PMI == nil):
			return fmt.Errorf("rank %d: some ranks have a process manager, and some have none", r.Rank)
		case r.PMI != nil && (r.PMI.Size <= r.Rank || r.PMI.Size < len(ranks)):
			return fmt.Errorf("rank %d: %d ranks here in a world of %d", r.Rank, len(ranks), r.PMI.Size)
		}
		for _, u := range r.Ulimits {
			if _, known := resources[u.Name]; !known {
				return fmt.Errorf("rank %d: ulimit %q: unknown", r.Rank, u.Name)
			}
		}
		if err := r.Container.validate(); err != nil {
			return fmt.Errorf("rank %d: %w", r.Rank, err)
		}
		seen[r.Rank] = true
	}
	return nil
}

func hasNUL(ss []string) bool {
	for _, s := range ss {
		if strings.IndexByte(s, 0) >= 0 {
			return true
		}
	}
	return false
}

// wireRank is a Rank in the protocol: its strings may be any bytes.
type wireRank struct {
	rankFields
	Argv []text `json:"argv"`
	Env  []text `json:"env"`
	Dir  text   `json:"dir"`
}

// rankFields is a Rank without its methods.
type rankFields Rank

// MarshalJSON writes a rank as PROTOCOL.md has it.
func (r Rank) MarshalJSON() ([]byte, error) {
	return marshal(wireRank{rankFields(r), texts(r.Argv), texts(r.Env), text(r.Dir)})
}

// UnmarshalJSON reads it.
func (r *Rank) UnmarshalJSON(b []byte) error {
	var w wireRank
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	*r = Rank(w.rankFields)
	r.Argv, r.Env, r.Dir = untexts(w.Argv), untexts(w.Env), string(w.Dir)
	return nil
}

// text is a string of any bytes: arguments, variables and paths need not be UTF-8, and JSON
// would silently replace what is not.
type text string

func (t text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return marshal(string(t))
	}
	return marshal(struct {
		B64 []byte `json:"b64"`
	}{[]byte(t)})
}

func (t *text) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, (*string)(t))
	}
	var w struct {
		B64 []byte `json:"b64"`
	}
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	*t = text(w.B64)
	return nil
}

func texts(ss []string) []text {
	ts := make([]text, len(ss))
	for i, s := range ss {
		ts[i] = text(s)
	}
	return ts
}

func untexts(ts []text) []string {
	ss := make([]string, len(ts))
	for i, t := range ts {
		ss[i] = string(t)
	}
	return ss
}

// marshal is json.Marshal without the escapes meant for HTML: people read journals, and `>`
// is common in commands.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'}), nil
}
