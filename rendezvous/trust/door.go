package trust

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"
)

// DoorConfig is what a Door needs. Zero numbers take the default named.
type DoorConfig struct {
	Gate   *Gate
	Protos []Proto // as for Gate.Server
	// Refused hears of each connection that was turned away, and why; nil: nobody does. It must not block. A
	// connection that its own side gave up before it had shown anything is not told of.
	Refused func(from netip.AddrPort, err error)

	// Handshake is how long a handshake may take; default 5 s.
	Handshake time.Duration
	// HalfOpen is how many handshakes may be under way, HalfOpenPerAddr of one address; default 256 and 32.
	HalfOpen, HalfOpenPerAddr int
	// Strangers is how many connections may be open that showed no certificate, StrangersPerAddr of one address; default
	// 64 and 16. StrangerFor is how long one of them may last; default 1 min: a join waits 30 s for its leader.
	Strangers, StrangersPerAddr int
	StrangerFor                 time.Duration
	// PeerConns is how many connections one member may have open; default 256. One that has more is refused the next.
	PeerConns int
}

// Why a Door closed a connection itself.
var (
	ErrSlow     = errors.New("the handshake took too long")
	ErrTooMany  = errors.New("too many connections")
	errShowsNot = errors.New("showed no certificate for too long")
)

// Door is where a node's connections come in, at all of its addresses together. It makes the handshakes, bounds what
// strangers can hold open, and closes what members hold open who are members no more.
//
// Where there are too many, the address that holds most of them loses its oldest: a true handshake takes milliseconds,
// so what is held open is always the oldest, and an address that holds few loses nothing to one that holds many.
type Door struct {
	cfg DoorConfig
	tls *tls.Config

	mu        sync.Mutex
	halfOpen  pool
	strangers pool
	peers     map[string]map[*doorConn]struct{} // by node id
}

// NewDoor errs if Gate is missing.
func NewDoor(cfg DoorConfig) (*Door, error) {
	if cfg.Gate == nil {
		return nil, errors.New("make door: Gate is required")
	}
	for n, otherwise := range map[*int]int{&cfg.HalfOpen: 256, &cfg.HalfOpenPerAddr: 32, &cfg.Strangers: 64, &cfg.StrangersPerAddr: 16, &cfg.PeerConns: 256} {
		if *n == 0 {
			*n = otherwise
		}
	}
	for d, otherwise := range map[*time.Duration]time.Duration{&cfg.Handshake: 5 * time.Second, &cfg.StrangerFor: time.Minute} {
		if *d == 0 {
			*d = otherwise
		}
	}
	if cfg.Refused == nil {
		cfg.Refused = func(netip.AddrPort, error) {}
	}
	return &Door{
		cfg: cfg, tls: cfg.Gate.Server(cfg.Protos...), peers: map[string]map[*doorConn]struct{}{},
		halfOpen:  pool{max: cfg.HalfOpen, perAddr: cfg.HalfOpenPerAddr, conns: map[netip.Addr][]*doorConn{}},
		strangers: pool{max: cfg.Strangers, perAddr: cfg.StrangersPerAddr, conns: map[netip.Addr][]*doorConn{}},
	}, nil
}

// TLS is the configuration that handshakes are made with, for a server that wants to know its protocols: a copy, as
// http.Server writes to its own.
func (d *Door) TLS() *tls.Config { return d.tls.Clone() }

// doorConn is a connection as it came in; TLS is spoken over it.
type doorConn struct {
	net.Conn
	d     *Door
	from  netip.AddrPort
	since uint64 // counts connections: the lower, the older

	// Under d.mu.
	in   *pool // it is counted there; nil: nowhere, or as a peer's
	peer string
	why  error // the door closed it
	end  *time.Timer
}

// Close takes it out of the books.
func (c *doorConn) Close() error {
	c.d.mu.Lock()
	c.uncount()
	c.d.mu.Unlock()
	return c.Conn.Close()
}

// uncount is called with d.mu held.
func (c *doorConn) uncount() {
	if c.end != nil {
		c.end.Stop()
		c.end = nil
	}
	if c.in != nil {
		c.in.remove(c)
		c.in = nil
	}
	if c.peer != "" {
		delete(c.d.peers[c.peer], c)
		if len(c.d.peers[c.peer]) == 0 {
			delete(c.d.peers, c.peer)
		}
		c.peer = ""
	}
}

// throwOut closes a connection for a reason; d.mu is held. What waits in it is thrown away: nobody shall wait for a
// peer that does not read.
func (c *doorConn) throwOut(why error) {
	c.why = why
	c.uncount()
	if l, ok := c.Conn.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(0)
	}
	_ = c.Conn.Close()
}

// pool are connections of one state.
type pool struct {
	max, perAddr, n int
	conns           map[netip.Addr][]*doorConn // oldest first
	last            uint64
}

// add counts a connection, and gives the one that has to go for it; nil as a rule.
func (p *pool) add(c *doorConn) (out *doorConn) {
	a := c.from.Addr()
	p.last++
	c.in, c.since = p, p.last
	p.conns[a] = append(p.conns[a], c)
	p.n++
	if len(p.conns[a]) > p.perAddr {
		return p.conns[a][0]
	}
	if p.n <= p.max {
		return nil
	}
	var most []*doorConn
	for _, held := range p.conns {
		if len(held) > len(most) || len(held) == len(most) && held[0].since < most[0].since {
			most = held
		}
	}
	return most[0]
}

func (p *pool) remove(c *doorConn) {
	a := c.from.Addr()
	for i, x := range p.conns[a] {
		if x == c {
			p.conns[a] = append(p.conns[a][:i:i], p.conns[a][i+1:]...)
			p.n--
			break
		}
	}
	if len(p.conns[a]) == 0 {
		delete(p.conns, a)
	}
}

// enter counts a connection that has come.
func (d *Door) enter(raw net.Conn) *doorConn {
	c := &doorConn{Conn: raw, d: d}
	if a, ok := raw.RemoteAddr().(*net.TCPAddr); ok {
		c.from = netip.AddrPortFrom(a.AddrPort().Addr().Unmap().WithZone(""), uint16(a.Port))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	c.end = time.AfterFunc(d.cfg.Handshake, func() { d.expel(c, ErrSlow) })
	if out := d.halfOpen.add(c); out != nil {
		out.throwOut(fmt.Errorf("%w whose handshake does not go on", ErrTooMany))
	}
	return c
}

// expel is throwOut for timers.
func (d *Door) expel(c *doorConn, why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.end != nil { // else it has been closed or counted anew meanwhile
		c.throwOut(why)
	}
}

// settle counts a connection whose handshake is done as what it has proven to be.
func (d *Door) settle(c *doorConn, cs tls.ConnectionState) error {
	peer, err := d.cfg.Gate.Peer(cs)
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.why != nil {
		return c.why
	}
	c.uncount()
	switch {
	case errors.Is(err, ErrNoCertificate):
		c.end = time.AfterFunc(d.cfg.StrangerFor, func() { d.expel(c, errShowsNot) })
		if out := d.strangers.add(c); out != nil {
			out.throwOut(fmt.Errorf("%w without a certificate", ErrTooMany))
		}
		return nil
	case err != nil:
		return err
	case len(d.peers[peer.NodeID]) >= d.cfg.PeerConns:
		return fmt.Errorf("%s %s (%s): %w: it has %d open", peer.Role, peer.NodeID, peer.Host, ErrTooMany, d.cfg.PeerConns)
	}
	if d.peers[peer.NodeID] == nil {
		d.peers[peer.NodeID] = map[*doorConn]struct{}{}
	}
	d.peers[peer.NodeID][c] = struct{}{}
	c.peer = peer.NodeID
	return nil
}

// Sweep closes the connections of those whom gone names, by node id.
func (d *Door) Sweep(gone func(nodeID string) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, conns := range d.peers {
		if gone(id) {
			for c := range conns {
				c.throwOut(ErrNotMember)
			}
		}
	}
}

// Listen makes the handshakes of what l accepts. What the returned listener accepts is a *tls.Conn whose handshake is
// done; closing it closes l, gives up the handshakes and waits for them.
func (d *Door) Listen(l net.Listener) net.Listener {
	dl := &doorListener{Listener: l, d: d, done: make(chan net.Conn), ended: make(chan struct{})}
	dl.ctx, dl.cancel = context.WithCancel(context.Background())
	dl.tasks.Go(dl.accept)
	return dl
}

type doorListener struct {
	net.Listener
	d      *Door
	ctx    context.Context // until Close
	cancel context.CancelFunc
	done   chan net.Conn
	ended  chan struct{} // accept has; err says why
	err    error
	tasks  sync.WaitGroup
}

func (l *doorListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.done:
		return c, nil
	case <-l.ended:
		return nil, l.err
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

func (l *doorListener) Close() error {
	l.cancel()
	err := l.Listener.Close()
	l.tasks.Wait()
	return err
}

// passing are errors of an accept after which the next one may do: out of descriptors, as a rule.
var passing = []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED}

func (l *doorListener) accept() {
	defer close(l.ended)
	pause := 5 * time.Millisecond
	for {
		raw, err := l.Listener.Accept()
		if slices.ContainsFunc(passing, func(e error) bool { return errors.Is(err, e) }) {
			select {
			case <-time.After(pause):
			case <-l.ctx.Done():
			}
			pause = min(2*pause, time.Second)
			continue
		}
		if err != nil {
			l.err = err
			return
		}
		pause = 5 * time.Millisecond
		c := l.d.enter(raw)
		l.tasks.Go(func() { l.greet(c) })
	}
}

// greet makes one handshake and passes the connection on.
func (l *doorListener) greet(c *doorConn) {
	t := tls.Server(c, l.d.tls)
	err := t.HandshakeContext(l.ctx)
	if err == nil {
		err = l.d.settle(c, t.ConnectionState())
	}
	if err == nil {
		select {
		case l.done <- t:
			return
		case <-l.ctx.Done():
			err = net.ErrClosed
		}
	}
	l.d.mu.Lock()
	if c.why != nil {
		err = c.why // better than what closing it caused
	}
	l.d.mu.Unlock()
	_ = c.Close()
	if l.ctx.Err() == nil && !gaveUp(err) {
		l.d.cfg.Refused(c.from, err)
	}
}

// gaveUp tells that the other side hung up: routes that lose a race do.
func gaveUp(err error) bool {
	broken, ok := errors.AsType[*net.OpError](err)
	return errors.Is(err, io.EOF) || ok && broken.Op == "read"
}
