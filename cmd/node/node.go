package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/cmd/node/checkup"
	"github.com/sparkrun/sparkrun/cmd/node/gateway"
	"github.com/sparkrun/sparkrun/cmd/node/jobs"
	"github.com/sparkrun/sparkrun/cmd/node/metrics"
	"github.com/sparkrun/sparkrun/cmd/node/models"
	"github.com/sparkrun/sparkrun/cmd/node/network"
	"github.com/sparkrun/sparkrun/cmd/node/rollout"
	"github.com/sparkrun/sparkrun/cmd/node/sampler"
	"github.com/sparkrun/sparkrun/cmd/node/server"
	"github.com/sparkrun/sparkrun/cmd/node/status"
	"github.com/sparkrun/sparkrun/cmd/node/survey"
	"github.com/sparkrun/sparkrun/cmd/node/web"
	"github.com/sparkrun/sparkrun/cmd/node/why"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/agent"
	"github.com/sparkrun/sparkrun/launcher/policy"
	"github.com/sparkrun/sparkrun/launcher/preflight"
	"github.com/sparkrun/sparkrun/launcher/proc"
	"github.com/sparkrun/sparkrun/launcher/shim"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/audit"
	"github.com/sparkrun/sparkrun/rendezvous/clone"
	"github.com/sparkrun/sparkrun/rendezvous/control"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/failover"
	"github.com/sparkrun/sparkrun/rendezvous/gossip"
	"github.com/sparkrun/sparkrun/rendezvous/membership"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

// node is a running agent.
type node struct {
	cfg    Config
	self   rendezvous.Self
	record *rendezvous.Record
	audit  audit.Trail
	runCtx context.Context // of the run, which ends a little after the node is asked to stop
	end    context.CancelFunc

	survey   *survey.Survey
	dial     *dial.Dialer
	clones   *clone.Finder
	agent    *agent.Agent
	failover *failover.Failover
	network  *network.Network
	members  *membership.Membership
	toLeader *wire.ToLeader
	status   *status.Status
	control  *control.Control
	rollout  *rollout.Node // this node's part in changes of addresses
	ranks    *jobs.Ranks
	models   *models.Models
	sampler  *sampler.Sampler
	metrics  *metrics.Metrics
	gateway  *gateway.Gateway
	follower *gateway.Follower // keeps what the gateway goes by
	visitors *web.Visitors     // whom the page knows
	server   *server.Server
	web      *web.Web

	leads  rendezvous.Latest[launcher.NodeID] // the node whose control stream this node has; empty for none
	routes rendezvous.Latest[gateway.View]    // the leader's map for the gateway
}

// Run is the agent: it keeps this machine in its cluster until ctx ends or the
// machine has left.
func Run(ctx context.Context, cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	held, err := cfg.Paths.Folder().Lock()
	if err != nil {
		return err
	}
	defer held.Close()
	for {
		if err := live(ctx, cfg, func(*node) {}); !errors.Is(err, failover.ErrReopen) {
			return err
		}
	}
}

// live opens a node, runs it and closes it; failover.ErrReopen asks for it to be opened
// again.
func live(ctx context.Context, cfg Config, opened func(*node)) error {
	n, err := open(ctx, cfg)
	if err != nil {
		return err
	}
	defer n.close()
	opened(n)
	return n.run(ctx)
}

// open reads what this machine remembers and re-attaches to its ranks.
func open(ctx context.Context, cfg Config) (_ *node, err error) {
	enrolled, err := trust.Enrolled(cfg.Paths.trust())
	if err != nil {
		return nil, err
	}
	if !enrolled {
		return nil, fmt.Errorf("%w: run `sparkrun init` on the first one, `sparkrun join ADDR` on the others",
			membership.ErrNotEnrolled)
	}
	rules, err := policy.Read(cfg.Paths.Policy)
	if err != nil {
		return nil, err
	}
	modelDir, modelReaders, err := modelPlace(ctx, cfg.Paths, rules)
	if err != nil {
		return nil, err
	}
	m, err := cfg.Paths.Folder().Enrolment()
	if err != nil {
		return nil, err
	}
	cfg.Host, cfg.RPCPort, cfg.GossipPort = m.Host, m.RPCPort, m.GossipPort
	if cfg.Management == "" {
		cfg.Management = m.Management
	}
	if len(cfg.FabricPorts) == 0 {
		cfg.FabricPorts = m.FabricPorts
	}
	kept := &checkup.Recent{}
	cfg.Logger = kept.Remember(cfg.Logger)
	reader, inv, _, err := hardware(ctx, cfg)
	if err != nil && !errors.Is(err, envgen.ErrNoManagement) {
		return nil, err // with no address yet, run waits for one
	}
	boot, err := reader.BootID()
	if err != nil {
		return nil, err
	}
	self := rendezvous.Self{
		ID: m.Node, Cluster: m.Cluster, Host: m.Host, Boot: boot, RPCPort: uint16(m.RPCPort), Version: cfg.Version,
		Protocol: cfg.speaks(),
	}
	n := &node{cfg: cfg, self: self, record: rendezvous.NewRecord()}
	present := new(rendezvous.Latest[[]gossip.Peer]) // who gossip knows, the silent too; network writes it
	n.runCtx, n.end = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			n.end()
		}
	}()
	n.audit.Host = m.Host
	if n.audit.Log, err = audit.Open(audit.Config{Path: cfg.Paths.audit(), Logger: cfg.Logger}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			n.audit.Close()
		}
	}()
	list, err := membership.OpenList(membership.ListConfig{
		Self: m.Node, Trust: cfg.Paths.trust(), Record: n.record, Now: cfg.Now, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	keys := membership.NewKeyring(membership.KeyringConfig{Trust: cfg.Paths.trust(), Record: n.record, Logger: cfg.Logger})
	n.survey, err = survey.Open(survey.Config{
		Self: m.Node, Host: m.Host, Cluster: m.Cluster, Boot: boot, Reader: reader, First: inv, FabricPorts: cfg.FabricPorts,
		Trust: cfg.Paths.trust(), Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	inventory := &n.survey.Inventory
	n.dial, err = dial.Open(dial.Config{
		Path: cfg.Paths.Folder().Addresses(), Gate: list.Gate, Listed: list.Listed, Inventory: inventory,
		Present: present, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	n.clones = clone.New(clone.Config{
		Self: self, Management: cfg.Management, State: cfg.Paths.State, Gate: list.Gate, Dial: n.dial,
		Inventory: inventory, Logger: cfg.Logger,
	})
	if err = n.clones.Refuse(ctx); err != nil {
		return nil, err
	}
	addresses, locked := rollout.Machine(filepath.Join(cfg.Paths.State, "netplan"), cfg.NetplanApply, cfg.Logger),
		&rollout.Lock{}
	if err = rollout.Recover(ctx, addresses); err != nil { // before the agent takes jobs
		return nil, err
	}
	// Users pass through this folder to the socket; the agent's own files in it are 0700.
	if err = os.MkdirAll(cfg.Paths.Run, 0o755); err != nil {
		return nil, fmt.Errorf("make the run folder: %w", err)
	}
	secrets := jobs.SecretsOf(cfg.Paths.trust())
	allowed := jobs.Policy{Path: cfg.Paths.Policy, Host: m.Host, Audit: n.audit.Log}
	files, err := jobs.OpenFiles(jobs.FilesConfig{Self: m.Node, Dir: cfg.Paths.stage(), Dial: n.dial, Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	smi := usage.OpenSMI(cfg.Logger)
	n.agent, err = agent.Open(agent.Config{
		Servers: engine.Servers(),
		Node:    m.Node, Boot: boot, RunDir: cfg.Paths.Run, LogDir: cfg.Paths.logs(), StateDir: cfg.Paths.State,
		StageDir: cfg.Paths.stage(), CompileDir: cfg.Paths.compiled(), Files: files, DropCache: jobs.DropCache,
		Filter: cfg.PacketFilter, Secrets: secrets, Policy: allowed, Containers: jobs.Containers(cfg.Paths.Engine, m.Cluster),
		MemoryFloor: *cfg.MemoryFloor, ServicesFirst: cfg.ServicesFirst, GPUHeld: smi.HeldHere,
		Keep: cfg.KeepLogs, Fabric: n.survey.Env(locked.Refuse),
		AskHead: jobs.AskHead(n.dial), Shim: cfg.Shim, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			n.agent.Close()
		}
	}()
	n.failover, err = failover.Open(failover.Config{
		State: cfg.Paths.State, Run: cfg.Paths.Run, Trust: cfg.Paths.trust(), Self: self, Raise: n.agent.Raise,
		Record: n.record, Dial: n.dial,
		Inventory: inventory, Present: present, Leads: &n.leads, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			n.failover.Close()
		}
	}()
	n.network = network.New(network.Config{
		Self: self, Management: cfg.Management, GossipPort: uint16(cfg.GossipPort), Announce: cfg.Announce,
		Trust: cfg.Paths.trust(),
		Epoch: n.failover.Epoch(), Gate: list.Gate, Keys: keys, Record: n.record, Dial: n.dial, Clones: n.clones,
		Inventory: inventory, Present: present, Logger: cfg.Logger,
	})
	n.members, err = membership.Open(membership.Config{
		Self: self, Management: cfg.Management, List: list, Keyring: keys, Record: n.record, Dial: n.dial,
		Failover: n.failover,
		Agent:    n.agent, Present: present, Inventory: inventory, Audit: n.audit, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	n.toLeader = wire.NewToLeader(wire.ToLeaderConfig{Host: m.Host, Leader: n.members.Leader, Over: failover.NoLonger})
	n.status = status.New(status.Config{
		Self: self, Management: cfg.Management, Record: n.record, Dial: n.dial, Failover: n.failover, Leader: n.toLeader,
		NoLeader: n.members.NoLeader, Inventory: inventory, Present: present, Leads: &n.leads, Logger: cfg.Logger,
	})
	n.control = control.New(control.Config{
		Self: self, Agent: n.agent, Failover: n.failover, GPUs: func() int { return proc.Here.GPUs() },
		Memory:    preflight.MemoryForJobs(*cfg.MemoryFloor),
		Inventory: inventory, Present: present, Leads: &n.leads, Prepared: n.audit.Prepared, Logger: cfg.Logger,
	})
	n.rollout, err = rollout.Open(rollout.Config{
		Self: m.Node, Host: m.Host, Netplan: addresses, Lock: locked, Management: cfg.Management, Ledger: n.agent,
		Record:    n.record,
		Inventory: inventory, Leader: n.failover.Leader,
	})
	if err != nil {
		return nil, err
	}
	n.sampler = sampler.New(sampler.Config{
		Self: m.Node, Host: m.Host, Began: time.Now(), Links: n.survey.Links, SMI: smi,
		Reader:    usage.NewReader(proc.Here, cfg.Paths.Sysfs, smi, cfg.Paths.State, modelDir),
		Inventory: inventory, Counters: n.survey, Ranks: n.agent,
	})
	examined := checkup.New(checkup.Config{
		Self: m.Node, Host: m.Host, Boot: boot, Version: cfg.Version, Began: time.Now(), Management: cfg.Management,
		Machine: hostReader(cfg), Survey: n.survey, Recent: kept, Status: n.status.Of, Dial: n.dial,
		Listeners: n.network.Listeners, Usage: n.sampler.Now, Ledger: n.agent.Ledger,
		Allow: func(ctx context.Context, user string) error {
			return allowed.Run(ctx, launcher.Spec{ID: "doctor-load", User: user})
		},
		Logger: cfg.Logger,
	})
	n.ranks = jobs.New(jobs.Config{
		Self: m.Node, Host: m.Host, Record: n.record, Agent: n.agent, Files: files, Secrets: secrets, Policy: allowed,
		Dial: n.dial, Failover: n.failover, Present: present, Why: n.status.Why, Leader: n.toLeader,
		ByUser: n.audit.User, ByMember: n.audit.Member, Logger: cfg.Logger,
	})
	everyone := wire.Everyone{Self: m.Node, Status: n.status.Of, Client: n.dial.Client}
	n.models, err = models.Open(models.Config{
		Self: m.Node, Host: m.Host, Dir: modelDir, Readers: modelReaders, Orders: cfg.Paths.orders(),
		Images: cfg.Paths.images(), Engine: cfg.Paths.Engine, Allow: allowed.Contain, Endpoint: cfg.HubEndpoint,
		Version: cfg.Version, Dial: n.dial, Everyone: everyone, Unseal: secrets.Open, Reserve: shim.ReservedBytes,
		Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	looks := why.New(why.Config{
		Self: m.Node, Host: m.Host, Agent: n.agent, Survey: n.survey, Dial: n.dial, Proc: proc.Here, Groups: proc.GroupsHere,
		Machine: n.sampler.Now, Past: n.sampler.Past, Jobs: n.ranks.All, Status: n.status.Of,
	})
	n.metrics = metrics.New(metrics.Config{
		Self: m.Node, Host: m.Host, Version: cfg.Version, Port: uint16(cfg.GatewayPort), MemoryFloor: *cfg.MemoryFloor,
		Proc: proc.Here, Record: n.record, Members: list.Members, Present: present, Inventory: inventory, Raft: n.failover,
		Sampler: n.sampler, Ranks: n.agent,
	})
	n.follower = gateway.NewFollower(gateway.FollowerConfig{
		Self: m.Node, Host: m.Host, Here: n.toLeader, Leader: n.members.Leader, Leads: &n.leads,
		Elected: n.failover.Raft().LeaderChanged, Map: &n.routes, Logger: cfg.Logger,
	})
	managed := func() (netip.Addr, <-chan struct{}) {
		now, changed := inventory.Watch()
		choice, err := envgen.Management(now, cfg.Management)
		if err != nil {
			return netip.Addr{}, changed // it has none yet
		}
		return choice.Addr, changed
	}
	n.gateway, err = gateway.Open(gateway.Config{
		Host: m.Host, Port: uint16(cfg.GatewayPort), Map: &n.routes, Passing: cfg.Requests, Cert: cfg.GatewayCert, Key: cfg.GatewayKey,
		Sign: n.follower.Sign, Use: n.follower.Use, Metrics: n.metrics.Serve, Management: managed,
		Shared: cfg.WebPort != 0, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	n.visitors = web.OpenVisitors(web.VisitorsConfig{
		Host: m.Host, Port: uint16(cfg.WebPort), Path: cfg.Paths.sessions(), Management: managed,
		Certificate: n.gateway.Certificate, Logger: cfg.Logger,
		Listed: func(client string) bool { _, listed := list.Client(client); return listed },
	})
	n.server = server.New(server.Config{
		Socket: cfg.Paths.Socket, List: list, Members: n.members, Failover: n.failover, Leader: n.toLeader,
		Everyone: everyone,
		Clients:  cfg.clients, Bulk: n.models.Handler(), Audit: n.audit, Logger: cfg.Logger,
	}, slices.Concat(n.status.Calls(), n.members.Calls(), n.failover.Calls(), n.control.Calls(), examined.Calls(),
		n.rollout.Calls(), n.ranks.Calls(), n.models.Calls(), n.sampler.Calls(), looks.Calls(), n.gateway.Calls(),
		n.visitors.Calls())...)
	n.web = web.New(web.Config{
		Host: m.Host, Version: cfg.Version, Visitors: n.visitors, As: n.server.As, Logger: cfg.Logger,
	})
	n.agent.Sweep(n.ranks.Over)
	return n, nil
}

func (n *node) close() {
	n.end()
	n.failover.Close()
	n.agent.Close()
	n.ranks.Close()
	n.models.Close()
	n.gateway.Close()
	n.metrics.Close()
	n.dial.Close()
	n.audit.Close()
	select {
	case <-n.members.Left():
		if err := n.cfg.Paths.Folder().Remove(n.cfg.Paths.Run); err != nil {
			n.cfg.Logger.Error("remove state", "error", err)
		}
	default:
	}
}

// run runs the parts; the first error ends all. When asked ends, they go on until this
// node's leadership and vote are in other hands.
func (n *node) run(asked context.Context) error {
	aside := make(chan struct{})
	unasked := context.AfterFunc(asked, func() {
		defer close(aside)
		n.failover.StepAside(n.runCtx)
		n.end()
	})
	defer func() {
		if !unasked() {
			<-aside
		}
	}()
	defer n.end()
	g, ctx := errgroup.WithContext(n.runCtx)
	g.Go(func() error { return n.server.Run(ctx) })
	if n.cfg.Supervise != nil {
		g.Go(func() error { return n.supervised(ctx, asked) })
	}
	g.Go(func() error { return n.survey.Run(ctx) })
	g.Go(func() error { return n.status.Run(ctx) })
	g.Go(func() error { return n.network.Run(ctx, n.server.Serve) })
	g.Go(func() error { return n.clones.Run(ctx) })
	g.Go(func() error { return n.dial.Run(ctx) })
	g.Go(func() error { return n.ranks.Run(ctx) })
	g.Go(func() error { return n.models.Run(ctx) })
	g.Go(func() error { return n.sampler.Run(ctx) })
	g.Go(func() error { return n.follower.Run(ctx) })
	g.Go(func() error { return n.gateway.Run(ctx) })
	g.Go(func() error { return n.web.Run(ctx) })
	g.Go(func() error { return n.failover.Run(ctx, n.lead) })
	g.Go(func() error { return n.members.Run(ctx) })
	err := g.Wait()
	if errors.Is(err, membership.ErrLeft) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
