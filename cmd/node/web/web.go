// Package web is the page that each member shows to browsers: machines, fabric, jobs with their output, services,
// models and doctor's findings, and the two things that are done from there: stop, and restart.
//
// It decides who may look (by a link that `sparkrun web` gives, each with the rights of the user who asked), where it
// listens, and how what is known is drawn.
//
// It must not know anything that the procedures for users do not tell, nor do what they do not let that user do: it
// calls them, as the command line does. It asks nothing while nobody looks.
package web

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Config of a node's part. All of it is needed.
type Config struct {
	// Host is this member's name, Version its build's.
	Host, Version string
	// Visitors are whom it knows.
	Visitors *Visitors
	// As makes calls of a user's.
	As     func(wire.Caller) *wire.Client
	Logger *slog.Logger
}

// Web is a node's part.
type Web struct {
	*Visitors
	cfg      Config
	seen     *gatherer
	mux      *http.ServeMux
	errorLog *log.Logger

	ctx       context.Context // of what visitors have begun; it ends with Run
	end       context.CancelFunc
	tasks     sync.WaitGroup
	examining sync.Mutex

	drawing sync.Mutex
	drawn   map[string]drawn
}

// New makes one; Run listens.
func New(cfg Config) *Web {
	w := &Web{Visitors: cfg.Visitors, cfg: cfg, drawn: map[string]drawn{}}
	w.seen = newGatherer(cfg.As(wire.Caller{User: &asker}))
	w.ctx, w.end = context.WithCancel(context.Background())
	w.errorLog = log.New(httpLines{rendezvous.NewSparing(cfg.Logger, quietFor)}, "", 0)
	w.mux = w.routes()
	return w
}

// asker is who asks what is shown to all: what machines and jobs do is told to every user.
var asker = wire.User{Name: "sparkrun", UID: wire.NoUID}

// Run listens until ctx ends, and every request has.
func (w *Web) Run(ctx context.Context) error {
	eg, ctx := errgroup.WithContext(ctx)
	defer w.tasks.Wait()
	defer w.end()
	eg.Go(func() error { return w.seen.run(ctx) })
	eg.Go(func() error { return w.listen(ctx) })
	return eg.Wait()
}

const (
	connectionsMost = 1024 // of each listener
	// lookEach is how often sessions that are over are ended, and an address that could not be listened on is tried again.
	lookEach = 10 * time.Second
	// grace is how long what is under way has when an address is left.
	grace = time.Second
	// quietFor is how long a complaint that browsers cause is not repeated.
	quietFor = 10 * time.Second
)

// loopback is always listened on, without TLS: for browsers of the machine, and those that come through ssh -L.
var loopback = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}

// listen keeps a listener on loopback, and by TLS on the management address while there is a certificate.
func (w *Web) listen(ctx context.Context) error {
	if w.Visitors.cfg.Port == 0 {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	all := map[netip.Addr]func(){}
	var serving sync.WaitGroup
	defer func() {
		for _, stop := range all {
			serving.Go(stop)
		}
		serving.Wait()
	}()
	said := ""
	for {
		at, cert, moved, signed := w.outside()
		wanted := slices.Clone(loopback)
		if shown := certificateOf(cert); shown != nil && at.IsValid() && !slices.Contains(wanted, at) {
			wanted = append(wanted, at)
		}
		for addr, stop := range all {
			if !slices.Contains(wanted, addr) {
				stop()
				delete(all, addr)
			}
		}
		var failed error
		for _, addr := range wanted {
			if all[addr] != nil {
				continue
			}
			l, err := net.Listen("tcp", netip.AddrPortFrom(addr, w.Visitors.cfg.Port).String())
			if err != nil {
				if addr != netip.IPv6Loopback() || !errors.Is(err, syscall.EADDRNOTAVAIL) { // a machine without IPv6
					failed = errors.Join(failed, err)
				}
				continue
			}
			srv := w.server(ctx, !slices.Contains(loopback, addr))
			serving.Go(func() { w.serve(srv, l) })
			all[addr] = func() { shutdown(srv) }
		}
		if now := fmt.Sprint(failed); failed != nil && now != said {
			w.cfg.Logger.Warn("the page is not everywhere where it should be", "error", failed)
			said = now
		}
		select {
		case <-moved:
		case <-signed:
		case <-time.After(lookEach):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		w.look()
	}
}

// certificateOf gives what would be shown now; nil: nothing.
func certificateOf(get func() (*tls.Certificate, error)) *tls.Certificate {
	if get == nil {
		return nil
	}
	shown, err := get()
	if err != nil {
		return nil
	}
	return shown
}

func (w *Web) server(ctx context.Context, secured bool) *http.Server {
	srv := &http.Server{
		Handler: w, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 16 << 10, ErrorLog: w.errorLog,
		BaseContext:                  func(net.Listener) context.Context { return ctx }, // so streams end with the part
		DisableGeneralOptionsHandler: true,
	}
	if secured {
		srv.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				_, cert, _, _ := w.outside()
				if shown := certificateOf(cert); shown != nil {
					return shown, nil
				}
				return nil, errors.New("there is no certificate now")
			}}
	}
	return srv
}

func (w *Web) serve(srv *http.Server, l net.Listener) {
	serve := srv.Serve
	if srv.TLSConfig != nil {
		serve = func(l net.Listener) error { return srv.ServeTLS(l, "", "") }
	}
	if err := serve(netutil.LimitListener(l, connectionsMost)); !errors.Is(err, http.ErrServerClosed) {
		w.cfg.Logger.Error("the page ends on an address", "addr", l.Addr().String(), "error", err)
	}
}

func shutdown(srv *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	if srv.Shutdown(ctx) != nil {
		srv.Close()
	}
}

// httpLines takes net/http's complaints.
type httpLines struct{ *rendezvous.Sparing }

func (h httpLines) Write(b []byte) (int, error) {
	words := strings.TrimPrefix(strings.TrimSpace(string(b)), "http: ")
	h.Say(slog.LevelInfo, "page", rendezvous.KindOf(words), slog.String("what", words))
	return len(b), nil
}
