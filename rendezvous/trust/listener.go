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

// ListenerConfig is what a Listener needs. Zero numbers mean the default named.
type ListenerConfig struct {
	Gate   *Gate
	Protos []Proto // as for Gate.Server
	// Refused, if not nil, is called for each connection that was refused, with the reason. It must not block. It
	// is not called for a connection that the other side gave up before it had shown anything.
	Refused func(from netip.AddrPort, err error)

	// Handshake is how long a handshake may take; default 5 s.
	Handshake time.Duration
	// HalfOpen is how many handshakes may be under way, HalfOpenPerAddr from one address; default 256 and 32.
	HalfOpen, HalfOpenPerAddr int
	// Unauthenticated is how many connections without a certificate may be open, UnauthenticatedPerAddr from one
	// address; default 64 and 16. UnauthenticatedFor is how long one of them may last; default 1 min, because a
	// join waits up to 30 s for its leader.
	Unauthenticated, UnauthenticatedPerAddr int
	UnauthenticatedFor                      time.Duration
	// PeerConns is how many connections one member may have open; default 256. Any further one is refused.
	PeerConns int
}

// Reasons for which a Listener closes a connection itself.
var (
	ErrSlow     = errors.New("the handshake took too long")
	ErrTooMany  = errors.New("too many connections")
	errShowsNot = errors.New("showed no certificate for too long")
)

// Listener accepts a node's connections on all of its addresses. It makes the handshakes, bounds what
// unauthenticated peers can hold open, and closes the connections of former members.
//
// If there are too many, the address with the most connections loses its oldest one: a genuine handshake takes
// milliseconds, so a connection that is merely held open is always the oldest, and an address with few connections
// loses nothing to one with many.
type Listener struct {
	cfg ListenerConfig
	tls *tls.Config

	mu              sync.Mutex
	halfOpen        pool
	unauthenticated pool
	peers           map[string]map[*conn]struct{} // by node id
}

// NewListener makes a Listener; Gate is required.
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

// TLS is the configuration of the handshakes, for a server that needs to know the protocols: a copy, because
// http.Server changes the one that it gets.
func (l *Listener) TLS() *tls.Config { return l.tls.Clone() }

// conn is an accepted TCP connection, below TLS.
type conn struct {
	net.Conn
	l     *Listener
	from  netip.AddrPort
	since uint64 // number of the connection: the lower, the older

	// Under l.mu.
	in   *pool // the pool that counts it; nil: none, or it counts as a peer's
	peer string
	why  error // why the listener closed it
	end  *time.Timer
}

// Close also removes the connection from its quota.
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

// drop closes a connection for a reason; l.mu is held. Unsent bytes are thrown away, so that nobody waits for a
// peer that does not read.
func (c *conn) drop(why error) {
	c.why = why
	c.uncount()
	if l, ok := c.Conn.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(0)
	}
	_ = c.Conn.Close()
}

// pool is the connections in one state.
type pool struct {
	max, perAddr, n int
	conns           map[netip.Addr][]*conn // oldest first
	last            uint64
}

// add counts a connection and gives the one that has to be closed for it; usually nil.
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

// admit counts a new connection.
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
	if c.end != nil { // else it was closed or counted elsewhere in the meantime
		c.drop(why)
	}
}

// settle counts a connection whose handshake is done as authenticated or not.
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

// Sweep closes the connections of the node ids for which gone is true.
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

// Listen makes the handshakes of connections that raw accepts. The returned listener's Accept gives a *tls.Conn
// whose handshake is done; closing it closes raw, aborts the handshakes and waits for them.
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
	ended  chan struct{} // closed when accept has ended; err says why
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

// passing are errors of Accept that may go away, usually a lack of descriptors.
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

// greet makes one handshake and passes the connection to Accept.
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
		err = c.why // the cause, instead of the error that closing it caused
	}
	l.owner.mu.Unlock()
	_ = c.Close()
	if l.ctx.Err() == nil && !gaveUp(err) {
		l.owner.cfg.Refused(c.from, err)
	}
}

// gaveUp tells whether the other side closed the connection, as a dialler does on routes
// that lose its race.
func gaveUp(err error) bool {
	broken, ok := errors.AsType[*net.OpError](err)
	return errors.Is(err, io.EOF) || ok && broken.Op == "read"
}
