// Package gateway is a node's part in the one address for all models: on one port it answers OpenAI's and Anthropic's
// API, and hands each request to the service that serves its model, wherever in the cluster that runs.
//
// It decides who may ask (keys), which service is asked, how long a request waits for one that comes, and what a client
// is told where none answers.
//
// It must not know how a service is started, nor decide whether it is: it goes by the leader's map alone. It keeps
// nothing on the disk, and no request is sent to a second engine once the first may have begun with it.
package gateway

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Config of a node's part. All of it is needed, but for Port and Management.
type Config struct {
	// Host is this member's name, for messages.
	Host string
	// Port is that of all addresses listened on; 0: it listens on none.
	Port uint16
	// Management is the address that others reach this member at, invalid while there is none, and a channel that is
	// closed when it may have changed; nil: it listens on loopback only.
	Management func() (netip.Addr, <-chan struct{})
	// Map is the leader's word as this member has it.
	Map *rendezvous.Latest[View]
	Logger *slog.Logger
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
	cfg Config
}

// Open makes one; Run listens.
func Open(cfg Config) (*Gateway, error) { return &Gateway{cfg: cfg}, nil }

// Calls are the procedures that it answers.
func (g *Gateway) Calls() []wire.Call { return nil }

// Run listens as the settings say until ctx ends, and every request has.
func (g *Gateway) Run(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// Close lets connections to engines go. Run must have ended.
func (g *Gateway) Close() {}
