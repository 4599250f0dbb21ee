package control

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/gossip"
	"github.com/sparkrun/sparkrun/rendezvous/lead"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// LeaderConfig of the leader's part. All of it is needed.
type LeaderConfig struct {
	Control *Control // this node's own end
	Fence   launcher.Fence
	Record  *rendezvous.Record
	Dial    *dial.Dialer
	Members func(n int) // is told how many members there are, with this node; nil: nobody
}

// Leader keeps a control stream to every member for as long as this node leads.
type Leader struct {
	*wire.Links
	cfg   LeaderConfig
	ctx   context.Context // the leadership's
	brain *lead.Leader    // set by Run, before any stream
}

// Lead makes the streams of a leadership that ends with ctx. What is sent before Run is
// lost.
func Lead(ctx context.Context, cfg LeaderConfig) (_ *Leader, err error) {
	if cfg.Members == nil {
		cfg.Members = func(int) {}
	}
	l, own := &Leader{cfg: cfg, ctx: ctx}, cfg.Control.cfg
	l.Links, err = wire.NewLinks(wire.LinksConfig{
		Hello: wire.Hello{Fence: cfg.Fence, Leader: own.Self.ID, Host: own.Self.Host, Protocol: own.Self.Protocol},
		Dial:  l.dial, Observer: observer{l}, Logger: own.Logger,
		OnClock: func(id launcher.NodeID, ahead time.Duration) { l.brain.Clock(id, ahead) },
		Prove:   l.prove,
		OnEcho:  func(id launcher.NodeID, boot string, stamp launcher.Uptime) { l.brain.Echo(id, boot, stamp) },
	})
	return l, err
}

// observer passes what comes in on the streams to the brain.
type observer struct{ l *Leader }

func (o observer) NodeUp(id launcher.NodeID, up wire.UpHello) {
	o.l.cfg.Control.cfg.Failover.Heard(id)
	o.l.brain.NodeUp(id, lead.Up{
		Boot: up.Boot, Version: up.Version, Protocol: up.Protocol, Inventory: up.Inventory, GPUs: up.GPUs, Memory: up.Memory,
		Ledger: up.Ledger,
		Leases: up.Stamp != 0, Blank: up.Blank,
	})
}

func (o observer) NodeDown(id launcher.NodeID, why error) {
	if o.l.ctx.Err() == nil { // else we closed the stream
		o.l.cfg.Control.cfg.Logger.Warn("node down", "node", o.l.cfg.Dial.HostOf(id), "error", why)
	}
	o.l.brain.NodeDown(id)
}

func (o observer) Event(ev launcher.Event)                            { o.l.brain.Event(ev) }
func (o observer) Inventory(id launcher.NodeID, inv envgen.Inventory) { o.l.brain.Inventory(id, inv) }

// Run keeps the streams; what comes in on them goes to brain.
func (l *Leader) Run(ctx context.Context, brain *lead.Leader) error {
	l.brain = brain
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return l.Links.Run(ctx) })
	g.Go(func() error { return l.want(ctx) })
	g.Go(func() error { return l.kicks(ctx) })
	g.Go(func() error { return l.reopens(ctx) })
	return g.Wait()
}

// want asks for a stream to every member.
func (l *Leader) want(ctx context.Context) error {
	defer l.cfg.Members(0)
	told := 0
	for {
		recordChanged := l.cfg.Record.Changed()
		roster, rosterChanged := l.brain.Roster()
		var ids []launcher.NodeID
		for _, m := range roster {
			ids = append(ids, m.ID)
		}
		l.Want(ids)
		if len(ids) != told {
			told = len(ids)
			l.cfg.Members(told)
		}
		select {
		case <-recordChanged:
		case <-rosterChanged:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// kicks dials members that gossip hears again at once instead of after the pause.
func (l *Leader) kicks(ctx context.Context) error {
	var before []gossip.Peer
	for {
		now, changed := l.cfg.Control.cfg.Present.Watch()
		for _, p := range now {
			if p.Alive && !slices.Contains(before, p) {
				l.Kick(launcher.NodeID(p.ID))
			}
		}
		before = now
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reopens opens a stream again when a better route works again.
func (l *Leader) reopens(ctx context.Context) error {
	for {
		select {
		case id := <-l.cfg.Dial.Better():
			l.Reopen(id)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// errNoProof: no job needs a proof, or this node must not give one.
var errNoProof = errors.New("no lease is renewed")

// prove proves the leadership, so that leases can be renewed. It costs an entry of the
// log and is done only if a job has a lease. A leader that may have been taken over while
// it was off gives no proof: the newer leader relies on that.
func (l *Leader) prove(ctx context.Context) error {
	failover := l.cfg.Control.cfg.Failover
	if !l.brain.Leased() || len(failover.Unheard()) > 0 {
		return errNoProof
	}
	return failover.Raft().Verify(ctx)
}

// dial opens a control stream; the leader's own node needs no network.
func (l *Leader) dial(ctx context.Context, id launcher.NodeID) (wire.Link, error) {
	own := l.cfg.Control.cfg
	if id != own.Self.ID {
		return wire.Control.Open(ctx, l.cfg.Dial.Client(id)), nil
	}
	link, stream := wire.Pipe(ctx)
	go func() { // ends with the pipe
		err := l.cfg.Control.Serve(ctx, wire.Caller{Node: id, Host: own.Self.Host}, stream)
		if err != nil && ctx.Err() == nil {
			own.Logger.Warn("own control stream", "error", err)
		}
		link.Close()
	}()
	return link, nil
}
