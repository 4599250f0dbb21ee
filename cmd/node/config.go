// Package node makes a whole node of the parts: it wires identity, gossip,
// raft, the leader's brain, the agent and the RPC together, and is the only
// place that knows all of them. Tests run several nodes in one process with it.
//
// It must not decide what the parts decide; its only choice is which of them to ask.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node/server"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/fabric"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/logs"
	"github.com/sparkrun/sparkrun/launcher/preflight"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/membership"
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

// SystemState is the state of the agent that systemd starts: see scripts/sparkrun.service.
const SystemState = "/var/lib/sparkrun"

// DefaultPaths are those of a system's agent, or what the environment says.
func DefaultPaths() Paths {
	or := func(name, otherwise string) string {
		if v := os.Getenv(name); v != "" {
			return v
		}
		return otherwise
	}
	p := Paths{
		State: or("SPARKRUN_STATE", SystemState),
		Run:   or("SPARKRUN_RUN", "/run/sparkrun"),
		Sysfs: or("SPARKRUN_SYSFS", "/sys"),

		Engine: or("SPARKRUN_ENGINE", "/var/run/docker.sock"),
		Policy: or("SPARKRUN_POLICY", "/etc/sparkrun/policy.yaml"),
	}
	p.Socket = or("SPARKRUN_SOCKET", filepath.Join(p.Run, "agent.sock"))
	return p
}

// Folder is State as the folder of the node's membership.
func (p Paths) Folder() membership.Folder { return membership.Folder(p.State) }
func (p Paths) trust() string             { return p.Folder().Trust() }
func (p Paths) audit() string             { return filepath.Join(p.State, "audit.log") }
func (p Paths) logs() string              { return filepath.Join(p.State, "logs") }
func (p Paths) stage() string             { return filepath.Join(p.State, "stage") }
func (p Paths) models() string            { return filepath.Join(p.State, "models") }
func (p Paths) compiled() string          { return filepath.Join(p.State, "compiled") }
func (p Paths) images() string            { return filepath.Join(p.State, "images") }
func (p Paths) sessions() string          { return filepath.Join(p.Run, "web.json") }
func (p Paths) orders() string            { return filepath.Join(p.State, "orders") }

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
	RPCPort     int // 0 means membership.DefaultRPCPort
	GossipPort  int // 0 means membership.DefaultGossipPort
	// GatewayPort is where the one address for all models is, on each member; 0: this one has none.
	GatewayPort int
	// WebPort is where the page is, on each member; 0: this one has none.
	WebPort int
	// GatewayCert and GatewayKey are the files of its certificate; both empty: it has none.
	GatewayCert, GatewayKey string
	// MemoryFloor in bytes: below it, or on the way there, the largest job is ended and none taken. nil means
	// preflight.DefaultMemoryFloor, 0 none.
	MemoryFloor *int64
	// ServicesFirst has it end a service before a larger job that was there first.
	ServicesFirst bool
	KeepLogs      logs.Keep // of ended jobs' output
	// guards the ranks' ports (agent.Config.Filter); nil: no filter
	PacketFilter func(map[launcher.Key]launcher.Filter) error
	// Members is told how many members this node leads, 0 if it does not lead: its memory grows with them. nil: nobody.
	Members func(n int)
	// Requests is told about how many requests go through the gateway: memory grows with them, too. nil: nobody.
	Requests func(n int)
	// Announce has this member announce itself by mDNS on the management link.
	Announce bool
	// HubEndpoint is where models are fetched from: HF_ENDPOINT of the agent; empty: Hugging Face's Hub.
	HubEndpoint string
	// NetplanApply is a program to run in place of `netplan apply`: for tests on
	// hosts without networkd. Empty means the real one.
	NetplanApply string
	// Supervise runs beside the node, and again after each reopening; when it ends, the
	// node ends. Nil: no supervisor.
	Supervise func(context.Context, Supervised) error
	Version   string
	// Shim is the shim's program, which the agent starts; nil: this program is.
	Shim []byte
	// Now is the clock that certificates are judged by, for tests that move it; nil means time.Now.
	Now    func() time.Time
	Logger *slog.Logger // nil discards

	clients  server.Quota // of one user's clients; tests set a smaller one
	protocol *int         // nil means rendezvous.Protocol; tests set another
}

// speaks is rendezvous.Protocol, except in tests of other builds.
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
		c.MemoryFloor = new(preflight.DefaultMemoryFloor())
	}
	if c.RPCPort == 0 {
		c.RPCPort = membership.DefaultRPCPort
	}
	if c.GossipPort == 0 {
		c.GossipPort = membership.DefaultGossipPort
	}
	for flag, port := range map[string]int{"--rpc-port": c.RPCPort, "--gossip-port": c.GossipPort} {
		if port < 1 || port > 65535 {
			return c, fmt.Errorf("%s %d: %w: want 1 to 65535", flag, port, launcher.ErrInvalid)
		}
	}
	if c.GatewayPort < 0 || c.GatewayPort > 65535 || c.GatewayPort != 0 && c.GatewayPort == c.RPCPort {
		return c, fmt.Errorf("--gateway %d: %w: want a free port up to 65535, or 0 for none", c.GatewayPort,
			launcher.ErrInvalid)
	}
	if c.WebPort < 0 || c.WebPort > 65535 || c.WebPort != 0 && (c.WebPort == c.RPCPort || c.WebPort == c.GatewayPort) {
		return c, fmt.Errorf("--web %d: %w: want a free port up to 65535, or 0 for none", c.WebPort, launcher.ErrInvalid)
	}
	if (c.GatewayCert == "") != (c.GatewayKey == "") {
		return c, fmt.Errorf("--gateway-cert, --gateway-key: %w: a certificate and its key go together", launcher.ErrInvalid)
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

// ErrNoAgent says that nothing listens on the agent's socket.
var ErrNoAgent = errors.New("no sparkrun agent runs on this machine")

// hardware reads this machine's hardware and chooses its management address.
func hardware(ctx context.Context, cfg Config) (*fabric.Reader, envgen.Inventory, envgen.ManagementChoice, error) {
	r, err := fabric.New(fabric.Config{Sysfs: cfg.Paths.Sysfs,
		Hostname: func() (string, error) { return cfg.Host, nil }, Log: cfg.Logger})
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
