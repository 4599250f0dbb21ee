// Package network keeps this node on the network: it gossips and listens at the
// management address, and listens at the fabric's, as these come, move and go.
//
// It decides which address that is, and moves all listeners with it; what this node tells
// of itself by gossip and by mDNS; and where gossip looks for others.
//
// It must not decide who may connect or what is answered there, and must take gossip only
// as a hint.
package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/doctor"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/clone"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/gossip"
	"github.com/sparkrun/sparkrun/rendezvous/membership"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
)

// Config of a node's Network. All of it is needed, but for Management.
type Config struct {
	Self       rendezvous.Self
	Management string // as the user named it; see envgen.Management
	GossipPort uint16
	// Announce has this member announce itself by mDNS on the management link.
	Announce bool
	// Trust is the folder in which the gossip keys lie.
	Trust  string
	Epoch  launcher.Epoch
	Gate   *trust.Gate
	Keys   *membership.Keyring
	Record *rendezvous.Record
	Dial   *dial.Dialer
	Clones *clone.Finder
	// Inventory is this machine's hardware. Present is written here: the members that
	// gossip knows, including the silent ones.
	Inventory *rendezvous.Latest[envgen.Inventory]
	Present   *rendezvous.Latest[[]gossip.Peer]
	Logger    *slog.Logger
}

// Network is this node's part in gossip, and its listeners.
type Network struct {
	cfg       Config
	gossip    atomic.Pointer[gossip.Gossip] // nil while there is no management address
	reachable chan struct{}
	reached   sync.Once
}

// New makes one; Run starts it.
func New(cfg Config) *Network { return &Network{cfg: cfg, reachable: make(chan struct{})} }

// Reachable is closed once this node has its first management address since it was
// opened.
func (n *Network) Reachable() <-chan struct{} { return n.reachable }

// Run keeps the cluster's port and gossip on the management address, and moves them
// when it changes. serve answers at a listener, which it closes, until its ctx ends.
func (n *Network) Run(ctx context.Context, serve func(context.Context, net.Listener) error) error {
	g, ctx := errgroup.WithContext(ctx)
	fabric := dial.Listeners{
		Inventory: n.cfg.Inventory, Management: n.cfg.Management, Port: n.cfg.Self.RPCPort, Logger: n.cfg.Logger,
		Serve: serve,
	}
	g.Go(func() error { return fabric.Run(ctx) })
	g.Go(func() error {
		for {
			addr, err := n.Address(ctx)
			if err != nil {
				return err
			}
			if err := n.at(ctx, addr, serve); err != nil {
				return err
			}
			n.cfg.Logger.Warn("management address changed", "old", addr)
		}
	})
	return g.Wait()
}

// Address waits until there is a management address.
func (n *Network) Address(ctx context.Context) (netip.Addr, error) {
	said := ""
	for {
		inv, changed := n.cfg.Inventory.Watch()
		mgmt, err := envgen.Management(inv, n.cfg.Management)
		if err == nil {
			return mgmt.Addr, nil
		}
		if err.Error() != said {
			said = err.Error()
			n.cfg.Logger.Warn("wait for a management address", "error", err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return netip.Addr{}, ctx.Err()
		}
	}
}

// at serves and gossips on one address until another takes its place.
func (n *Network) at(ctx context.Context, addr netip.Addr, serve func(context.Context, net.Listener) error) error {
	l, err := listen(ctx, netip.AddrPortFrom(addr, n.cfg.Self.RPCPort))
	if err != nil {
		return err
	}
	g, err := n.openGossip(addr)
	if err != nil {
		l.Close()
		return err
	}
	defer g.Close()
	n.gossip.Store(g)
	if err := n.cfg.Keys.Use(g); err != nil {
		return err
	}
	defer n.cfg.Keys.Disuse()
	n.cfg.Dial.RememberOwn(addr)
	defer n.cfg.Present.Store(nil)
	defer n.gossip.Store(nil)

	n.reached.Do(func() { close(n.reachable) }) // the port listens, and gossip is heard

	moved := errors.New("moved")
	eg, ctx := errgroup.WithContext(ctx)
	eg.Go(func() error { return serve(ctx, l) })
	eg.Go(func() error { return g.Run(ctx) })
	eg.Go(func() error { return n.tellListeners(ctx, g) })
	eg.Go(func() error { return n.announces(ctx, addr) })
	eg.Go(func() error {
		for {
			inv, changed := n.cfg.Inventory.Watch()
			if mgmt, err := envgen.Management(inv, n.cfg.Management); err == nil && mgmt.Addr != addr {
				return moved
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	if err := eg.Wait(); !errors.Is(err, moved) {
		return err
	}
	return nil
}

// listen waits for an address that the kernel has not finished setting up.
func listen(ctx context.Context, addr netip.AddrPort) (net.Listener, error) {
	for deadline := time.Now().Add(10 * time.Second); ; {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr.String())
		if err == nil || time.Now().After(deadline) {
			if err != nil {
				return nil, fmt.Errorf("listen on %s: %w", addr, err)
			}
			return l, nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (n *Network) openGossip(addr netip.Addr) (*gossip.Gossip, error) {
	ring, err := trust.LoadGossipKeys(n.cfg.Trust)
	if err != nil {
		return nil, err
	}
	return gossip.Open(gossip.Config{
		Meta: n.meta(), Bind: addr, Port: n.cfg.GossipPort, Keyring: ring.Keys(), Label: n.cfg.Self.Cluster,
		Peers: n.knownPeers, OnChange: n.gossiped, Logger: n.cfg.Logger,
	})
}

// tellListeners keeps gossip told of the listeners there are.
func (n *Network) tellListeners(ctx context.Context, g *gossip.Gossip) error {
	told := n.meta()
	for {
		_, changed := n.cfg.Inventory.Watch()
		if now := n.meta(); now != told {
			if err := g.Update(now); err != nil {
				n.cfg.Logger.Warn("tell fabric addresses", "error", err)
			}
			told = now
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// meta is what this node tells of itself.
func (n *Network) meta() gossip.Meta {
	meta := gossip.Meta{
		ID: string(n.cfg.Self.ID), Host: n.cfg.Self.Host, RPCPort: n.cfg.Self.RPCPort, Epoch: n.cfg.Epoch.N,
		Version: n.cfg.Self.Version,
	}
	return meta.WithFabric(dial.FabricAddrs(n.cfg.Inventory.Load(), n.cfg.Management))
}

// gossiped takes gossip's hints.
func (n *Network) gossiped(ev gossip.Event) {
	n.cfg.Clones.Note(ev)
	if g := n.gossip.Load(); g != nil {
		n.cfg.Present.Store(g.Peers())
	}
}

// knownPeers are the gossip addresses worth trying.
func (n *Network) knownPeers() []netip.AddrPort {
	out := slices.Clone(n.cfg.Dial.Remembered().Peers)
	seen := map[netip.AddrPort]bool{}
	for _, a := range out {
		seen[a] = true
	}
	for _, m := range n.cfg.Record.Nodes() {
		if a := netip.AddrPortFrom(m.Addr.Addr(), n.cfg.GossipPort); m.ID != n.cfg.Self.ID && !seen[a] {
			out = append(out, a)
		}
	}
	return out
}

// Listeners are the ports of all members' agents, as gossip knows them.
func (n *Network) Listeners() []doctor.Listener {
	g, self := n.gossip.Load(), n.cfg.Self
	if g == nil {
		return nil
	}
	out := []doctor.Listener{
		{Node: string(self.ID), Addr: netip.AddrPortFrom(g.Addr().Addr(), self.RPCPort), What: "calls"},
		{Node: string(self.ID), Addr: g.Addr(), What: "gossip"},
	}
	for _, p := range n.cfg.Present.Load() {
		if p.Alive {
			out = append(out, doctor.Listener{Node: p.ID, Addr: p.RPC(), What: "calls"},
				doctor.Listener{Node: p.ID, Addr: p.Gossip(), What: "gossip"})
		}
	}
	return out
}
