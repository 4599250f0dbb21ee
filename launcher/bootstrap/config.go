package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Config of one run.
type Config struct {
	// Targets are [user@]host[:port]; host may be a Host of ssh_config. The first
	// one founds the cluster where there is none.
	Targets []string
	SSH     SSH
	// Binary gives the program for a machine as uname -m calls it. An error
	// refuses that host.
	Binary func(machine string) (Binary, error)
	// Upgrade replaces the program of members that have another release of it, one after the other. Ranks run on. One
	// that does not come back with it gets the release before again. Nil: their programs stay.
	Upgrade *Upgrade
	// Unit is the text of the agent's systemd unit.
	Unit string
	// Cluster is the one of the machine this runs on; nil: it is in none.
	Cluster *Cluster
	// ClusterOf reads a cluster's id from a host's node.json.
	ClusterOf func([]byte) (string, error)
	// Ports must be free on a host that runs no agent: TCP and UDP.
	Ports []int
	// Out takes a host out of its cluster, by the name that it has for itself; Down
	// calls it once it is root there. Nil: a host in a cluster is refused.
	Out func(ctx context.Context, host string) error
	// DryRun looks at the hosts and changes nothing: the steps are told as Planned.
	DryRun bool
	// Tell is called from several goroutines, one call at a time for each host.
	Tell func(Event)
}

// Upgrade says which releases may come in the place of others.
type Upgrade struct {
	// Downgrade lets an older release come in the place of a newer one.
	Downgrade bool
	// Together says why nodes of two protocols cannot be in one cluster.
	Together func(next, theirs int) error
}

// SSH says how to log in.
type SSH struct {
	// User is this machine's: the login where neither target nor ssh_config has one.
	User string
	Home string // whose .ssh is read; ~ and %d of ssh_config
	// ConfigFiles are ssh_config files, the first one's words win. Missing ones are skipped.
	ConfigFiles []string
	// Addresses are those of hosts whose names mean nothing here; ssh_config's HostName counts more.
	Addresses   map[string]string
	AgentSocket string // of ssh-agent; empty: none
	// Accept are fingerprints (SHA256:...) of host keys that need no question.
	Accept []string
	// Password is tried for logins and sudo; nil: Ask is asked.
	Password *string
	// Ask is nil where nobody can be asked: what would need it is then refused.
	Ask *Ask
}

// Ask is the person at the terminal. Calls do not overlap.
type Ask struct {
	// HostKey shows the key of a host that is not known. True: it is that host's.
	HostKey func(ctx context.Context, host, keyType, fingerprint string) (bool, error)
	// Secret reads a line without showing it.
	Secret func(ctx context.Context, prompt string) (string, error)
}

// Binary is the program for one architecture.
type Binary struct {
	Path    string
	Size    int64    // bytes
	SHA     string   // SHA-256, hex
	Release *Release // nil: not known before it has run on the host
}

// Release is which sparkrun a program is, as it says itself.
type Release struct {
	Version  string `json:"version"`
	Protocol int    `json:"protocol"`
}

// Cluster is one that lets hosts in.
type Cluster struct {
	ID string
	// Invite makes a token for one host. Called for several hosts at once.
	Invite func(context.Context) (Invitation, error)
}

// Invitation is what join needs.
type Invitation struct {
	Addr  string
	Token string `json:"-"`
}

// String keeps the token out of logs.
func (i Invitation) String() string { return "an invitation to " + i.Addr }

// GoString does so for %#v.
func (i Invitation) GoString() string { return i.String() }

// State is what a step has come to.
type State string

// A step begins, and is then done or has failed. Planned stands in for both with DryRun.
const (
	Begins  State = "begins"
	Done    State = "done"
	Skipped State = "skipped" // there was nothing to do
	Planned State = "planned"
	Failed  State = "failed"
)

// Event is one word about one host.
type Event struct {
	Host  string `json:"host"` // the target as it was given
	Step  string `json:"step"`
	State State  `json:"state"`
	Text  string `json:"text,omitempty"` // what is done, or why it failed
}

// Part is what a host was to the cluster when it was looked at.
type Part string

// A host is a member already, or is to become one, or is in another cluster.
const (
	Member  Part = "member"
	Joins   Part = "joins"
	Founds  Part = "founds"
	Another Part = "another"
)

// Result is what became of a host.
type Result struct {
	Target  string `json:"target"`
	Host    string `json:"host,omitempty"`    // the name it has for itself
	Cluster string `json:"cluster,omitempty"` // that it is in
	Part    Part   `json:"part,omitempty"`    // empty: not known
	Release string `json:"release,omitempty"` // of its agent, when it was last asked
	Ready   bool   `json:"ready"`
	// RolledBack: an upgrade failed there, and the release before is in its place again.
	RolledBack bool    `json:"rolled_back,omitempty"`
	Steps      []Event `json:"steps"`
	Error      string  `json:"error,omitempty"`
}

// ErrNobodyToAsk: a secret or a host's key is missing and no terminal is there.
var ErrNobodyToAsk = errors.New("no terminal to ask on")

// Time-outs: long enough for a slow host, short enough for a dead one.
const (
	dialTimeout    = 20 * time.Second // TCP, then each silence of the SSH handshake
	lookTimeout    = time.Minute
	copyTimeout    = 15 * time.Minute // some 20 MB
	commandTimeout = 3 * time.Minute
	startTimeout   = 6 * time.Minute // the unit has TimeoutStartSec=300
	readyTimeout   = 3 * time.Minute
	// A new release that nobody has found ready by then goes back by the host's own hand.
	confirmTimeout = startTimeout + readyTimeout + time.Minute
	// maxSkew between the clocks of host and this machine. A token lives 15 min,
	// and logs of several machines are read side by side.
	maxSkew = 30 * time.Second
)

func (c Config) validate() error {
	seen := map[string]bool{}
	for _, t := range c.Targets {
		if _, err := parseTarget(t); err != nil {
			return err
		}
		if seen[t] {
			return fmt.Errorf("host %q is named twice", t)
		}
		seen[t] = true
	}
	if len(c.Targets) == 0 {
		return errors.New("no host is named")
	}
	return nil
}
