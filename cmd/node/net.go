package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// The protocols on the one TLS port (ALPN).
const (
	protoRaft  = "sparkrun-raft/1"
	protoCalls = "h2"
)

// Dial gives the local agent. Nothing is sent before the first call, which
// meets ErrNoAgent when nothing listens.
func Dial(socket string) *wire.Client {
	tr := &http.Transport{
		Protocols: new(http.Protocols),
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
				return nil, fmt.Errorf("%w: nothing listens on %s", ErrNoAgent, socket)
			}
			if errors.Is(err, os.ErrPermission) {
				return nil, fmt.Errorf("open %s: %w: you must be root or in the group sparkrun", socket, wire.ErrDenied)
			}
			return c, err
		},
	}
	tr.Protocols.SetUnencryptedHTTP2(true)
	return wire.NewClient(&http.Client{Transport: tr}, "http://agent")
}

// frameSize is the longest HTTP/2 frame that a server here takes, in bytes. By
// the default, 1 MiB, a client keeps 512 KiB at hand for each of its streams, and a
// leader has one to every node for as long as it leads.
const frameSize = 64 << 10

// clusterServer serves members, clients and newcomers on the TLS port. Raft's
// connections are handed to raftConns once admitsRaft has judged whose they are,
// for as long as raft lasts.
func (n *node) clusterServer() *http.Server {
	srv := &http.Server{
		Protocols:         http2Only(),
		TLSConfig:         n.door.TLS(), // for its protocols: the door makes the handshakes
		ReadHeaderTimeout: 5 * time.Second,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(n.log.Handler(), slog.LevelInfo),
		IdleTimeout:       2 * time.Minute,
		ConnContext:       countStrangers,
		HTTP2:             &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 5 * time.Second, MaxReadFrameSize: frameSize},
	}
	calls := n.doorMux()
	srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := wire.Caller{Addr: r.RemoteAddr}
		if r.TLS != nil {
			switch p, err := n.gate.Peer(*r.TLS); {
			case err == nil && p.Role == trust.RoleNode:
				c.Node, c.Host = launcher.NodeID(p.NodeID), p.Host
			case err == nil && p.Role == trust.RoleClient:
				n.serveClient(calls, p, w, r)
				return
			case !errors.Is(err, trust.ErrNoCertificate):
				// Removed since the handshake, or no node: nothing is served.
				http.Error(w, "not a member of this cluster", http.StatusForbidden)
				return
			}
		}
		r = r.WithContext(wire.WithCaller(r.Context(), c))
		if c.Node == "" {
			forStrangers(calls, w, r)
			return
		}
		calls.ServeHTTP(w, r)
	})
	srv.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){
		n.peers.raftProto: func(_ *http.Server, c *tls.Conn, _ http.Handler) {
			// The server closes the connection when this function returns.
			if p, err := n.gate.Peer(c.ConnectionState()); err != nil || !n.admitsRaft(launcher.NodeID(p.NodeID)) {
				return
			}
			rc := &raftConn{Conn: c, closed: make(chan struct{})}
			select {
			case n.raftConns <- rc:
				select {
				case <-rc.closed:
				case <-n.life.Done():
				}
			case <-n.raft.Done(): // its disk has failed: peers shall know at once
			case <-n.life.Done():
			}
		},
	}
	return srv
}

// raftConn tells when raft has closed it.
type raftConn struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (c *raftConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// peers keeps one HTTP/2 connection to each member that is talked to. Members
// are named by their id; which of their addresses is used, roads decide.
type peers struct {
	dial func(ctx context.Context, id, proto string) (net.Conn, error)
	// raftProto is raft's protocol in this node's epoch.
	raftProto string

	mu      sync.Mutex
	clients map[launcher.NodeID]*peer
}

// peer is one member: the client, and the connection that it calls over now.
type peer struct {
	*wire.Client
	now atomic.Pointer[http.Transport]
}

func (p *peer) RoundTrip(r *http.Request) (*http.Response, error) { return p.now.Load().RoundTrip(r) }

// CloseIdleConnections is what http.Client looks for.
func (p *peer) CloseIdleConnections() { p.now.Load().CloseIdleConnections() }

func (p *peers) client(id launcher.NodeID) *wire.Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.clients[id]; c != nil {
		return c.Client
	}
	c := &peer{}
	c.now.Store(p.transport(id))
	c.Client = wire.NewClient(&http.Client{Transport: c}, "https://"+string(id))
	p.clients[id] = c
	return c.Client
}

func (p *peers) transport(id launcher.NodeID) *http.Transport {
	return &http.Transport{
		Protocols: http2Only(),
		// A word a second shows the roads whether the other end's kernel still
		// answers. That it does and the agent does not is given more time: an
		// agent may be busy.
		HTTP2:           &http.HTTP2Config{SendPingTimeout: time.Second, PingTimeout: 4 * time.Second},
		IdleConnTimeout: 5 * time.Minute, // also ends those that renew left behind
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return p.dial(ctx, string(id), protoCalls)
		},
	}
}

// renew has new calls to a member open a new connection.
func (p *peers) renew(id launcher.NodeID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.clients[id]; c != nil {
		c.now.Swap(p.transport(id)).CloseIdleConnections()
	}
}

// dialTimeout bounds looking for a sign of life: on one network it comes in
// milliseconds or not at all.
const dialTimeout = 2 * time.Second

// dialRaft opens a raft connection to a member.
func (p *peers) dialRaft(ctx context.Context, id string) (net.Conn, error) {
	return p.dial(ctx, id, p.raftProto)
}

func (p *peers) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.clients {
		c.Close()
	}
}
