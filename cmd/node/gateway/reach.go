package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A machine that loses its power refuses nothing and closes nothing: dials to it end by their time limit alone, and what
// waits for its answer would wait for ever. A machine that runs answers by its kernel, however busy its engine is.
const (
	dialMost = 2 * time.Second // one SYN may be lost: the next goes after 1 s
	// dialSlow is after how long of a dial others' requests go elsewhere.
	dialSlow = 500 * time.Millisecond
	// goneAfter is how long nothing that was sent may be acknowledged, and how long an idle connection's probes may be
	// unanswered: then what is under way on it is lost. It counts also while an engine reads nothing, so it is for
	// requests alone that fit into the window of one that does not, of shortBody at most.
	goneAfter     = 2 * time.Second
	goneAfterLong = time.Minute // for longer ones
	redialMost    = 10 * time.Second
	shortBody     = 32 << 10
	probeEach     = time.Second // of a connection on which nothing comes
	// idleFor is how long a connection is kept for the next request. If its machine dies meanwhile that request is lost,
	// as it may have begun, while a dial would have found out without risk; on a LAN one takes a fraction of a
	// millisecond. Under load connections are used again before that, so that ports do not run out. It is also less
	// than the 5 s after which uvicorn and cpp-httplib close a connection, which loses what is on its way, too.
	idleFor = 20 * time.Millisecond
)

// unreachedError: no connection was made, so that nothing of the request has been sent.
type unreachedError struct{ error }

func (e unreachedError) Unwrap() error { return e.error }

// newTransport is for requests whose connection is given up once its machine has not answered for as long.
func (g *Gateway) newTransport(gone time.Duration) *http.Transport {
	d := net.Dialer{Timeout: dialMost,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: probeEach, Interval: probeEach,
			Count: max(2, int(gone/probeEach))},
		Control: func(_, _ string, c syscall.RawConn) error {
			var set error
			err := c.Control(func(fd uintptr) {
				set = os.NewSyscallError("setsockopt",
					unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(gone.Milliseconds())))
			})
			return errors.Join(err, set)
		}}
	return &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			slow := time.AfterFunc(dialSlow, func() { g.avoidAddr(addr) })
			defer slow.Stop()
			c, err := d.DialContext(ctx, network, addr)
			if err != nil {
				return nil, unreachedError{err}
			}
			return c, nil
		},
		DisableCompression:     true,
		MaxIdleConnsPerHost:    4096,
		IdleConnTimeout:        idleFor,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// transportOf gives the one for a request.
func (g *Gateway) transportOf(rq *request) http.RoundTripper {
	if rq.whole && len(rq.head) <= shortBody {
		return g.transport
	}
	return g.longer
}

// silent tells whether a connection ended because its machine does not answer any more.
func silent(err error) bool {
	var netErr net.Error
	return errors.As(err, &netErr) && netErr.Timeout()
}

// avoid has requests go to other services of the model, where there are any, until a connection to this one is made.
func (g *Gateway) avoid(b *backend) {
	b.load.unreached.Store(true)
	select {
	case g.missed <- struct{}{}:
	default: // redial knows
	}
}

func (g *Gateway) avoidAddr(addr string) {
	for _, all := range g.index.Load().models {
		for _, b := range all {
			if b.addr == addr && b.Ready {
				g.avoid(b)
			}
		}
	}
}

// redial dials services that are avoided until they are reached: no request has to find out.
func (g *Gateway) redial(ctx context.Context) error {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-g.missed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		for wait := reachEach; g.dialAvoided(ctx); wait = min(2*wait, redialMost) {
			pause.Reset(wait)
			select {
			case <-pause.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}

// dialAvoided dials each of them once, and tells whether there are any left.
func (g *Gateway) dialAvoided(ctx context.Context) (left bool) {
	avoided := map[*load]*backend{}
	for _, all := range g.index.Load().models {
		for _, b := range all {
			if b.load.unreached.Load() {
				avoided[b.load] = b
			}
		}
	}
	var group sync.WaitGroup
	for _, b := range avoided {
		group.Go(func() {
			if !b.Ready || g.dial(ctx, b.addr) == nil { // what is started anew is another one
				b.load.unreached.Store(false)
			}
		})
	}
	group.Wait()
	for l := range avoided {
		left = left || l.unreached.Load()
	}
	return left
}

// dialOnce makes a connection and lets it go.
func dialOnce(ctx context.Context, addr string) error {
	d := net.Dialer{Timeout: dialMost}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err == nil {
		err = c.Close()
	}
	return err
}
