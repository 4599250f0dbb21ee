package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Config of one run.
type Config struct {
	// Targets are [user@]host[:port]; host may be a Host of ssh_config. If there is no
	// cluster, the first one founds it.
	Targets []string
	SSH     SSH
	// Binary gives the program for a machine, named as uname -m does. An error refuses that
	// host.
	Binary func(machine string) (Binary, error)
	// Upgrade replaces the program of members that have another release, one after the
	// other. Ranks run on. A member that does not come back with it gets its old release
	// again. Nil: their programs stay.
	Upgrade *Upgrade
	// Unit is the text of the agent's systemd unit.
	Unit string
	// Cluster is that of this machine; nil: it is in none.
	Cluster *Cluster
	// ClusterOf reads a cluster's id from a host's node.json.
	ClusterOf func([]byte) (string, error)
	// Ports must be free on a host that runs no agent: TCP and UDP.
	Ports []int
	// Out takes a host, by its own hostname, out of its cluster; Down calls it once it is
	// root there. Nil: a host in a cluster is refused.
	Out func(ctx context.Context, host string) error
	// Containers lets each host's login run ranks in containers.
	Containers bool
	// DryRun looks at the hosts and changes nothing: the steps are reported as Planned.
	DryRun bool
	// Tell is called from several goroutines, one call at a time for each host.
	Tell func(Event)
}

// Upgrade says which releases may replace others.
type Upgrade struct {
	// Downgrade lets an older release replace a newer one.
	Downgrade bool
	// Together returns an error if nodes of two protocols cannot be in one cluster.
	Together func(next, theirs int) error
}

// SSH says how to log in.
type SSH struct {
	// User is this machine's user: the login name if neither target nor ssh_config has one.
	User string
	Home string // whose .ssh is read; ~ and %d of ssh_config
	// ConfigFiles are ssh_config files; the first value found wins. Missing ones are
	// skipped.
	ConfigFiles []string
	// Addresses are for hosts whose names do not resolve here; HostName of ssh_config comes
	// first.
	Addresses   map[string]string
	AgentSocket string // of ssh-agent; empty: none
	// Accept are fingerprints (SHA256:...) of host keys that are accepted without a
	// question.
	Accept []string
	// Password is used for logins and sudo; nil: Ask is used.
	Password *string
	// Ask is nil if nobody can be asked: what needs an answer is then refused.
	Ask *Ask
}

// Ask asks the person at the terminal. Calls do not overlap.
type Ask struct {
	// HostKey shows the key of an unknown host. True: the key is that host's.
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

// Release is the sparkrun release of a program, as `version --json` says.
type Release struct {
	Version  string `json:"version"`
	Protocol int    `json:"protocol"`
}

// Cluster lets hosts in.
type Cluster struct {
	ID string
	// Invite makes a token for one host. It is called for several hosts at once.
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

// State is what became of a step.
type State string

// A step begins, and is then done or has failed. With DryRun, Planned replaces both.
const (
	Begins  State = "begins"
	Done    State = "done"
	Skipped State = "skipped" // there was nothing to do
	Planned State = "planned"
	Failed  State = "failed"
)

// Event is a report on one step of one host.
type Event struct {
	Host  string `json:"host"` // the target as it was given
	Step  string `json:"step"`
	State State  `json:"state"`
	Text  string `json:"text,omitempty"` // what is done, or why it failed
}

// Part is what a host was to the cluster when it was looked at.
type Part string

// A host is a member, is to become one, or is in another cluster.
const (
	Member  Part = "member"
	Joins   Part = "joins"
	Founds  Part = "founds"
	Another Part = "another"
)

// Result is what became of a host.
type Result struct {
	Target  string `json:"target"`
	Host    string `json:"host,omitempty"`    // its own hostname
	Cluster string `json:"cluster,omitempty"` // that it is in
	Part    Part   `json:"part,omitempty"`    // empty: not known
	Release string `json:"release,omitempty"` // of its agent, when it was last asked
	Ready   bool   `json:"ready"`
	// RolledBack: an upgrade failed there, and the old release is back in place.
	RolledBack bool    `json:"rolled_back,omitempty"`
	Steps      []Event `json:"steps"`
	Error      string  `json:"error,omitempty"`
}

// ErrNobodyToAsk: a secret or a host key is missing and there is no terminal.
var ErrNobodyToAsk = errors.New("no terminal to ask on")

// Time-outs: long enough for a slow host, short enough for a dead one.
const (
	dialTimeout    = 20 * time.Second // TCP, then each silence of the SSH handshake
	lookTimeout    = time.Minute
	copyTimeout    = 15 * time.Minute // some 20 MB
	commandTimeout = 3 * time.Minute
	startTimeout   = 6 * time.Minute // the unit has TimeoutStartSec=300
	readyTimeout   = 3 * time.Minute
	// A new release that is not confirmed by then is rolled back by the host itself.
	confirmTimeout = startTimeout + readyTimeout + time.Minute
	// maxSkew between the clocks of a host and this machine. A token is valid for 15 min,
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
