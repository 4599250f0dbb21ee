package cluster

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filter"
	"github.com/sparkrun/sparkrun/launcher/logs"
)

type agentOptions struct {
	verbose                 bool
	management              string
	fabricPorts             []string
	memoryFloor             *int64
	victim                  string
	keep                    logs.Keep
	unfiltered              bool
	silent                  bool
	gateway, web            int
	gatewayCert, gatewayKey string
}

const victimService = "service" // of --memory-victim

// NewAgentCmd makes `sparkrun agent`.
func NewAgentCmd(a *app.App) *cobra.Command {
	opts := &agentOptions{}
	var floor int64
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Keep this machine in its cluster: the daemon",
		Long: `Runs in the foreground until TERM or Ctrl-C, and logs to standard error. It keeps
this machine in the cluster, takes part in electing a leader, leads when elected,
starts and ends ranks, and answers the other commands on
/run/sparkrun/agent.sock.

Ending or killing it ends no job: ranks go on, and the next agent finds them. It
must run as root to start ranks as the users who ask for them. A machine that is
in no cluster has no use for it: run sparkrun init or sparkrun join first.

Jobs use every ConnectX port but those of a LAN (sparkrun init and join remember
another choice); --fabric-port names the ports for jobs for as long as this agent
runs. A port that is not there is warned of, and counts once it is. --management
likewise names the NIC or address that the cluster talks over.

While a job has ranks here, the nftables table "inet sparkrun" keeps all hosts but the
job's from connecting to them; no other table is touched. Its counters tell what was
dropped (nft list table inet sparkrun). --no-packet-filter does without.

It says by mDNS (_sparkrun._tcp), on the management network alone, that this machine is
there: its name and address, the cluster's id and the fingerprint of its CA; sparkrun
join finds it by that. UDP port 5353 is shared with avahi. --no-mdns does without.

A machine whose memory, which is the GPU's too, runs out would hang: the memory guard
ends a job before. It does so with less than --memory-floor available (page cache
counts as available), where a fall reaches that within 3 s, and where with less than a
fifth of the memory two of these agree: a fall that reaches it within 10 s, stalls of
all tasks, reads from swap. The job that holds most goes, the GPU's memory included.
With --memory-victim service a service goes before a larger job that was there first.

SPARKRUN_LOG=debug says more, as --verbose does. SPARKRUN_NETPLAN_APPLY=PROGRAM
runs that program in place of netplan apply: for tests on hosts without networkd.`,
		Example: `  sudo systemctl start sparkrun
  sudo sparkrun agent --verbose
  sudo sparkrun agent --fabric-port 0 --management enP7s7
  sudo sparkrun agent --memory-floor 4GiB --keep-logs 50 --keep-logs-for 720h --keep-logs-size 20GiB`,
		Args: app.Takes(0, ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("memory-floor") {
				opts.memoryFloor = &floor
			}
			return app.Running(a, opts, runAgent)(cmd, args)
		},
	}
	cmd.Flags().Var(app.Amount{N: &floor}, "memory-floor",
		"with less memory available end the largest job here, and take none; 0: never (default: 2.5%, at least 1GiB)")
	cmd.Flags().Var(app.Choice{V: &opts.victim, Words: []string{"largest", victimService}}, "memory-victim",
		"which one: with service, a service goes before a larger job that was there first (default: largest)")
	cmd.Flags().Var(app.Positive{N: &opts.keep.Jobs}, "keep-logs",
		"keep the output, and the --stage files, of so many jobs on this machine (default: 200)")
	cmd.Flags().Var(app.Span{D: &opts.keep.For}, "keep-logs-for", "keep a job's output for so long (default: for ever)")
	cmd.Flags().Var(app.Amount{N: &opts.keep.Bytes}, "keep-logs-size",
		"keep so much output of all jobs together; 0: any (default: any)")
	cmd.Flags().BoolVar(&opts.unfiltered, "no-packet-filter", false,
		"let every host connect to the ranks of jobs here; launches say so")
	cmd.Flags().BoolVar(&opts.silent, "no-mdns", false, "do not announce this machine on the management network")
	cmd.Flags().IntVar(&opts.gateway, "gateway", defaultGateway,
		"port of the one address for all models (sparkrun gateway); 0: none here")
	cmd.Flags().StringVar(&opts.gatewayCert, "gateway-cert", "",
		"a `FILE` with this machine's certificate, PEM: the gateway speaks TLS but on loopback; read again when renewed")
	cmd.Flags().StringVar(&opts.gatewayKey, "gateway-key", "", "the `FILE` with that certificate's key")
	cmd.Flags().IntVar(&opts.web, "web", defaultWeb, "port of the page (sparkrun web); 0: none here")
	cmd.Flags().BoolVarP(&opts.verbose, "verbose", "v", false, "log every step")
	app.ManagementFlag(cmd.Flags(), &opts.management)
	app.FabricPortFlag(cmd.Flags(), &opts.fabricPorts)
	return cmd
}

// An agent must cost a machine little: neither processor time, which belongs to the ranks,
// nor more than 64 MB, and where it leads half a MB for each member. Its heap is a few MB,
// and is collected when four times that is garbage (GOGC sets another share, in percent). Bursts of output or jobs would let it
// grow: from GOMEMLIMIT on, in bytes, the collector works harder. A leader keeps what it
// knows of each member, and its streams' buffers: 350 KB each. It runs on two cores
// (GOMAXPROCS): for each further one the runtime keeps up to a MB of free memory. The
// program's own pages and raft's mapped log come on top.
const (
	agentGarbage = 400
	agentMemory  = 32 << 20
	memberMemory = 512 << 10
	// requestMemory is what a stream through the gateway takes: two connections with their buffers, and its body.
	requestMemory = 48 << 10
	agentCores    = 2
)

// memoryLimits are told how many members there are to lead, and how many requests go through the gateway, and set the
// limit by both.
func memoryLimits() (members, requests func(int)) {
	var mu sync.Mutex
	var lead, pass int64
	set := func(of *int64, each int64) func(int) {
		return func(n int) {
			mu.Lock()
			defer mu.Unlock()
			*of = int64(n) * each
			debug.SetMemoryLimit(agentMemory + lead + pass)
		}
	}
	members, requests = set(&lead, memberMemory), set(&pass, requestMemory)
	members(0)
	return members, requests
}

// defaultGateway and defaultWeb follow the agent's other ports, 7940 and 7941.
const defaultGateway, defaultWeb = 7942, 7943

var errUnfiltered = errors.New("its agent runs with --no-packet-filter")

func runAgent(ctx context.Context, a *app.App, o agentOptions) error {
	level := slog.LevelInfo
	if text, set := a.Getenv("SPARKRUN_LOG"); set && text != "" {
		if err := level.UnmarshalText([]byte(text)); err != nil {
			return app.Usagef("SPARKRUN_LOG=%s: want debug, info, warn or error", text)
		}
	}
	if _, set := a.Getenv("GOGC"); !set {
		debug.SetGCPercent(agentGarbage)
	}
	members, requests := func(int) {}, func(int) {}
	if _, set := a.Getenv("GOMEMLIMIT"); !set {
		members, requests = memoryLimits()
	}
	if _, set := a.Getenv("GOMAXPROCS"); !set {
		runtime.GOMAXPROCS(min(agentCores, runtime.NumCPU()))
	}
	if o.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(a.Err, &slog.HandlerOptions{Level: level}))
	if err := calmMonitor(); err != nil { // then it costs more, and does the same
		log.Debug("timer slack", "error", err)
	}
	var table filter.Table
	guard := table.Apply
	if o.unfiltered {
		guard = func(map[launcher.Key]launcher.Filter) error {
			return errors.Join(table.Apply(nil), errUnfiltered)
		}
	}
	c := nodeConfig(a, node.Config{
		PacketFilter: guard, Announce: !o.silent, Members: members,
		Management: o.management, FabricPorts: o.fabricPorts, MemoryFloor: o.memoryFloor, KeepLogs: o.keep,
		ServicesFirst: o.victim == victimService,
		GatewayPort:   o.gateway, GatewayCert: o.gatewayCert, GatewayKey: o.gatewayKey, WebPort: o.web, Requests: requests,
		Supervise: supervise(a, log), Shim: a.Shim, Logger: log,
	})
	if err := node.Run(ctx, c); err != nil && ctx.Err() == nil {
		return err
	}
	return nil // it was asked to end
}
