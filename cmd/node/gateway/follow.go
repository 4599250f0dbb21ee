package gateway

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// FollowerConfig of what keeps a member's map. All of it is needed.
type FollowerConfig struct {
	Self launcher.NodeID
	Host string
	// Here answers while this member leads, Leader gives another that does.
	Here   *wire.ToLeader
	Leader func() (wire.Leader, error)
	// Leads and Elected tell that another may lead.
	Leads   *rendezvous.Latest[launcher.NodeID]
	Elected func() (changed <-chan struct{})
	// Map is written here alone.
	Map    *rendezvous.Latest[View]
	Logger *slog.Logger
}

// Follower keeps a member's map.
type Follower struct{ cfg FollowerConfig }

// NewFollower makes one; Run follows.
func NewFollower(cfg FollowerConfig) *Follower { return &Follower{cfg} }

const (
	// cutAfter is how long no leader is heard before the map may be old: an election takes no longer.
	cutAfter = 3 * time.Second
	// A leader that was elected answers a little later, which no event tells. The pause between two questions doubles.
	firstPause, longestPause = 100 * time.Millisecond, 10 * time.Second
)

// Run writes the leader's map, and goes on under the next leader, until ctx ends. While a leader answers nothing wakes
// it but a change.
func (f *Follower) Run(ctx context.Context) error {
	cfg := f.cfg
	lost, pause := time.Now(), firstPause
	for {
		_, hereChanged := cfg.Here.Leads()
		_, leadsChanged := cfg.Leads.Watch()
		elected := cfg.Elected()
		err := cfg.ask(ctx, func(m rendezvous.GatewayMap) error {
			lost, pause = time.Time{}, firstPause
			cfg.heard(m)
			return nil
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if lost.IsZero() {
			lost = time.Now()
		}
		cfg.Logger.Debug("gateway: no leader is heard", "error", err)
		left := cutAfter - time.Since(lost)
		if left <= 0 {
			cfg.cut()
			left = longestPause
		}
		again := time.NewTimer(min(pause, left))
		pause = min(2*pause, longestPause)
		select {
		case <-hereChanged:
			pause = firstPause
		case <-leadsChanged:
			pause = firstPause
		case <-elected:
			pause = firstPause
		case <-again.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		again.Stop()
	}
}

// ask passes the leader's maps on, until there are no more.
func (c FollowerConfig) ask(ctx context.Context, take func(rendezvous.GatewayMap) error) error {
	return c.atLeader(ctx, func(ctx context.Context, to *wire.Client) error {
		return wire.FollowGateway.Call(ctx, to, wire.Empty{}, take)
	})
}

// Use tells the leader of requests for services on demand.
func (f *Follower) Use(ctx context.Context, r wire.UseServicesRequest) (res wire.UseServicesResponse, err error) {
	err = f.cfg.atLeader(ctx, func(ctx context.Context, to *wire.Client) error {
		res, err = wire.UseServices.Call(ctx, to, r)
		return err
	})
	return res, err
}

// Sign has the leader sign this member's certificate.
func (f *Follower) Sign(ctx context.Context, r wire.SignGatewayRequest) (res wire.SignGatewayResponse, err error) {
	err = f.cfg.atLeader(ctx, func(ctx context.Context, to *wire.Client) error {
		res, err = wire.SignGateway.Call(ctx, to, r)
		return err
	})
	return res, err
}

// atLeader makes a call of this member to the leader, which may be this member itself.
func (c FollowerConfig) atLeader(ctx context.Context, ask func(context.Context, *wire.Client) error) error {
	if leads, _ := c.Here.Leads(); leads {
		return ask(ctx, c.Here.As(wire.Caller{Node: c.Self, Host: c.Host}))
	}
	leader, err := c.Leader()
	if err != nil {
		return err
	}
	return leader.Ask(ctx, wire.Caller{}, ask)
}

// heard keeps a map. Of a service that listens on another member's loopback it knows only that it is there, and one that
// is wedged is asked only where no other of its model is ready.
func (c FollowerConfig) heard(m rendezvous.GatewayMap) {
	m.Backends = slices.Clone(m.Backends) // the leader compares with what it sent
	well := map[string]bool{}
	for i := range m.Backends {
		b := &m.Backends[i]
		b.Ready = b.Ready && (!b.Local || b.Host == c.Host)
		for _, model := range b.Models {
			well[model] = well[model] || b.Ready && b.State == string(launcher.ServiceReady)
		}
	}
	for i := range m.Backends {
		other := func(model string) bool { return well[model] }
		if b := &m.Backends[i]; b.State == string(launcher.ServiceWedged) && slices.ContainsFunc(b.Models, other) {
			b.Ready, b.Comes = false, b.Ready
		}
	}
	last := c.Map.Load()
	if last.Cut || last.Since.IsZero() {
		last.Since = time.Now()
	}
	c.Map.Store(View{GatewayMap: m, Since: last.Since})
}

// cut keeps the last map, which may be old.
func (c FollowerConfig) cut() {
	if last := c.Map.Load(); !last.Cut && !last.Since.IsZero() {
		c.Map.Store(View{GatewayMap: last.GatewayMap, Cut: true, Since: time.Now()})
	}
}
