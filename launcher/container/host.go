package container

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// Config says which engine runs this node's containers.
type Config struct {
	Socket  string // of the engine; absolute
	Cluster string // its UUID: containers of other clusters are left alone
	Program string // this program, as a file that the engine can mount
}

// HostConfig of a Host. Required are all fields except Engine, StateDir and Contain.
type HostConfig struct {
	Engine *Config // nil: this node starts no containers
	Node   launcher.NodeID
	Boot   string
	// Incarnation distinguishes this process from those that ran here before it.
	Incarnation string
	// StateDir survives reboots; it notes that this node has had containers. Empty: nothing
	// is ever swept.
	StateDir string
	// MayLimit says why ranks here cannot have these limits.
	MayLimit func([]launcher.Ulimit) error
	// Contain applies the administrator's rules; nil: there are none.
	Contain func(context.Context, Wish) error
	// Held are the attempts that this node has not forgotten; true: the attempt has not
	// ended.
	Held   func() map[launcher.Key]bool
	Logger *slog.Logger
}

// Wish is what a user wants of a node's engine, for the rules.
type Wish struct {
	User     string
	Image    string   // the reference
	Mounts   []string // sources, links resolved with the user's rights
	Elevates []string // options of --docker-arg that give more rights than the user has
}

// Host finds out what a node's containers need, and removes those that were left.
type Host struct {
	cfg      HostConfig
	sweepNow chan struct{} // capacity 1
}

// NewHost does not connect to the engine.
func NewHost(cfg HostConfig) *Host { return &Host{cfg: cfg, sweepNow: make(chan struct{}, 1)} }

const (
	// engineWait bounds the engine's first answer: it is shorter than a job's start
	// time-out, whose error would not name the engine.
	engineWait = 45 * time.Second
	// engineBoot is how much later than this agent an engine may come up after a boot.
	engineBoot = time.Minute
	// engineAgain is the time between two attempts to reach an engine that comes up.
	engineAgain = time.Second
)

// open connects to the node's engine, and refuses one that ranks cannot run on.
func (h *Host) open(ctx context.Context) (*Engine, Facts, error) {
	if h.cfg.Engine == nil {
		return nil, Facts{}, errors.New("this node starts no containers: leave --image out")
	}
	return openEngine(ctx, h.cfg.Engine.Socket, engineWait)
}

func openEngine(ctx context.Context, socket string, wait time.Duration) (*Engine, Facts, error) {
	asked, cancel := context.WithTimeoutCause(ctx, wait, errSilent(socket, wait))
	defer cancel()
	e, err := Open(asked, socket)
	if err != nil {
		return nil, Facts{}, cause(asked, err)
	}
	f, err := e.Facts(asked)
	switch {
	case err != nil:
		err = cause(asked, err)
	case f.Rootless:
		err = fmt.Errorf("the engine at %s is rootless, so that ranks would not run as their user: "+
			"run Docker as root", socket)
	case f.UsernsRemap:
		err = fmt.Errorf("the engine at %s maps users (userns-remap), so that ranks would not run as their user: "+
			"remove that from /etc/docker/daemon.json", socket)
	}
	if err != nil {
		return nil, f, err
	}
	return e, f, nil
}

// Answers asks the node's engine for a sign of life. Unless it must, it asks none from which nothing here has had
// containers yet: systemd may start one for whoever asks.
func (h *Host) Answers(ctx context.Context, must bool, within time.Duration) error {
	if h.cfg.Engine == nil || !must && !h.hasHadContainers() {
		return nil
	}
	asked, cancel := context.WithTimeoutCause(ctx, within, errSilent(h.cfg.Engine.Socket, within))
	defer cancel()
	if _, err := Open(asked, h.cfg.Engine.Socket); err != nil {
		return cause(asked, err)
	}
	return nil
}

func errSilent(socket string, wait time.Duration) error {
	return fmt.Errorf("the engine at %s accepts connections and has not answered within %s: "+
		"`journalctl -u docker` may say why; restart it (systemctl restart docker)", socket, wait)
}

// AwaitEngine waits for an engine that starts with the machine, on a node that has had
// containers before: else a worker that comes back after a boot, or a service that starts
// with the machine, would be refused for good. booted is when this agent began, if it is
// the first one since the boot.
func (h *Host) AwaitEngine(ctx context.Context, booted time.Time, tell func(string)) {
	if h.cfg.Engine == nil || !h.hasHadContainers() {
		return
	}
	for told := false; time.Since(booted) < engineBoot; told = true {
		if _, err := Open(ctx, h.cfg.Engine.Socket); !errors.Is(err, ErrNoEngine) {
			return
		}
		if !told {
			tell("waits for its container engine, as the machine has just been booted")
		}
		select {
		case <-time.After(engineAgain):
		case <-ctx.Done():
			return
		}
	}
}

// Libraries reports which libraries the loader of an image knows.
func (h *Host) Libraries(ctx context.Context, image string, names ...string) (map[string]bool, error) {
	e, _, err := h.open(ctx)
	if err != nil {
		return nil, err
	}
	if err := h.noteContainers(); err != nil { // a container is made for this
		return nil, err
	}
	return e.Libraries(ctx, image, h.lookLabels(), names...)
}

// notedPath exists once this node has had containers: an engine that nobody asked for
// containers is not woken.
func (h *Host) notedPath() string { return filepath.Join(h.cfg.StateDir, "containers") }

func (h *Host) hasHadContainers() bool {
	_, err := os.Stat(h.notedPath())
	return err == nil
}

// noteContainers notes that there may be containers from now on.
func (h *Host) noteContainers() error {
	if h.cfg.StateDir == "" || h.hasHadContainers() {
		return nil
	}
	return os.WriteFile(h.notedPath(), nil, 0o600)
}

// labels by which a container is found again.
func (h *Host) labels() map[string]string {
	return map[string]string{
		"com.sparkrun.cluster": h.cfg.Engine.Cluster, "com.sparkrun.node": string(h.cfg.Node),
	}
}

// lookLabel marks a container that is never started, with the incarnation of the agent that
// made it.
const lookLabel = "com.sparkrun.look"

func (h *Host) lookLabels() map[string]string {
	l := h.labels()
	l[lookLabel] = h.cfg.Incarnation
	return l
}

// Rank is the complete Spec of one rank's container.
func (h *Host) Rank(p *Prepared, as launcher.Assignment, rank int, cpus []int) Spec {
	s := p.Spec
	s.Name = h.containerName(as.Key, rank)
	if of, is := pidsOf(as, rank); is {
		s.PIDsOf = h.containerName(as.Key, of)
	}
	s.Labels = h.labels()
	s.Labels["com.sparkrun.job"] = string(as.Job)
	s.Labels["com.sparkrun.generation"] = strconv.FormatUint(uint64(as.Generation), 10)
	s.Labels["com.sparkrun.rank"] = strconv.Itoa(rank)
	s.HandDir = filepath.Join(p.dir, "box-"+strconv.Itoa(rank))
	s.CPUs = cpus
	return s
}

// containerName includes the boot: after a power cut the engine may still have the
// containers that ran before it, exited, until the record says that the job is over.
func (h *Host) containerName(k launcher.Key, rank int) string {
	return fmt.Sprintf("sparkrun-%s-%d-%s-%s", k, rank, short(string(h.cfg.Node)), short(h.cfg.Boot))
}

// short is the beginning of an id, enough to distinguish a cluster's nodes or a node's
// boots.
func short(id string) string { return id[:min(len(id), 8)] }

// pidsOf is the rank of this node whose PID namespace another rank is to share, if there is
// one.
func pidsOf(as launcher.Assignment, rank int) (of int, is bool) {
	_, st, _ := as.Local(rank - as.FirstRank)
	if st.PIDsOf == "" {
		return 0, false
	}
	for i := range as.Ranks {
		if _, other, _ := as.Local(i); other.Name == st.PIDsOf {
			return as.FirstRank + i, true
		}
	}
	return 0, false
}
