package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"
)

const (
	connectionsMost = 8192 // of each listener
	// listenEach is how long after a failure an address is tried again: what has the port may go.
	listenEach = 5 * time.Second
	// grace is how long connections have to end when an address is left.
	grace = time.Second
)

// loopback is always listened on, without TLS.
var loopback = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}

// Listening is where the gateway listens.
type Listening struct {
	Addrs []netip.AddrPort
	// Err is why it does not listen somewhere that it should; nil: it does everywhere.
	Err error
}

// Listening tells where it listens now.
func (g *Gateway) Listening() Listening { return g.listening.Load() }

// listener is one that listens.
type listener struct {
	secured bool // it speaks TLS
	stop    func()
}

// wanted are the addresses to listen on by the settings, and channels that tell of another answer.
func (g *Gateway) wanted() (addrs []netip.AddrPort, changed, moved <-chan struct{}) {
	x, changed := g.index.Watch()
	if g.cfg.Port == 0 {
		return nil, changed, nil
	}
	at := slices.Clone(loopback)
	if g.cfg.Management != nil {
		var addr netip.Addr
		addr, moved = g.cfg.Management()
		if addr.IsValid() && x.admits() && !slices.Contains(at, addr) {
			at = append(at, addr)
		}
	}
	if v := x.Gateway.VirtualIP; v.IsValid() && x.admits() {
		at = append(at, v.Addr())
	}
	for _, a := range at {
		addrs = append(addrs, netip.AddrPortFrom(a, g.cfg.Port))
	}
	return addrs, changed, moved
}

// listen keeps a listener on each address that the settings want, until ctx ends and all requests have.
func (g *Gateway) listen(ctx context.Context) error {
	var serving sync.WaitGroup
	defer serving.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all := map[netip.AddrPort]listener{}
	for {
		addrs, changed, moved := g.wanted()
		_, signed := g.leaf.Watch()
		for at, l := range all {
			if !slices.Contains(addrs, at) || l.secured != (g.tlsAt(at.Addr()) != nil) {
				l.stop()
				delete(all, at)
			}
		}
		var failed, unsigned error
		for _, at := range addrs {
			if all[at].stop != nil {
				continue
			}
			secured := g.tlsAt(at.Addr())
			if secured != nil {
				shown, err := secured.GetCertificate(nil)
				if err != nil && g.certificate != nil {
					failed = errors.Join(failed, fmt.Errorf("listen on %s: %w", at, err))
				} else if err != nil { // keepLeaf tells when that has changed
					unsigned = errors.Join(unsigned, fmt.Errorf("listen on %s: %w", at, err))
				}
				if shown == nil { // nobody could come in there
					continue
				}
			}
			l, err := (&net.ListenConfig{Control: mayBeAbsent}).Listen(ctx, "tcp", at.String())
			switch {
			case err == nil:
				srv := g.server(ctx)
				srv.TLSConfig = secured
				serving.Go(func() { g.serve(srv, l) })
				all[at] = listener{secured: secured != nil, stop: func() { shutdown(srv) }}
			case at.Addr() == netip.IPv6Loopback() && errors.Is(err, syscall.EADDRNOTAVAIL): // a machine without IPv6
			case ctx.Err() == nil:
				failed = errors.Join(failed, fmt.Errorf("listen on %s: %w", at, err))
			}
		}
		g.tell(all, errors.Join(failed, unsigned))
		var again <-chan time.Time
		if failed != nil {
			again = time.After(listenEach)
		}
		select {
		case <-changed:
		case <-moved:
		case <-signed:
		case <-again:
		case <-ctx.Done():
			var ends sync.WaitGroup
			for _, l := range all {
				ends.Go(l.stop)
			}
			ends.Wait()
			g.listening.Store(Listening{})
			return context.Cause(ctx)
		}
	}
}

// mayBeAbsent lets a socket listen on an address that the machine does not have now: the virtual IP comes and goes
// (ip(7), IP_FREEBIND).
func mayBeAbsent(network, _ string, c syscall.RawConn) error {
	if network != "tcp4" {
		return nil
	}
	var set error
	err := c.Control(func(fd uintptr) {
		set = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1))
	})
	return errors.Join(err, set)
}

// tell stores where it listens, and says so where that has changed.
func (g *Gateway) tell(all map[netip.AddrPort]listener, failed error) {
	now := Listening{Err: failed}
	for at := range all {
		now.Addrs = append(now.Addrs, at)
	}
	slices.SortFunc(now.Addrs, netip.AddrPort.Compare)
	before := g.listening.Load()
	if failed != nil && (before.Err == nil || before.Err.Error() != failed.Error()) {
		g.cfg.Logger.Warn("gateway does not listen everywhere", "error", failed)
	}
	if !slices.Equal(before.Addrs, now.Addrs) {
		g.cfg.Logger.Info("gateway listens", "addrs", now.Addrs)
	}
	g.listening.Store(now)
}

func (g *Gateway) server(ctx context.Context) *http.Server {
	return &http.Server{
		Handler:           g,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          g.errorLog,
		BaseContext:       func(net.Listener) context.Context { return ctx }, // so streams end with the part

		DisableGeneralOptionsHandler: true,
	}
}

func (g *Gateway) serve(srv *http.Server, l net.Listener) {
	serve := srv.Serve
	if srv.TLSConfig != nil {
		serve = func(l net.Listener) error { return srv.ServeTLS(l, "", "") }
	}
	if err := serve(netutil.LimitListener(l, connectionsMost)); !errors.Is(err, http.ErrServerClosed) {
		g.cfg.Logger.Error("gateway ends on an address", "addr", l.Addr().String(), "error", err)
	}
}

// shutdown ends a server and its connections. What is under way has a moment: who was let in by settings that are no
// more is not served for long.
func shutdown(srv *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	if srv.Shutdown(ctx) != nil {
		srv.Close()
	}
}
