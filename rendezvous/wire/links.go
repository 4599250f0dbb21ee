package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// Link is the leader's end of one control stream.
type Link interface {
	Send(Down) error
	Receive() (Up, error)
	Close()
}

// Observer receives what comes in on control streams. The calls for one node never run concurrently: NodeUp comes
// before any other of that stream. NodeUp comes again without NodeDown if a stream broke and was reopened at once:
// the node was up all the time, and what was sent in between may be lost. They must not block.
type Observer interface {
	NodeUp(launcher.NodeID, UpHello)
	NodeDown(launcher.NodeID, error)
	Event(launcher.Event)
	Inventory(launcher.NodeID, envgen.Inventory)
}

// LinksConfig of a leader's control streams. Hello, Dial, Observer and Logger are needed.
type LinksConfig struct {
	Hello    Hello // the first message on every stream
	Dial     func(ctx context.Context, node launcher.NodeID) (Link, error)
	Observer Observer

	// OnClock, if not nil, is called with how far a node's clock is ahead of ours, for
	// each measurement that is better than the last.
	OnClock func(launcher.NodeID, time.Duration)

	// Prove returns nil if this node has led at some moment since the call. It is called
	// after stamps have come, for all nodes at once, and each of these gets its echo;
	// after an error none does. Nil: there are no echoes.
	Prove func(context.Context) error
	// OnEcho is called before a node, in this boot of it, gets an echo; from one
	// goroutine, concurrently with the other callbacks. It must not block.
	OnEcho func(node launcher.NodeID, boot string, stamp launcher.Uptime)
	// EchoPause is the pause between two proofs; 0 means 1 s.
	EchoPause time.Duration

	// Ping is how often a stream gets a heartbeat; 0 means 1 s. All streams get theirs
	// together, so that this node and its answers wake it once.
	Ping time.Duration
	// Silence is how long a stream may be silent before it is closed and the node counts
	// as down; 0 means 2.5 s: so long at most does a lost node stay unnoticed, and a lost
	// ping has 1.5 s to be sent again.
	Silence time.Duration
	// Reopen is how long a node whose stream broke, other than by silence, still counts
	// as up while the stream is reopened; 0 means 1 s.
	Reopen time.Duration
	// MaxWait is the longest pause between two attempts to reach a node, from
	// 100 ms up; 0 means 2 s.
	MaxWait time.Duration
	Logger  *slog.Logger
}

// Links keeps one control stream open to each member while this node leads.
// Closing them undoes nothing on any node.
type Links struct {
	cfg LinksConfig

	mu      sync.Mutex
	ctx     context.Context // Run's; nil before
	loops   sync.WaitGroup
	stamped chan struct{} // has room for one: "a stamp has come"
	nodes   map[launcher.NodeID]*linkLoop
	// last is closed when the latest loop of a node has ended: a node that is wanted
	// again waits for it, so that callbacks of two loops do not mix.
	last map[launcher.NodeID]<-chan struct{}
}

// NewLinks makes the streams of one leadership; Run opens them.
func NewLinks(cfg LinksConfig) (*Links, error) {
	if cfg.Dial == nil || cfg.Observer == nil || cfg.Logger == nil || cfg.Prove != nil && cfg.OnEcho == nil {
		return nil, errors.New("make control links: Dial, Observer and Logger are needed, and OnEcho where Prove is given")
	}
	orDefault := func(d *time.Duration, otherwise time.Duration) {
		if *d == 0 {
			*d = otherwise
		}
	}
	orDefault(&cfg.Ping, time.Second)
	orDefault(&cfg.Silence, 2500*time.Millisecond)
	orDefault(&cfg.Reopen, time.Second)
	orDefault(&cfg.MaxWait, 2*time.Second)
	orDefault(&cfg.EchoPause, time.Second)
	return &Links{cfg: cfg, stamped: make(chan struct{}, 1), nodes: map[launcher.NodeID]*linkLoop{},
		last: map[launcher.NodeID]<-chan struct{}{}}, nil
}

// linkLoop keeps one node's stream.
type linkLoop struct {
	l    *Links
	node launcher.NodeID
	stop context.CancelFunc
	kick chan struct{}
	up   bool // as reported last; only the loop uses it

	mu     sync.Mutex
	queue  []Down        // for the open stream; nil while there is none
	open   bool          // a stream takes orders
	more   chan struct{} // has room for one
	clock  clock         // of the open stream
	anew   func()        // ends the open stream, for another; nil while there is none
	stream uint64        // counts streams: which one is open
	stamp  stamp         // the latest of the open stream that waits for its echo
	apart  error         // why the last attempt was refused, if the reason is the builds' protocols
}

// Run keeps the streams until ctx ends.
func (l *Links) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l.mu.Lock()
	l.ctx = ctx
	for _, n := range l.nodes {
		l.start(n)
	}
	l.mu.Unlock()
	if l.cfg.Prove != nil {
		l.loops.Go(func() { l.echo(ctx) })
	}
	<-ctx.Done()
	l.mu.Lock()
	for _, n := range l.nodes {
		n.stop()
	}
	l.mu.Unlock()
	l.loops.Wait()
	return ctx.Err()
}

// Want names the members: a new one is dialled at once, a removed one's stream
// is closed.
func (l *Links) Want(ids []launcher.NodeID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wanted := map[launcher.NodeID]bool{}
	for _, id := range ids {
		wanted[id] = true
		if l.nodes[id] == nil {
			n := &linkLoop{l: l, node: id, stop: func() {}, kick: make(chan struct{}, 1), more: make(chan struct{}, 1)}
			l.nodes[id] = n
			if l.ctx != nil {
				l.start(n)
			}
		}
	}
	for id, n := range l.nodes {
		if !wanted[id] {
			n.stop()
			delete(l.nodes, id)
		}
	}
}

// start begins a node's loop. l.mu is held.
func (l *Links) start(n *linkLoop) {
	if l.ctx.Err() != nil {
		return
	}
	ctx, stop := context.WithCancel(l.ctx)
	n.stop = stop
	before, done := l.last[n.node], make(chan struct{})
	l.last[n.node] = done
	l.loops.Go(func() {
		defer close(done)
		if before != nil {
			<-before
		}
		if ctx.Err() == nil {
			n.run(ctx)
		}
	})
}

// Kick dials a node now instead of after the pause, because gossip saw it alive.
func (l *Links) Kick(id launcher.NodeID) {
	l.mu.Lock()
	n := l.nodes[id]
	l.mu.Unlock()
	if n == nil {
		return
	}
	select {
	case n.kick <- struct{}{}:
	default:
	}
}

// errAnew ends a stream that is to be opened over another route.
var errAnew = errors.New("it is opened anew")

// Reopen opens a node's stream again, because a better route to it works again.
func (l *Links) Reopen(id launcher.NodeID) {
	l.mu.Lock()
	n := l.nodes[id]
	l.mu.Unlock()
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.anew != nil {
		n.anew()
	}
}

// Send queues an order for a node and never blocks. Without an open stream it
// is dropped: the next NodeUp's ledger shows that it is missing.
func (l *Links) Send(id launcher.NodeID, o launcher.Order) {
	l.mu.Lock()
	n := l.nodes[id]
	l.mu.Unlock()
	if n != nil {
		n.put(Down{Order: &o})
	}
}

func (n *linkLoop) put(d Down) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.enqueue(d)
}

// enqueue is put with n.mu held.
func (n *linkLoop) enqueue(d Down) {
	if !n.open {
		return
	}
	n.queue = append(n.queue, d)
	select {
	case n.more <- struct{}{}:
	default:
	}
}

func (n *linkLoop) take() []Down {
	n.mu.Lock()
	defer n.mu.Unlock()
	q := n.queue
	n.queue = nil
	return q
}

func (n *linkLoop) setOpen(open bool, anew func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open, n.queue, n.clock, n.anew, n.stamp = open, nil, clock{}, anew, stamp{}
	n.stream++
}

// run dials, serves the stream until it breaks, and dials again.
func (n *linkLoop) run(ctx context.Context) {
	const firstWait = 100 * time.Millisecond
	said := ""
	for wait := firstWait; ; wait = min(2*wait, n.l.cfg.MaxWait) {
		was, err := n.once(ctx)
		n.refused(was, err)
		// A stream that we ended for another, or that worked for a while and broke, is
		// reopened at once; until that has failed too, the node is up.
		lived := was >= n.l.cfg.Reopen && !errors.Is(err, errSilent)
		again := (lived || errors.Is(err, errAnew)) && ctx.Err() == nil
		if n.up && !again {
			n.up = false
			n.l.cfg.Observer.NodeDown(n.node, err)
		}
		if ctx.Err() != nil {
			return
		}
		if was > 0 {
			wait = firstWait
		}
		if err.Error() != said { // once per reason, because a node may be off for months
			said = err.Error()
			n.l.cfg.Logger.Info("control stream closed", "node", n.node, "error", err)
		}
		if again {
			continue
		}
		select {
		case <-time.After(wait):
		case <-n.kick:
		case <-ctx.Done():
			return
		}
	}
}

// openTimeout bounds the time from the dial to the node's hello: longer than Silence,
// because a busy node has to do a handshake and write a ledger.
const openTimeout = 5 * time.Second

// errSilent ends a stream on which nothing came for too long.
var errSilent = fmt.Errorf("%w", ErrUnreachable)

// once runs one stream; was is how long the node was up, 0 if it did not come up.
func (n *linkLoop) once(ctx context.Context) (was time.Duration, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	after := func(d time.Duration) *time.Timer {
		return time.AfterFunc(d, func() { cancel(fmt.Errorf("node %s: %w for %s", n.node, errSilent, d)) })
	}
	patience := max(openTimeout, n.l.cfg.Silence)
	if n.up {
		patience = n.l.cfg.Reopen
	}
	opening := after(patience)
	defer opening.Stop()
	link, err := n.l.cfg.Dial(ctx, n.node)
	if err != nil {
		return 0, because(ctx, err)
	}
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer cancel(nil)
	// Send and Receive may wait for ever for a peer that lost its power: closing wakes
	// both.
	helpers.Go(func() {
		<-ctx.Done()
		link.Close()
	})
	helpers.Go(func() { n.write(ctx, link, cancel) })
	up, err := link.Receive()
	if err != nil {
		return 0, because(ctx, err)
	}
	if up.Hello == nil {
		return 0, fmt.Errorf("node %s: its first message is no hello", n.node)
	}
	if err := rendezvous.Together(n.l.cfg.Hello.Protocol, up.Hello.Protocol); err != nil {
		return 0, fmt.Errorf("node %s: %w", n.node, err)
	}
	opening.Stop()
	n.setOpen(true, func() { cancel(errAnew) })
	n.up = true
	began := time.Now()
	boot := up.Hello.Boot
	n.l.cfg.Observer.NodeUp(n.node, *up.Hello)
	n.stampIs(boot, up.Hello.Stamp)
	watchdog := after(n.l.cfg.Silence)
	defer watchdog.Stop()
	for {
		watchdog.Reset(n.l.cfg.Silence)
		if up, err = link.Receive(); err != nil {
			break
		}
		watchdog.Stop() // our own slowness must not count as the node's silence
		switch {
		case up.Event != nil:
			up.Event.Node = n.node // the stream proves which node this is
			n.l.cfg.Observer.Event(*up.Event)
		case up.Inventory != nil:
			n.l.cfg.Observer.Inventory(n.node, *up.Inventory)
		case up.Pong != nil:
			n.pong(*up.Pong)
			n.stampIs(boot, up.Pong.Stamp)
		}
	}
	n.setOpen(false, nil)
	return max(time.Since(began), 1), because(ctx, err)
}

// refused keeps the reason if a node has no stream only because of its build.
func (n *linkLoop) refused(was time.Duration, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case errors.Is(err, rendezvous.ErrApart):
		n.apart = err
	case was > 0:
		n.apart = nil
	}
}

// Apart says why a node that answers gets no stream: its build and this one are too far
// apart. nil: they are not, as far as is known.
func (l *Links) Apart(id launcher.NodeID) error {
	l.mu.Lock()
	n := l.nodes[id]
	l.mu.Unlock()
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.apart
}

func (n *linkLoop) ping() Down {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.clock.ask(time.Now())
}

func (n *linkLoop) pong(p Pong) {
	n.mu.Lock()
	ahead, ok := n.clock.hear(p, time.Now())
	n.mu.Unlock()
	if ok && n.l.cfg.OnClock != nil {
		n.l.cfg.OnClock(n.node, ahead)
	}
}

// because prefers the reason why we closed a link to the error that closing it caused.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// write sends the hello, what is queued, and heartbeats.
func (n *linkLoop) write(ctx context.Context, link Link, fail context.CancelCauseFunc) {
	together := func() time.Duration {
		return time.Until(time.Now().Truncate(n.l.cfg.Ping).Add(n.l.cfg.Ping))
	}
	ping := time.NewTimer(together())
	defer ping.Stop()
	for msgs := []Down{{Hello: &n.l.cfg.Hello}}; ; {
		for _, d := range msgs {
			switch err := link.Send(d); {
			case errors.Is(err, io.EOF):
				return // the node closed the stream: Receive says why
			case err != nil:
				fail(err)
				return
			}
		}
		select {
		case <-n.more:
			msgs = n.take()
		case <-ping.C:
			ping.Reset(together())
			msgs = []Down{n.ping()}
		case <-ctx.Done():
			return
		}
	}
}
