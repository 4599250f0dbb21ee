// Package server answers calls: those of users on this machine's socket, and those of
// members, clients and newcomers on the cluster's port.
//
// It decides who calls (on the socket the kernel says so, elsewhere the certificate),
// which calls are for them, and how much each user may have it hold at once.
//
// It must not decide what is answered: the parts give it their calls.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/audit"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/failover"
	"github.com/sparkrun/sparkrun/rendezvous/membership"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Config of a node's Server. All of it is needed, but for Clients and Bulk.
type Config struct {
	Socket  string // where users of this machine call
	List    *membership.List
	Members *membership.Membership
	// Failover takes over raft's connections.
	Failover *failover.Failover
	Leader   *wire.ToLeader
	Everyone wire.Everyone
	Clients  Quota // of one user's clients
	// Bulk answers member nodes that read much; nil: nobody does.
	Bulk   http.Handler
	Audit  audit.Trail
	Logger *slog.Logger
}

// Server answers the calls that it is given.
type Server struct {
	*wire.Server
	cfg       Config
	clients   *quotas
	listening chan struct{}
}

// New makes a server that answers these calls.
func New(cfg Config, calls ...wire.Call) *Server {
	return &Server{
		Server: wire.NewServer(wire.ServerConfig{
			Leader: cfg.Leader, Everyone: cfg.Everyone, Audit: cfg.Audit.User,
		}, calls...),
		cfg: cfg, clients: newQuotas("calls", cfg.Clients.or(clientCalls)), listening: make(chan struct{}),
	}
}

// Listening is closed once users can call.
func (s *Server) Listening() <-chan struct{} { return s.listening }

// Run answers users on the socket.
func (s *Server) Run(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(s.cfg.Socket), 0o755); err != nil {
		return fmt.Errorf("open agent socket: %w", err)
	}
	l, err := listenLocal(s.cfg.Socket)
	if err != nil {
		return err
	}
	if err := grantMembers(ctx, s.cfg.Socket); err != nil { // on failure the group bits still apply
		s.cfg.Logger.Warn("open socket to members by uid", "error", err)
	}
	close(s.listening)
	local := newLocals(l, s.cfg.Logger)
	return serve(ctx, local.server(s.Users()), local)
}

// Serve answers at a listener of the cluster's port until ctx ends, and closes the
// listener.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	return serve(ctx, s.cluster(ctx), s.cfg.Members.Listener.Listen(l))
}

// serve runs a server until ctx ends and every handler has returned.
func serve(ctx context.Context, srv *http.Server, l net.Listener) error {
	var closed sync.WaitGroup
	defer closed.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	srv.BaseContext = func(net.Listener) context.Context { return ctx } // so streams end with the server
	closed.Go(func() {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if srv.Shutdown(grace) != nil {
			srv.Close()
		}
	})
	err := srv.Serve(l)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("serve %s: %w", l.Addr(), err)
}

// quietFor is how long a complaint that callers cause is not repeated.
const quietFor = 10 * time.Second

// errorLog takes net/http's complaints, which clients can cause as often as they like.
func errorLog(to *rendezvous.Sparing) *log.Logger { return log.New(httpLines{to}, "", 0) }

type httpLines struct{ *rendezvous.Sparing }

func (w httpLines) Write(b []byte) (int, error) {
	words := strings.TrimSpace(string(b))
	words = strings.TrimPrefix(strings.TrimPrefix(words, "http2: "), "http: ")
	words = strings.TrimPrefix(words, "server: ")
	w.Say(slog.LevelInfo, "http server", rendezvous.KindOf(words), slog.String("what", words))
	return len(b), nil
}

// frameSize is the longest HTTP/2 frame that a server here takes, in bytes. With the
// default, 1 MiB, a client keeps 512 KiB of buffer for each of its streams, and a leader
// has a stream to every node as long as it leads.
const frameSize = 64 << 10

// cluster serves members, clients and newcomers; it hands raft's connections to failover.
func (s *Server) cluster(ctx context.Context) *http.Server {
	gate := s.cfg.List.Gate
	srv := &http.Server{
		Protocols:         new(http.Protocols),
		TLSConfig:         s.cfg.Members.Listener.TLS(), // only for its protocols: the listener does the handshakes
		ReadHeaderTimeout: 5 * time.Second,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          errorLog(rendezvous.NewSparing(s.cfg.Logger, quietFor)),
		IdleTimeout:       2 * time.Minute,
		ConnContext:       countUnauthenticated,
		HTTP2: &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 5 * time.Second,
			MaxReadFrameSize: frameSize},
	}
	srv.Protocols.SetHTTP2(true)
	srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := wire.Caller{Addr: r.RemoteAddr}
		if r.TLS != nil {
			switch p, err := gate.Peer(*r.TLS); {
			case err == nil && p.Role == trust.RoleNode:
				c.Node, c.Host = launcher.NodeID(p.NodeID), p.Host
			case err == nil && p.Role == trust.RoleClient:
				s.serveClient(p, w, r)
				return
			case !errors.Is(err, trust.ErrNoCertificate):
				// It was removed after the handshake, or is no node: serve nothing.
				http.Error(w, "not a member of this cluster", http.StatusForbidden)
				return
			}
		}
		r = r.WithContext(wire.WithCaller(r.Context(), c))
		if c.Node == "" {
			forUnauthenticated(s, w, r)
			return
		}
		s.ServeHTTP(w, r)
	})
	srv.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){
		s.cfg.Failover.Proto(): func(_ *http.Server, c *tls.Conn, _ http.Handler) {
			// The server closes the connection when this function returns.
			if p, err := gate.Peer(c.ConnectionState()); err == nil {
				s.cfg.Failover.Serve(ctx, launcher.NodeID(p.NodeID), c)
			}
		},
		dial.Bulk: func(_ *http.Server, c *tls.Conn, _ http.Handler) {
			if _, err := gate.Peer(c.ConnectionState()); err == nil && s.cfg.Bulk != nil {
				serveBulk(ctx, c, s.cfg.Bulk, srv.ErrorLog)
			}
		},
	}
	return srv
}
