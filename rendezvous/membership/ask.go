package membership

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Ports of a node. RPC and raft share one by ALPN; gossip has one of its own,
// TCP and UDP.
const (
	DefaultRPCPort    = 7940
	DefaultGossipPort = 7941
)

// JoinTimeout bounds a join as a whole.
const JoinTimeout = 30 * time.Second

const (
	// provenWithin bounds how long one of several addresses may take to answer and prove
	// its cluster.
	provenWithin = 5 * time.Second
	// mostTold is how many failed addresses an error names.
	mostTold = 8
)

// askWhoProves asks a node that has proven to be of the token's cluster, and goes on to
// the next such node only if the one before could not be asked.
func askWhoProves(
	ctx context.Context, now func() time.Time, addrs []string, token trust.Token, req wire.JoinRequest,
) (res wire.JoinResponse, at string, err error) {
	if len(addrs) == 1 {
		if res, _, err = askToJoin(ctx, now, addrs[0], JoinTimeout, token, req); err != nil {
			err = fmt.Errorf("join the cluster at %s: %w", addrs[0], err)
		}
		return res, addrs[0], err
	}
	var failed []error
	for at, err := range proven(ctx, now, addrs, token.Pin) {
		last := false
		if err == nil {
			if res, last, err = askToJoin(ctx, now, at, provenWithin, token, req); err == nil {
				return res, at, nil
			}
		}
		failed = append(failed, fmt.Errorf("join the cluster at %s: %w", at, err))
		if last {
			failed = failed[len(failed)-1:]
			break
		}
	}
	if more := len(failed) - mostTold; more > 0 {
		failed = append(failed[:mostTold], fmt.Errorf("and the same at %d more addresses", more))
	}
	if ctx.Err() != nil {
		failed = append(failed, ctx.Err())
	}
	return res, "", errors.Join(failed...)
}

// proven yields addresses in the order in which they prove to be of the cluster with this
// CA, or fail to. It sends them nothing but a handshake.
func proven(ctx context.Context, now func() time.Time, addrs []string, pin trust.Pin) iter.Seq2[string, error] {
	type answer struct {
		at  string
		err error
	}
	return func(yield func(string, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		answers := make(chan answer, len(addrs))
		var all sync.WaitGroup // in parallel: anybody may have announced hundreds of dead addresses
		for _, at := range addrs {
			all.Go(func() { answers <- answer{at, prove(ctx, now, at, pin)} })
		}
		defer func() {
			cancel()
			all.Wait()
		}()
		for range addrs {
			if a := <-answers; !yield(a.at, a.err) {
				return
			}
		}
	}
}

func prove(ctx context.Context, now func() time.Time, at string, pin trust.Pin) error {
	ctx, cancel := context.WithTimeout(ctx, provenWithin)
	defer cancel()
	c, err := (&tls.Dialer{Config: trust.JoinClient(pin, now, dial.Calls)}).DialContext(ctx, "tcp", at)
	if err != nil {
		return err
	}
	return c.Close()
}

// askToJoin sends the secret.
func askToJoin(
	ctx context.Context, now func() time.Time, addr string, within time.Duration, token trust.Token, req wire.JoinRequest,
) (_ wire.JoinResponse, proven bool, _ error) {
	return AskAsNewcomer(ctx, now, addr, within, token, func(c *wire.Client) (wire.JoinResponse, error) {
		return wire.Join.Call(ctx, c, req)
	})
}

// AskAsNewcomer calls over a connection whose other end has proven in the handshake that
// it belongs to the cluster that the token pins.
func AskAsNewcomer[Res any](
	ctx context.Context, now func() time.Time, addr string, within time.Duration, token trust.Token,
	ask func(*wire.Client) (Res, error),
) (_ Res, proven bool, _ error) {
	if !strings.Contains(addr, ":") || strings.Count(addr, ":") > 1 && !strings.HasPrefix(addr, "[") {
		addr = net.JoinHostPort(strings.Trim(addr, "[]"), strconv.Itoa(DefaultRPCPort))
	}
	conf := trust.JoinClient(token.Pin, now, dial.Calls)
	verify, passed := conf.VerifyConnection, atomic.Bool{}
	conf.VerifyConnection = func(cs tls.ConnectionState) error {
		err := verify(cs)
		passed.Store(passed.Load() || err == nil)
		return err
	}
	tr := &http.Transport{
		TLSClientConfig: conf, Protocols: new(http.Protocols), TLSHandshakeTimeout: within,
		DialContext: (&net.Dialer{Timeout: within}).DialContext,
	}
	tr.Protocols.SetHTTP2(true)
	c := wire.NewClient(&http.Client{Transport: tr}, "https://"+addr)
	defer c.Close()
	for {
		res, err := ask(c)
		if !errors.Is(err, wire.ErrRetry) && !errors.Is(err, wire.ErrNoLeader) {
			return res, passed.Load(), err
		}
		select { // a cluster that has just been started has to elect its leader first
		case <-ctx.Done():
			return res, true, err
		case <-time.After(250 * time.Millisecond):
		}
	}
}
