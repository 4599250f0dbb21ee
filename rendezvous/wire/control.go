package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// maxBacklog is how many messages may wait for a slow leader before the stream is closed:
// the ledger of the next stream makes up for them.
const maxBacklog = 100_000

// NodeSide is a node's end of control streams.
type NodeSide struct {
	// Attach accepts a leader or says why not (launcher.ErrStaleFence). It gives the
	// node's first message; what happens from then on goes through emit, which never
	// blocks, until ctx ends.
	Attach func(ctx context.Context, h Hello, c Caller, emit func(Up)) (UpHello, error)
	// Order takes one order, in the order they came, and must not block.
	Order func(launcher.Order)
	// Silence is how long a leader may be silent before the stream is closed; 0 means 10
	// s. It ends no rank.
	Silence time.Duration
	// Uptime makes stamps, Renew takes those that came back: the leader still led after
	// they were made. Renew must not block. Both nil: this node gives no leases.
	Uptime func() launcher.Uptime
	Renew  func(launcher.Uptime)
	Logger *slog.Logger
}

// Serve is one leader's control stream, until either side ends it; nil when the
// leader did.
func (n NodeSide) Serve(ctx context.Context, c Caller, s ControlStream) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var halves sync.WaitGroup
	halves.Go(func() { cancel(n.read(ctx, c, s, &halves, cancel)) })
	<-ctx.Done()
	s.Close()
	halves.Wait()
	if err := context.Cause(ctx); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// read accepts the leader and takes its orders until the stream ends. The other half,
// which writes, begins with the node's hello.
func (n NodeSide) read(ctx context.Context, c Caller, s ControlStream, halves *sync.WaitGroup,
	cancel context.CancelCauseFunc) error {
	silence := n.Silence
	if silence == 0 {
		silence = 10 * time.Second
	}
	watchdog := time.AfterFunc(silence,
		func() { cancel(fmt.Errorf("leader at %s: %w for %s", c.Host, ErrUnreachable, silence)) })
	defer watchdog.Stop()
	first, err := s.Receive()
	if err != nil {
		return err
	}
	if first.Hello == nil {
		return fmt.Errorf("%w: a control stream begins with a hello", launcher.ErrInvalid)
	}
	out := newOutbox(cancel)
	hello, err := n.Attach(ctx, *first.Hello, c, out.put)
	if err != nil {
		return err
	}
	n.Logger.Info("control stream open", "leader", first.Hello.Host, "fence", first.Hello.Fence)
	hello.Stamp = n.stamp()
	stamped, last := hello.Stamp, hello.Stamp // an echo lies between them, or is not of this stream
	halves.Go(func() {
		if err := s.Send(Up{Hello: &hello}); err != nil {
			cancel(err)
			return
		}
		out.drain(ctx, s, cancel)
	})
	for {
		watchdog.Reset(silence)
		d, err := s.Receive()
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return nil // ended in the meantime: take no more orders
		case d.Order != nil:
			n.Order(*d.Order)
		case d.Echo != 0:
			if n.Renew != nil && d.Echo >= stamped && d.Echo <= last {
				n.Renew(d.Echo)
			}
		default:
			last = n.stamp()
			out.put(Up{Pong: &Pong{Ping: d.Ping, Clock: time.Now(), Stamp: last}})
		}
	}
}

func (n NodeSide) stamp() launcher.Uptime {
	if n.Uptime == nil {
		return 0
	}
	return n.Uptime()
}

// outbox is the messages that wait to be sent on one stream.
type outbox struct {
	mu     sync.Mutex
	queue  []Up
	more   chan struct{} // has room for one
	cancel context.CancelCauseFunc
}

func newOutbox(cancel context.CancelCauseFunc) *outbox {
	return &outbox{more: make(chan struct{}, 1), cancel: cancel}
}

func (o *outbox) put(u Up) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) >= maxBacklog {
		o.cancel(fmt.Errorf("%d messages wait for the leader", maxBacklog))
		return
	}
	o.queue = append(o.queue, u)
	select {
	case o.more <- struct{}{}:
	default:
	}
}

func (o *outbox) drain(ctx context.Context, s ControlStream, fail context.CancelCauseFunc) {
	for {
		select {
		case <-o.more:
		case <-ctx.Done():
			return
		}
		o.mu.Lock()
		q := o.queue
		o.queue = nil
		o.mu.Unlock()
		for _, u := range q {
			if err := s.Send(u); err != nil {
				fail(err)
				return
			}
		}
	}
}

// pipe is a control stream within one process.
type pipe struct {
	down chan Down
	up   chan Up
	ctx  context.Context
	stop context.CancelFunc
}

// Pipe makes both ends of a control stream for the leader's own node. It ends
// with ctx, or when either end is closed.
func Pipe(ctx context.Context) (Link, ControlStream) {
	ctx, stop := context.WithCancel(ctx)
	p := &pipe{down: make(chan Down), up: make(chan Up), ctx: ctx, stop: stop}
	return pipeLink{p}, pipeStream{p}
}

type pipeLink struct{ p *pipe }

func (l pipeLink) Send(d Down) error    { return pass(l.p.ctx, l.p.down, d) }
func (l pipeLink) Receive() (Up, error) { return take(l.p.ctx, l.p.up) }
func (l pipeLink) Close()               { l.p.stop() }

type pipeStream struct{ p *pipe }

func (s pipeStream) Send(u Up) error        { return pass(s.p.ctx, s.p.up, u) }
func (s pipeStream) Receive() (Down, error) { return take(s.p.ctx, s.p.down) }
func (s pipeStream) Close()                 { s.p.stop() }

func pass[T any](ctx context.Context, c chan T, v T) error {
	select {
	case c <- v:
		return nil
	case <-ctx.Done():
		return io.EOF
	}
}

func take[T any](ctx context.Context, c chan T) (T, error) {
	select {
	case v := <-c:
		return v, nil
	case <-ctx.Done():
		var none T
		return none, io.EOF
	}
}
