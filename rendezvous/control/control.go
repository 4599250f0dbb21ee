// Package control is a node's end of a leader's control stream: orders come down,
// events and the hardware go up.
//
// It decides which leader this node listens to: one whose fence is not below the highest
// it has seen, of this node's epoch, and one stream at a time. A stream of a later epoch
// makes this side give way.
//
// It must not decide whether an order is obeyed, must not carry output, and must not treat the end of a stream as
// the end of anything else.
package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/agent"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/failover"
	"github.com/sparkrun/sparkrun/rendezvous/gossip"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Config of a node's Control. All of it is needed.
type Config struct {
	Self     rendezvous.Self
	Agent    *agent.Agent
	Failover *failover.Failover
	// GPUs counts this machine's GPUs that have a driver by now.
	GPUs func() int
	// Memory is how much of this machine's jobs may take, in bytes; 0: it is not known.
	Memory int64
	// Inventory is this machine's hardware, Present are the members as gossip knows them.
	Inventory *rendezvous.Latest[envgen.Inventory]
	Present   *rendezvous.Latest[[]gossip.Peer]
	// Leads is written only here: the leader whose stream this node has; empty for none.
	Leads *rendezvous.Latest[launcher.NodeID]
	// Prepared is called for each order to prepare ranks, with the agent's answer.
	Prepared func(leader wire.Caller, spec launcher.Spec, err error)
	Logger   *slog.Logger
}

// Control is a node's end of control streams.
type Control struct {
	cfg Config

	mu      sync.Mutex
	current *stream // nil when it has ended
}

// New makes a node's end.
func New(cfg Config) *Control { return &Control{cfg: cfg} }

// Calls are the procedures that this part answers.
func (t *Control) Calls() []wire.Call { return []wire.Call{wire.Control.Serve(t.Serve)} }

// stream is a leader's control stream at the node.
type stream struct {
	end    context.CancelCauseFunc
	leader wire.Caller
}

var errReplaced = errors.New("another control stream took its place")

// Serve serves a leader's control stream until it ends or another takes its place: a
// stream whose network has died would keep old orders.
func (t *Control) Serve(ctx context.Context, c wire.Caller, s wire.ControlStream) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	return t.side(&stream{end: cancel, leader: c}).Serve(ctx, c, s)
}

func (t *Control) side(own *stream) wire.NodeSide {
	return wire.NodeSide{
		Attach: func(ctx context.Context, h wire.Hello, c wire.Caller, emit func(wire.Up)) (wire.UpHello, error) {
			return t.attach(ctx, own, h, c, emit)
		},
		Order: func(o launcher.Order) {
			err := t.cfg.Agent.Order(o)
			if err != nil {
				t.cfg.Logger.Warn("refuse order", "error", err)
			}
			if o.Prepare != nil {
				t.cfg.Prepared(own.leader, o.Prepare.Spec, err)
			}
		},
		Uptime: agent.Uptime, Renew: t.cfg.Agent.Renew,
		Logger: t.cfg.Logger,
	}
}

// attach accepts a leader's stream: first it raises the fence, then it gives the ledger.
func (t *Control) attach(
	ctx context.Context, own *stream, h wire.Hello, c wire.Caller, emit func(wire.Up),
) (wire.UpHello, error) {
	if c.Node != h.Leader {
		return wire.UpHello{}, fmt.Errorf("%w: node %s speaks for leader %s", wire.ErrDenied, c.Node, h.Leader)
	}
	self := t.cfg.Self
	if err := rendezvous.Together(self.Protocol, h.Protocol); err != nil {
		return wire.UpHello{}, fmt.Errorf("%s to the leader %s: %w", self.Host, h.Host, err)
	}
	if err := t.cfg.Agent.Raise(h.Fence); err != nil {
		return wire.UpHello{}, err
	}
	if h.Fence.Epoch.Compare(t.cfg.Failover.Epoch()) > 0 {
		// From Raise on nobody obeys our own leadership, if we have one.
		t.cfg.Failover.GiveWay(h)
		return wire.UpHello{}, fmt.Errorf("%s enters epoch %d: %w", self.Host, h.Fence.N, wire.ErrRetry)
	}
	t.cfg.Failover.Heard(h.Leader)
	t.attached(own)
	next, cancel := t.cfg.Agent.Events()
	inv, changed := t.cfg.Inventory.Watch()
	var told sync.WaitGroup
	told.Go(func() {
		for {
			ev, err := next(ctx)
			if err != nil {
				return
			}
			emit(wire.Up{Event: &ev})
		}
	})
	told.Go(func() { t.tellInventory(ctx, inv, changed, emit) })
	go func() { // ends with the stream
		<-ctx.Done()
		told.Wait()
		cancel()
		t.detached(own)
	}()
	return wire.UpHello{
		Boot: self.Boot, Version: self.Version, Protocol: self.Protocol, Inventory: inv, Ledger: t.cfg.Agent.Ledger(),
		GPUs: t.cfg.GPUs(), Memory: t.cfg.Memory, Blank: t.cfg.Failover.Blank(),
	}, nil
}

// attached notes a leader's stream, which replaces the one before.
func (t *Control) attached(own *stream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current != nil {
		t.current.end(errReplaced)
	}
	t.current = own
	t.cfg.Leads.Store(own.leader.Node)
}

// detached notes that a stream has ended.
func (t *Control) detached(own *stream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current == own {
		t.current = nil
		t.cfg.Leads.Store("")
	}
}

// Turn returns once this part has shown that it works.
func (t *Control) Turn() {
	t.mu.Lock()
	defer t.mu.Unlock()
}

// tellInventory sends changes of this node's hardware to the leader.
func (t *Control) tellInventory(
	ctx context.Context, told envgen.Inventory, changed <-chan struct{}, emit func(wire.Up),
) {
	for {
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
		var inv envgen.Inventory
		inv, changed = t.cfg.Inventory.Watch()
		if !reflect.DeepEqual(inv, told) {
			told = inv
			emit(wire.Up{Inventory: &inv})
		}
	}
}
