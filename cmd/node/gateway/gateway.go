// Package gateway is a node's part in the one address for all models: on one port it answers OpenAI's and Anthropic's
// API, and hands each request to the service that serves its model, wherever in the cluster that runs.
//
// It decides who may ask (keys), which service is asked, how long a request waits for one that comes, and what a
// client is told where none answers.
//
// It must not know how a service is started, nor decide whether it is: it goes by the leader's map alone. It keeps
// nothing on the disk, and no request is sent to a second engine once the first may have begun with it.
package gateway

import (
	"container/list"
	"context"
	"crypto/sha256"
	"errors"
	"log"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Config of a node's part. All of it is needed, but for Port, Management, Cert and Key, Sign,
// Passing, Use and Metrics.
type Config struct {
	// Host is this member's name, for messages.
	Host string
	// Port is that of all addresses listened on; 0: it listens on none.
	Port uint16
	// Management is the address that others reach this member at, invalid while there is none, and a channel that is
	// closed when it may have changed; nil: it listens on loopback only.
	Management func() (netip.Addr, <-chan struct{})
	// Cert and Key are the files of this member's certificate, as PEM, for all addresses but loopback; empty: those speak
	// what the gateway's CA has signed, or plain HTTP while there is no such CA.
	Cert, Key string
	// Sign has the leader sign a certificate of the gateway's CA.
	Sign func(context.Context, wire.SignGatewayRequest) (wire.SignGatewayResponse, error)
	// Shared: the page shows the same certificate, so that it is signed whoever may ask for models.
	Shared bool
	// Map is the leader's word as this member has it.
	Map *rendezvous.Latest[View]
	// Passing is told about how many requests are under way, a multiple of 64 that is no less; nil: nobody is.
	Passing func(n int)
	// Use tells the leader of requests for services on demand; nil: nobody is told, and they sleep.
	Use func(context.Context, wire.UseServicesRequest) (wire.UseServicesResponse, error)
	// Metrics answers those who may read metrics, with what this gateway knows; nil: there are none.
	Metrics func(http.ResponseWriter, *http.Request, Told)
	Logger  *slog.Logger
}

// View is the leader's map as this member has it.
type View struct {
	rendezvous.GatewayMap
	// Cut: this member does not hear from its leader now, and the map may be old.
	Cut bool
	// Since is when Cut became what it is; zero: no map has come yet.
	Since time.Time
}

// Gateway is a node's part.
type Gateway struct {
	cfg       Config
	lasting   lasting
	index     rendezvous.Latest[*index] // written by follow
	counters  counters
	lines     lines
	uses      uses
	pins      pins
	kept      atomic.Int64 // bytes, see keptMost
	passing   passing
	turn      atomic.Uint64
	transport http.RoundTripper
	longer    http.RoundTripper // for bodies of more than shortBody
	dial      func(ctx context.Context, addr string) error
	missed    chan struct{} // wakes redial
	buffers   buffers
	sparing   *rendezvous.Sparing
	errorLog  *log.Logger
	crossing  *http.CrossOriginProtection
	listening rendezvous.Latest[Listening]

	certificate *certificate // of the administrator's files; nil: there are none
	leaf        rendezvous.Latest[leaf]
}

// Open makes one; Run listens.
func Open(cfg Config) (*Gateway, error) {
	switch {
	case cfg.Map == nil:
		return nil, errors.New("open gateway: it has no map to go by")
	case cfg.Logger == nil:
		return nil, errors.New("open gateway: it has no logger")
	}
	g := &Gateway{
		cfg:      cfg,
		lasting:  lasting{loads: map[launcher.JobID]*load{}, buckets: map[[sha256.Size]byte]*bucket{}},
		counters: counters{all: map[pair]*counter{}},
		lines:    lines{of: map[string]int{}},
		uses:     uses{ask: cfg.Use, kick: make(chan struct{}, 1), woken: map[launcher.JobID]*waking{}},
		pins:     pins{byID: map[string]*list.Element{}, order: list.New()},
		sparing:  rendezvous.NewSparing(cfg.Logger, quietFor), crossing: http.NewCrossOriginProtection(),
	}
	if g.uses.ask == nil {
		g.uses.ask = func(context.Context, wire.UseServicesRequest) (wire.UseServicesResponse, error) {
			return wire.UseServicesResponse{}, wire.ErrNoLeader
		}
	}
	if cfg.Cert != "" {
		g.certificate = &certificate{cert: cfg.Cert, key: cfg.Key}
	}
	g.errorLog = log.New(httpLines{g.sparing}, "", 0)
	g.transport, g.longer = g.newTransport(goneAfter), g.newTransport(goneAfterLong)
	g.dial, g.missed = dialOnce, make(chan struct{}, 1)
	g.index.Store(g.lasting.index(cfg.Map.Load()))
	return g, nil
}

// Calls are the procedures that it answers.
func (g *Gateway) Calls() []wire.Call {
	return append(wire.GatewayCounts.Serve(g.counted), wire.ShowGateway.Around(g.show))
}

func (g *Gateway) counted(context.Context, wire.Caller, wire.GatewayCountsRequest) (wire.NodeGatewayCounts, error) {
	return wire.NodeGatewayCounts{Host: g.cfg.Host, Counts: g.Counts()}, nil
}

// Run listens as the settings say until ctx ends, and every request has.
func (g *Gateway) Run(ctx context.Context) error {
	eg, ctx := errgroup.WithContext(ctx)
	eg.Go(func() error { return g.follow(ctx) })
	eg.Go(func() error { return g.keepLeaf(ctx) })
	eg.Go(func() error { return g.listen(ctx) })
	eg.Go(func() error { return g.tellUse(ctx) })
	eg.Go(func() error { return g.redial(ctx) })
	return eg.Wait()
}

// Close lets connections to engines go. Run must have ended.
func (g *Gateway) Close() {
	for _, t := range []http.RoundTripper{g.transport, g.longer} {
		if t, ok := t.(interface{ CloseIdleConnections() }); ok {
			t.CloseIdleConnections()
		}
	}
}

// follow makes each map ready for look-ups.
func (g *Gateway) follow(ctx context.Context) error {
	for {
		v, changed := g.cfg.Map.Watch()
		x := g.lasting.index(v)
		g.index.Store(x)
		if len(x.moving()) > 0 {
			g.uses.stir()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// quietFor is how long a complaint that clients and engines cause is not repeated.
const quietFor = 10 * time.Second

// httpLines takes net/http's complaints.
type httpLines struct{ *rendezvous.Sparing }

func (w httpLines) Write(b []byte) (int, error) {
	words := strings.TrimPrefix(strings.TrimSpace(string(b)), "http: ")
	w.Say(slog.LevelInfo, "gateway", rendezvous.KindOf(words), slog.String("what", words))
	return len(b), nil
}
