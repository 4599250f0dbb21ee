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

// ListenerConfig is what a Listener needs. Zero numbers take the default named.
type ListenerConfig struct {
	Gate   *Gate
	Protos []Proto // as for Gate.Server
	// Refused is called for each connection that was refused, with the reason; nil: nobody is told. It must not
	// block. A connection that the other side gave up before it had shown anything does not count.
	Refused func(from netip.AddrPort, err error)

	// Handshake is how long a handshake may take; default 5 s.
	Handshake time.Duration
	// HalfOpen is how many handshakes may be under way, HalfOpenPerAddr of one address; default 256 and 32.
	HalfOpen, HalfOpenPerAddr int
	// Unauthenticated is how many connections may be open that showed no certificate, UnauthenticatedPerAddr of one
	// address; default 64 and 16. UnauthenticatedFor is how long one of them may last; default 1 min: a join waits
	// 30 s for its leader.
	Unauthenticated, UnauthenticatedPerAddr int
	UnauthenticatedFor                      time.Duration
	// PeerConns is how many connections one member may have open; default 256. One that has more is refused the next.
	PeerConns int
}

// Why a Listener closed a connection itself.
var (
	ErrSlow     = errors.New("the handshake took too long")
	ErrTooMany  = errors.New("too many connections")
	errShowsNot = errors.New("showed no certificate for too long")
)

// Listener is where a node's connections come in, at all of its addresses together. It makes the handshakes, bounds what
// the unauthenticated can hold open, and closes what members hold open who are members no more.
//
// Where there are too many, the address that holds most of them loses its oldest: a true handshake takes milliseconds,
// so what is held open is always the oldest, and an address that holds few loses nothing to one that holds many.
type Listener struct {
	cfg ListenerConfig
	tls *tls.Config

	mu              sync.Mutex
	halfOpen        pool
	unauthenticated pool
	peers           map[string]map[*conn]struct{} // by node id
}

// NewListener errs if Gate is missing.
func NewListener(cfg ListenerConfig) (*Listener, error) {
	if cfg.Gate == nil {
		return nil, errors.New("make listener: Gate is required")
	}
	for n, otherwise := range map[*int]int{&cfg.HalfOpen: 256, &cfg.HalfOpenPerAddr: 32, &cfg.Unauthenticated: 64,
		&cfg.UnauthenticatedPerAddr: 16, &cfg.PeerConns: 256} {
		if *n == 0 {
			*n = otherwise
		}
	}
	for d, otherwise := range map[*time.Duration]time.Duration{&cfg.Handshake: 5 * time.Second,
		&cfg.UnauthenticatedFor: time.Minute} {
		if *d == 0 {
			*d = otherwise
		}
	}
	if cfg.Refused == nil {
		cfg.Refused = func(netip.AddrPort, error) {}
	}
	return &Listener{
		cfg: cfg, tls: cfg.Gate.Server(cfg.Protos...), peers: map[string]map[*conn]struct{}{},
		halfOpen:        pool{max: cfg.HalfOpen, perAddr: cfg.HalfOpenPerAddr, conns: map[netip.Addr][]*conn{}},
		unauthenticated: pool{max: cfg.Unauthenticated, perAddr: cfg.UnauthenticatedPerAddr, conns: map[netip.Addr][]*conn{}},
	}, nil
}

// TLS is the configuration that handshakes are made with, for a server that wants to know its protocols: a copy, as
// http.Server writes to its own.
func (l *Listener) TLS() *tls.Config { return l.tls.Clone() }

// conn is a connection as it came in; TLS is spoken over it.
type conn struct {
	net.Conn
	l     *Listener
	from  netip.AddrPort
	since uint64 // counts connections: the lower, the older

	// Under l.mu.
	in   *pool // it is counted there; nil: nowhere, or as a peer's
	peer string
	why  error // the listener closed it
	end  *time.Timer
}

// Close frees its place in the quota.
func (c *conn) Close() error {
	c.l.mu.Lock()
	c.uncount()
	c.l.mu.Unlock()
	return c.Conn.Close()
}

// uncount is called with l.mu held.
func (c *conn) uncount() {
	if c.end != nil {
		c.end.Stop()
		c.end = nil
	}
	if c.in != nil {
		c.in.remove(c)
		c.in = nil
	}
	if c.peer != "" {
		delete(c.l.peers[c.peer], c)
		if len(c.l.peers[c.peer]) == 0 {
			delete(c.l.peers, c.peer)
		}
		c.peer = ""
	}
}

// drop closes a connection for a reason; l.mu is held. Unsent bytes are thrown away: nobody must wait for a peer
// that does not read.
func (c *conn) drop(why error) {
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
	conns           map[netip.Addr][]*conn // oldest first
	last            uint64
}

// add counts a connection, and gives the one that has to be closed for it; nil as a rule.
func (p *pool) add(c *conn) (out *conn) {
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
	var most []*conn
	for _, held := range p.conns {
		if len(held) > len(most) || len(held) == len(most) && held[0].since < most[0].since {
			most = held
		}
	}
	return most[0]
}

func (p *pool) remove(c *conn) {
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

// admit counts a connection that has come.
func (l *Listener) admit(raw net.Conn) *conn {
	c := &conn{Conn: raw, l: l}
	if a, ok := raw.RemoteAddr().(*net.TCPAddr); ok {
		c.from = netip.AddrPortFrom(a.AddrPort().Addr().Unmap().WithZone(""), uint16(a.Port))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c.end = time.AfterFunc(l.cfg.Handshake, func() { l.expel(c, ErrSlow) })
	if out := l.halfOpen.add(c); out != nil {
		out.drop(fmt.Errorf("%w whose handshake does not go on", ErrTooMany))
	}
	return c
}

// expel is drop for timers.
func (l *Listener) expel(c *conn, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.end != nil { // else it has been closed or counted anew meanwhile
		c.drop(why)
	}
}

// settle counts a connection whose handshake is done as what it has proven to be.
func (l *Listener) settle(c *conn, cs tls.ConnectionState) error {
	peer, err := l.cfg.Gate.Peer(cs)
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.why != nil {
		return c.why
	}
	c.uncount()
	switch {
	case errors.Is(err, ErrNoCertificate):
		c.end = time.AfterFunc(l.cfg.UnauthenticatedFor, func() { l.expel(c, errShowsNot) })
		if out := l.unauthenticated.add(c); out != nil {
			out.drop(fmt.Errorf("%w without a certificate", ErrTooMany))
		}
		return nil
	case err != nil:
		return err
	case len(l.peers[peer.NodeID]) >= l.cfg.PeerConns:
		return fmt.Errorf("%s %s (%s): %w: it has %d open", peer.Role, peer.NodeID, peer.Host, ErrTooMany, l.cfg.PeerConns)
	}
	if l.peers[peer.NodeID] == nil {
		l.peers[peer.NodeID] = map[*conn]struct{}{}
	}
	l.peers[peer.NodeID][c] = struct{}{}
	c.peer = peer.NodeID
	return nil
}

// Sweep closes the connections of those whom gone names, by node id.
func (l *Listener) Sweep(gone func(nodeID string) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, conns := range l.peers {
		if gone(id) {
			for c := range conns {
				c.drop(ErrNotMember)
			}
		}
	}
}

// Listen makes the handshakes of what raw accepts. What the returned listener accepts is a *tls.Conn whose handshake is
// done; closing it closes raw, gives up the handshakes and waits for them.
func (l *Listener) Listen(raw net.Listener) net.Listener {
	dl := &tlsListener{Listener: raw, owner: l, done: make(chan net.Conn), ended: make(chan struct{})}
	dl.ctx, dl.cancel = context.WithCancel(context.Background())
	dl.tasks.Go(dl.accept)
	return dl
}

type tlsListener struct {
	net.Listener
	owner  *Listener
	ctx    context.Context // until Close
	cancel context.CancelFunc
	done   chan net.Conn
	ended  chan struct{} // accept has; err says why
	err    error
	tasks  sync.WaitGroup
}

func (l *tlsListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.done:
		return c, nil
	case <-l.ended:
		return nil, l.err
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

func (l *tlsListener) Close() error {
	l.cancel()
	err := l.Listener.Close()
	l.tasks.Wait()
	return err
}

// passing are errors of an accept after which the next one may do: out of descriptors, as a rule.
var passing = []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED}

func (l *tlsListener) accept() {
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
		c := l.owner.admit(raw)
		l.tasks.Go(func() { l.greet(c) })
	}
}

// greet makes one handshake and passes the connection on.
func (l *tlsListener) greet(c *conn) {
	t := tls.Server(c, l.owner.tls)
	err := t.HandshakeContext(l.ctx)
	if err == nil {
		err = l.owner.settle(c, t.ConnectionState())
	}
	if err == nil {
		select {
		case l.done <- t:
			return
		case <-l.ctx.Done():
			err = net.ErrClosed
		}
	}
	l.owner.mu.Lock()
	if c.why != nil {
		err = c.why // better than what closing it caused
	}
	l.owner.mu.Unlock()
	_ = c.Close()
	if l.ctx.Err() == nil && !gaveUp(err) {
		l.owner.cfg.Refused(c.from, err)
	}
}

// gaveUp tells that the other side hung up: routes that lose a race do.
func gaveUp(err error) bool {
	broken, ok := errors.AsType[*net.OpError](err)
	return errors.Is(err, io.EOF) || ok && broken.Op == "read"
}
