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
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
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
// connections are handed to failover.
func (n *node) clusterServer() *http.Server {
	srv := &http.Server{
		Protocols:         http2Only(),
		TLSConfig:         n.members.Listener.TLS(), // for its protocols: the door makes the handshakes
		ReadHeaderTimeout: 5 * time.Second,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(n.log.Handler(), slog.LevelInfo),
		IdleTimeout:       2 * time.Minute,
		ConnContext:       countStrangers,
		HTTP2:             &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 5 * time.Second, MaxReadFrameSize: frameSize},
	}
	srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := wire.Caller{Addr: r.RemoteAddr}
		if r.TLS != nil {
			switch p, err := n.list.Gate.Peer(*r.TLS); {
			case err == nil && p.Role == trust.RoleNode:
				c.Node, c.Host = launcher.NodeID(p.NodeID), p.Host
			case err == nil && p.Role == trust.RoleClient:
				n.serveClient(p, w, r)
				return
			case !errors.Is(err, trust.ErrNoCertificate):
				// Removed since the handshake, or no node: nothing is served.
				http.Error(w, "not a member of this cluster", http.StatusForbidden)
				return
			}
		}
		r = r.WithContext(wire.WithCaller(r.Context(), c))
		if c.Node == "" {
			forStrangers(n.server(), w, r)
			return
		}
		n.server().ServeHTTP(w, r)
	})
	srv.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){
		n.failover.Proto(): func(_ *http.Server, c *tls.Conn, _ http.Handler) {
			// The server closes the connection when this function returns.
			if p, err := n.list.Gate.Peer(c.ConnectionState()); err == nil {
				n.failover.Serve(n.life, launcher.NodeID(p.NodeID), c)
			}
		},
	}
	return srv
}

// serveAt answers at one listener.
func (n *node) serveAt(ctx context.Context, l net.Listener) error {
	return serve(ctx, n.clusterServer(), n.members.Listener.Listen(l), (*http.Server).Serve)
}

func http2Only() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP2(true)
	return p
}
