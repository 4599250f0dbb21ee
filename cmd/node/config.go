// Package node makes a whole node of the parts: it wires identity, gossip,
// raft, the leader's brain, the agent and the RPC together, and is the only
// place that knows all of them. Tests run several nodes in one process with it.
//
// It must not decide what the parts decide; where it chooses, it is only which
// of them to ask.
package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/fabric"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/agent"
	"github.com/sparkrun/sparkrun/launcher/durable"
	"github.com/sparkrun/sparkrun/launcher/logs"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/failover"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
)

// Ports of a node. RPC and raft share one by ALPN; gossip has one of its own,
// TCP and UDP.
const (
	DefaultRPCPort    = 7940
	DefaultGossipPort = 7941
)

// Paths of a node. Each can be set by an environment variable.
type Paths struct {
	State  string // SPARKRUN_STATE: identity, raft, output; survives reboots
	Run    string // SPARKRUN_RUN: fence, shims; must not survive a reboot
	Sysfs  string // SPARKRUN_SYSFS
	Socket string // SPARKRUN_SOCKET: where the CLI finds the agent
	Engine string // SPARKRUN_ENGINE: the container engine's socket
	Policy string // SPARKRUN_POLICY: who may run ranks here; no such file: no rules
}

// DefaultPaths are those of a system's agent, or what the environment says.
func DefaultPaths() Paths {
	or := func(name, otherwise string) string {
		if v := os.Getenv(name); v != "" {
			return v
		}
		return otherwise
	}
	p := Paths{
		State: or("SPARKRUN_STATE", "/var/lib/sparkrun"),
		Run:   or("SPARKRUN_RUN", "/run/sparkrun"),
		Sysfs: or("SPARKRUN_SYSFS", "/sys"),

		Engine: or("SPARKRUN_ENGINE", "/var/run/docker.sock"),
		Policy: or("SPARKRUN_POLICY", "/etc/sparkrun/policy.yaml"),
	}
	p.Socket = or("SPARKRUN_SOCKET", filepath.Join(p.Run, "agent.sock"))
	return p
}

func (p Paths) trust() string  { return filepath.Join(p.State, "trust") }
func (p Paths) audit() string  { return filepath.Join(p.State, "audit.log") }
func (p Paths) logs() string   { return filepath.Join(p.State, "logs") }
func (p Paths) stage() string  { return filepath.Join(p.State, "stage") }
func (p Paths) where() string  { return filepath.Join(p.State, "addresses.json") }
func (p Paths) member() string { return filepath.Join(p.State, "node.json") }

// Config of a node.
type Config struct {
	Paths Paths
	// Host is the name the cluster knows this node by; empty means the
	// machine's host name. It must be unique in the cluster.
	Host string
	// Management is an interface or address to talk over; empty means the
	// wired NIC that is no ConnectX. Init and Join remember it.
	Management string
	// Witness joins as one that votes and gets no ranks.
	Witness bool
	// FabricPorts are the ports for jobs, by any of their names
	// (envgen.PortsByName), and no others are; empty means all but those of a
	// LAN. Init and Join remember them.
	FabricPorts []string
	RPCPort     int // 0 means DefaultRPCPort
	GossipPort  int // 0 means DefaultGossipPort
	// MemoryFloor in bytes: below it the largest job is ended and none taken. nil means
	// agent.DefaultMemoryFloor, 0 none.
	MemoryFloor *int64
	KeepLogs    logs.Keep // of ended jobs' output
	// PacketFilter guards the ranks' ports (agent.Config.Filter). Nil: nothing does.
	PacketFilter func(map[launcher.Key]launcher.Filter) error
	// Announce has a member say by mDNS, on the management link, that it is there.
	Announce bool
	// NetplanApply is a program to run in place of `netplan apply`: for tests on
	// hosts without networkd. Empty means the real one.
	NetplanApply string
	// Supervise runs beside the node, and again in each of its lives; its end is the
	// node's. Nil: nobody asks.
	Supervise func(context.Context, Supervised) error
	Version   string
	// Now is the clock that certificates are judged by, for tests that move it; nil means time.Now.
	Now    func() time.Time
	Logger *slog.Logger // nil discards

	protocol *int // nil means rendezvous.Protocol; a test's own has another
}

// speaks is rendezvous.Protocol, but in tests of other builds.
func (c Config) speaks() int {
	if c.protocol != nil {
		return *c.protocol
	}
	return rendezvous.Protocol
}

func (c Config) withDefaults() (Config, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.MemoryFloor == nil {
		c.MemoryFloor = new(agent.DefaultMemoryFloor())
	}
	if c.RPCPort == 0 {
		c.RPCPort = DefaultRPCPort
	}
	if c.GossipPort == 0 {
		c.GossipPort = DefaultGossipPort
	}
	for flag, port := range map[string]int{"--rpc-port": c.RPCPort, "--gossip-port": c.GossipPort} {
		if port < 1 || port > 65535 {
			return c, fmt.Errorf("%s %d: %w: want 1 to 65535", flag, port, launcher.ErrInvalid)
		}
	}
	if c.RPCPort == c.GossipPort {
		return c, fmt.Errorf("--rpc-port and --gossip-port %d: %w: they must differ", c.RPCPort, launcher.ErrInvalid)
	}
	if c.Host == "" {
		host, err := os.Hostname()
		if err != nil {
			return c, fmt.Errorf("read host name: %w", err)
		}
		c.Host = host
	}
	return c, nil
}

// Errors that the CLI has hints for.
var (
	// ErrNoAgent: nothing listens on the agent's socket.
	ErrNoAgent = errors.New("no sparkrun agent runs on this machine")
	// ErrNotEnrolled: this machine belongs to no cluster.
	ErrNotEnrolled = errors.New("this machine is in no cluster")
	// ErrEnrolled: it belongs to one already.
	ErrEnrolled = errors.New("this machine is in a cluster already")
	// ErrRunning: another agent has this machine's state open.
	ErrRunning = errors.New("another sparkrun agent runs on this machine")
)

// membership is what a node must remember besides keys: node.json.
type membership struct {
	Node       launcher.NodeID `json:"node"`
	Cluster    string          `json:"cluster"`
	Host       string          `json:"host"`
	Management string          `json:"management,omitempty"` // as the user asked
	// FabricPorts are as the user asked.
	FabricPorts []string `json:"fabric_ports,omitempty"`
	RPCPort     int      `json:"rpc_port"`
	GossipPort  int      `json:"gossip_port"`
	// Witness: this node gets no ranks.
	Witness bool `json:"witness,omitempty"`
}

func loadMembership(p Paths) (membership, error) {
	var m membership
	b, err := os.ReadFile(p.member())
	if err != nil {
		return m, fmt.Errorf("read membership: %w", err)
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("read membership %s: %w", p.member(), err)
	}
	return m, nil
}

// ClusterOf reads the id of the cluster that a node.json is of.
func ClusterOf(text []byte) (string, error) {
	var m membership
	if err := json.Unmarshal(text, &m); err != nil {
		return "", fmt.Errorf("read membership: %w", err)
	}
	if m.Cluster == "" {
		return "", errors.New("read membership: it names no cluster")
	}
	return m.Cluster, nil
}

// Enrolled tells whether this machine is in a cluster, whether its agent runs or not.
func Enrolled(p Paths) (bool, error) {
	_, err := os.Stat(p.member())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// save replaces node.json as a whole and durably: after a power cut the node
// must still know its peers.
func (m membership) save(p Paths) error {
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("write membership: %w", err)
	}
	if err := durable.Write(p.member(), append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("write membership: %w", err)
	}
	return nil
}

// checkFree refuses to enrol a machine twice: it would become a second node of
// the first cluster, or lose it.
func checkFree(p Paths) error {
	enrolled, err := trust.Enrolled(p.trust())
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%s belongs to root: run it as root (sudo)", p.State)
	}
	if err != nil {
		return err
	}
	if !enrolled {
		return nil
	}
	m, err := loadMembership(p)
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: %s, as %s", ErrEnrolled, m.Cluster, m.Host)
}

// claim takes the state folder for an enrolment. An agent that runs holds the
// lock, and "in a cluster already" says more; so that is asked first, and again
// once nobody else can change the answer.
func claim(p Paths) (*os.File, error) {
	if err := checkFree(p); err != nil {
		return nil, err
	}
	held, err := lock(p)
	if err != nil {
		return nil, err
	}
	if err := checkFree(p); err != nil {
		held.Close()
		return nil, err
	}
	return held, nil
}

// lock makes sure that one agent at a time uses a state folder. The kernel lets
// go of it with the process, whatever way that ends.
func lock(p Paths) (*os.File, error) {
	if err := os.MkdirAll(p.State, 0o755); err != nil {
		return nil, fmt.Errorf("open state folder: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(p.State, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open state folder: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("%w (it holds %s)", ErrRunning, p.State)
	}
	return f, nil
}

// AwaitExit waits until no agent has this machine's state open.
func AwaitExit(ctx context.Context, p Paths) error {
	f, err := os.OpenFile(filepath.Join(p.State, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open state folder: %w", err)
	}
	held := make(chan error, 1)
	go func() { // ends when the lock is free, or with the process
		held <- syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		f.Close()
	}()
	select {
	case err := <-held:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// hardware reads this machine's hardware and settles its management address.
func hardware(ctx context.Context, cfg Config) (*fabric.Reader, envgen.Inventory, envgen.ManagementChoice, error) {
	r, err := fabric.New(fabric.Config{Sysfs: cfg.Paths.Sysfs, Hostname: func() (string, error) { return cfg.Host, nil }, Log: cfg.Logger})
	if err != nil {
		return nil, envgen.Inventory{}, envgen.ManagementChoice{}, err
	}
	inv, err := r.Read(ctx)
	if err != nil {
		return nil, inv, envgen.ManagementChoice{}, err
	}
	inv.FabricPorts = cfg.FabricPorts
	mgmt, err := envgen.Management(inv, cfg.Management)
	return r, inv, mgmt, err
}

// removeState takes back an enrolment. The ranks' output is kept.
func removeState(p Paths) error {
	// The identity goes first: without it the rest is no membership. The fence
	// goes too: the leaders of another cluster may have lower terms.
	return errors.Join(os.RemoveAll(p.trust()), ignoreMissing(os.Remove(p.member())), failover.Remove(p.State, p.Run),
		ignoreMissing(os.Remove(p.where())), ignoreMissing(os.Remove(filepath.Join(p.Run, "fence.json"))))
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// joinTimeout bounds a join as a whole.
const joinTimeout = 30 * time.Second
