package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/cmd/node/checkup"
	"github.com/sparkrun/sparkrun/cmd/node/jobs"
	"github.com/sparkrun/sparkrun/cmd/node/rollout"
	"github.com/sparkrun/sparkrun/cmd/node/survey"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/agent"
	"github.com/sparkrun/sparkrun/launcher/policy"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/audit"
	"github.com/sparkrun/sparkrun/rendezvous/clone"
	"github.com/sparkrun/sparkrun/rendezvous/control"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/failover"
	"github.com/sparkrun/sparkrun/rendezvous/gossip"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

// node is a running agent.
type node struct {
	cfg  Config
	log  *slog.Logger
	boot string

	gate  *trust.Gate
	door  *trust.Listener
	audit trail
	// visitors are the users whose clients call here.
	visitors *books
	survey   *survey.Survey
	checkup  *checkup.Checkup
	record   *rendezvous.Record
	failover *failover.Failover
	control  *control.Control
	agent    *agent.Agent
	dial     *dial.Dialer
	clones   *clone.Finder
	ranks    *jobs.Ranks
	rollout  *rollout.Node // this node's part in changes of addresses

	server    func() *wire.Server // of all calls, made once
	left      chan struct{}       // closed when this node has left the cluster
	leaveOnce sync.Once
	leaving   rendezvous.Latest[bool] // this node is to leave, or its agent to end: as a leader it passes that on
	life      context.Context         // of the run, which ends a little after it is asked to
	end       context.CancelFunc
	began     time.Time

	listening chan struct{} // closed when it does on its socket
	reachable chan struct{} // closed when it is at a management address, the first of this life
	reached   sync.Once
	// roll is the list of members as told last; rollAsk has room for one who is not on it. ringing is
	// over the files of both, roll and gossip keys.
	roll    rendezvous.Latest[*wire.MemberList]
	rollAsk chan struct{}
	shunned atomic.Bool // all that answered this node when it asked refused it
	ringing sync.Mutex
	parting sync.Map      // by id, who asks to leave; see parts
	parted  chan struct{} // that time is over for one; has room for one

	gossip atomic.Pointer[gossip.Gossip]

	// What changes, and who waits for it; each has one writer.
	inventory *rendezvous.Latest[envgen.Inventory] // the survey's
	present   rendezvous.Latest[[]gossip.Peer]     // members as gossip knows them, the silent ones too
	leads     rendezvous.Latest[launcher.NodeID]   // whose control stream this node has; empty for none
	leading   rendezvous.Latest[*leadership]       // this node's own; nil while it does not lead

	m membership
}

// Run is the agent: it keeps this machine in its cluster until ctx ends or the
// machine has left.
func Run(ctx context.Context, cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	held, err := lock(cfg.Paths)
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

// live is a node from its opening to its end; failover.ErrReopen asks for another life.
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
		return nil, fmt.Errorf("%w: run `sparkrun init` on the first one, `sparkrun join ADDR` on the others", ErrNotEnrolled)
	}
	id, err := trust.LoadIdentity(cfg.Paths.trust())
	if err != nil {
		return nil, err
	}
	if _, err := policy.Read(cfg.Paths.Policy); err != nil {
		return nil, err
	}
	m, err := loadMembership(cfg.Paths)
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
	n := &node{
		cfg: cfg, m: m, log: cfg.Logger, record: rendezvous.NewRecord(),
		left:      make(chan struct{}),
		listening: make(chan struct{}), reachable: make(chan struct{}), began: time.Now(), rollAsk: make(chan struct{}, 1), parted: make(chan struct{}, 1),
		visitors: newBooks("calls", clientCalls),
	}
	n.server = sync.OnceValue(n.newServer)
	n.life, n.end = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			n.end()
		}
	}()
	n.audit.host = m.Host
	if n.audit.Log, err = audit.Open(audit.Config{Path: cfg.Paths.audit(), Logger: cfg.Logger}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			n.audit.Close()
		}
	}()
	if id, err = n.renewAlone(id); err != nil {
		return nil, err
	}
	if err = n.openGate(id); err != nil {
		return nil, err
	}
	reader, inv, _, err := hardware(ctx, cfg)
	if err != nil && !errors.Is(err, envgen.ErrNoManagement) {
		return nil, err // without an address yet, run waits for one
	}
	if n.boot, err = reader.BootID(); err != nil {
		return nil, err
	}
	self := rendezvous.Self{ID: m.Node, Cluster: m.Cluster, Host: m.Host, Boot: n.boot, RPCPort: uint16(m.RPCPort), Version: cfg.Version, Protocol: cfg.speaks()}
	n.survey, err = survey.Open(survey.Config{
		Self: m.Node, Host: m.Host, Cluster: m.Cluster, Boot: n.boot, Reader: reader, First: inv, FabricPorts: cfg.FabricPorts,
		Trust: cfg.Paths.trust(), Logger: n.log,
	})
	if err != nil {
		return nil, err
	}
	n.inventory = &n.survey.Inventory
	n.dial, err = dial.Open(dial.Config{
		Path: cfg.Paths.where(), Gate: n.gate, Listed: n.listed, Inventory: n.inventory, Present: &n.present, Logger: n.log,
	})
	if err != nil {
		return nil, err
	}
	n.clones = clone.New(clone.Config{
		Self: self, Management: cfg.Management, State: cfg.Paths.State, Gate: n.gate, Dial: n.dial, Inventory: n.inventory, Logger: n.log,
	})
	if err = n.clones.Refuse(ctx); err != nil {
		return nil, err
	}
	addresses, locked := rollout.Machine(filepath.Join(cfg.Paths.State, "netplan"), cfg.NetplanApply, n.log), &rollout.Lock{}
	if err = rollout.Recover(ctx, addresses); err != nil { // before the agent takes jobs
		return nil, err
	}
	// Users pass through it to the socket; what the agent keeps there is 0700.
	if err = os.MkdirAll(cfg.Paths.Run, 0o755); err != nil {
		return nil, fmt.Errorf("make the run folder: %w", err)
	}
	secrets := jobs.SecretsOf(cfg.Paths.trust())
	allowed := jobs.Policy{Path: cfg.Paths.Policy, Host: m.Host, Audit: n.audit.Log}
	files, err := jobs.OpenFiles(jobs.FilesConfig{Self: m.Node, Dir: cfg.Paths.stage(), Dial: n.dial, Logger: n.log})
	if err != nil {
		return nil, err
	}
	containers := jobs.Containers(cfg.Paths.Engine, m.Cluster)
	if containers != nil {
		containers.Over = jobs.Over(n.jobsFor)
	}
	n.agent, err = agent.Open(agent.Config{
		Servers: engine.Servers(),
		Node:    m.Node, Boot: n.boot, RunDir: cfg.Paths.Run, LogDir: cfg.Paths.logs(), StateDir: cfg.Paths.State,
		StageDir: cfg.Paths.stage(), Files: files, DropCache: jobs.DropCache, Filter: cfg.PacketFilter,
		Secrets: secrets, Policy: allowed, Containers: containers,
		MemoryFloor: *cfg.MemoryFloor, Keep: cfg.KeepLogs, Fabric: n.survey.Env(locked.Refuse), AskHead: jobs.AskHead(n.dial), Logger: cfg.Logger,
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
		State: cfg.Paths.State, Run: cfg.Paths.Run, Trust: cfg.Paths.trust(), Self: self, Raise: n.agent.Raise, Record: n.record, Dial: n.dial,
		Inventory: n.inventory, Present: &n.present, Leads: &n.leads, Logger: n.log,
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			n.failover.Close()
		}
	}()
	n.control = control.New(control.Config{
		Self: self, Agent: n.agent, Failover: n.failover, GPUs: func() int { return survey.GPUs("/proc") },
		Inventory: n.inventory, Leads: &n.leads, Prepared: n.audit.prepared, Logger: n.log,
	})
	if err = n.openDoor(); err != nil {
		return nil, err
	}
	n.rollout, err = rollout.Open(rollout.Config{
		Self: m.Node, Host: m.Host, Netplan: addresses, Lock: locked, Management: cfg.Management, Ledger: n.agent, Record: n.record,
		Inventory: n.inventory, Leader: n.failover.Leader,
	})
	if err != nil {
		return nil, err
	}
	n.checkup = checkup.New(checkup.Config{
		Self: m.Node, Host: m.Host, Boot: n.boot, Version: cfg.Version, Began: n.began, Management: cfg.Management,
		Machine: hostReader(cfg), Survey: n.survey, Recent: kept, Status: n.statusFor, Dial: n.dial, Listeners: n.listeners,
		Logger: n.log,
	})
	n.ranks = jobs.New(jobs.Config{
		Self: m.Node, Host: m.Host, Record: n.record, Agent: n.agent, Files: files, Secrets: secrets, Policy: allowed,
		Dial: n.dial, Failover: n.failover, Why: n.better, List: n.jobsFor,
		ByUser: n.audit.user, ByMember: n.audit.member, Logger: n.log,
	})
	n.agent.Sweep()
	return n, nil
}

func (n *node) close() {
	n.end()
	n.failover.Close()
	n.agent.Close()
	n.ranks.Close()
	n.dial.Close()
	n.audit.Close()
	select {
	case <-n.left:
		if err := removeState(n.cfg.Paths); err != nil {
			n.log.Error("remove state", "error", err)
		}
	default:
	}
}

// run keeps the parts going; the first that fails ends all. When asked ends, they
// go on until what this node leads and votes for is in other hands.
func (n *node) run(asked context.Context) error {
	aside := make(chan struct{})
	unasked := context.AfterFunc(asked, func() {
		defer close(aside)
		n.stepAside()
		n.end()
	})
	defer func() {
		if !unasked() {
			<-aside
		}
	}()
	defer n.end()
	g, ctx := errgroup.WithContext(n.life)
	g.Go(func() error { return n.serveLocal(ctx) })
	if n.cfg.Supervise != nil {
		g.Go(func() error { return n.supervised(ctx, asked) })
	}
	g.Go(func() error { return n.survey.Run(ctx) })
	g.Go(func() error { return n.network(ctx) })
	g.Go(func() error { return n.listensOnFabric(ctx) })
	g.Go(func() error { return n.clones.Run(ctx) })
	g.Go(func() error { return n.dial.Run(ctx) })
	g.Go(func() error { return n.reopens(ctx) })
	g.Go(func() error { return n.readdress(ctx) })
	g.Go(func() error { return n.failover.Run(ctx, n.lead) })
	g.Go(func() error { return n.keepCertificate(ctx) })
	g.Go(func() error { return n.keepRoll(ctx) })
	g.Go(func() error { return n.enforce(ctx) })
	g.Go(func() error { return n.rest(ctx) })
	g.Go(func() error {
		select {
		case <-n.left:
			return errLeft
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	err := g.Wait()
	if errors.Is(err, errLeft) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

var errLeft = errors.New("this node has left the cluster")

// serveLocal answers the CLI.
func (n *node) serveLocal(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(n.cfg.Paths.Socket), 0o755); err != nil {
		return fmt.Errorf("open agent socket: %w", err)
	}
	l, err := listenLocal(n.cfg.Paths.Socket)
	if err != nil {
		return err
	}
	if err := grantMembers(ctx, n.cfg.Paths.Socket); err != nil { // the group's own bits stand
		n.log.Warn("open socket to members by uid", "error", err)
	}
	close(n.listening)
	local := newLocals(l, n.log)
	return serve(ctx, local.server(n.server().Users()), local, (*http.Server).Serve)
}

// serve runs a server until ctx ends and every handler has returned.
func serve(ctx context.Context, srv *http.Server, l net.Listener, with func(*http.Server, net.Listener) error) error {
	var closed sync.WaitGroup
	defer closed.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	srv.BaseContext = func(net.Listener) context.Context { return ctx } // streams end with the server
	closed.Go(func() {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if srv.Shutdown(grace) != nil {
			srv.Close()
		}
	})
	err := with(srv, l)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("serve %s: %w", l.Addr(), err)
}
