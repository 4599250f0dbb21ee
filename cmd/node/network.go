package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/gossip"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
)

// network keeps the cluster's port and gossip on the management address, and
// moves them when it changes.
func (n *node) network(ctx context.Context) error {
	for {
		addr, err := n.managementAddr(ctx)
		if err != nil {
			return err
		}
		if err := n.networkAt(ctx, addr); err != nil {
			return err
		}
		n.log.Warn("management address changed", "old", addr)
	}
}

// managementAddr waits until there is a management address.
func (n *node) managementAddr(ctx context.Context) (netip.Addr, error) {
	said := ""
	for {
		inv, changed := n.inventory.Watch()
		mgmt, err := envgen.Management(inv, n.cfg.Management)
		if err == nil {
			return mgmt.Addr, nil
		}
		if err.Error() != said {
			said = err.Error()
			n.log.Warn("wait for a management address", "error", err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return netip.Addr{}, ctx.Err()
		}
	}
}

// networkAt serves and gossips on one address until another takes its place.
func (n *node) networkAt(ctx context.Context, addr netip.Addr) error {
	l, err := listen(ctx, netip.AddrPortFrom(addr, uint16(n.m.RPCPort)))
	if err != nil {
		return err
	}
	g, err := n.openGossip(addr, n.m.GossipPort)
	if err != nil {
		l.Close()
		return err
	}
	defer g.Close()
	n.gossip.Store(g)
	n.dial.RememberOwn(addr)
	defer n.present.Store(nil)
	defer n.gossip.Store(nil)

	srv := n.clusterServer()
	n.reached.Do(func() { close(n.reachable) }) // the port listens, and gossip is heard
	l = n.door.Listen(l)

	moved := errors.New("moved")
	eg, ctx := errgroup.WithContext(ctx)
	eg.Go(func() error { return serve(ctx, srv, l, (*http.Server).Serve) })
	eg.Go(func() error { return g.Run(ctx) })
	eg.Go(func() error { return n.tellListeners(ctx, g) })
	eg.Go(func() error { return n.announces(ctx, addr) })
	eg.Go(func() error {
		for {
			inv, changed := n.inventory.Watch()
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

func (n *node) openGossip(addr netip.Addr, port int) (*gossip.Gossip, error) {
	keyring, err := trust.LoadGossipKeys(n.cfg.Paths.trust())
	if err != nil {
		return nil, err
	}
	return gossip.Open(gossip.Config{
		Meta: n.gossipMeta(), Bind: addr, Port: uint16(port), Keyring: keyring.Keys(), Label: n.m.Cluster,
		Peers: n.knownPeers, OnChange: n.gossiped, Logger: n.log,
	})
}

// tellListeners keeps gossip told of the listeners there are.
func (n *node) tellListeners(ctx context.Context, g *gossip.Gossip) error {
	told := n.gossipMeta()
	for {
		_, changed := n.inventory.Watch()
		if now := n.gossipMeta(); now != told {
			if err := g.Update(now); err != nil {
				n.log.Warn("tell fabric addresses", "error", err)
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

// gossipMeta is what this node tells of itself.
func (n *node) gossipMeta() gossip.Meta {
	return gossip.Meta{ID: string(n.m.Node), Host: n.m.Host, RPCPort: uint16(n.m.RPCPort), Epoch: n.failover.Epoch().N, Version: n.cfg.Version}.WithFabric(dial.FabricAddrs(n.inventory.Load(), n.cfg.Management))
}

// gossiped takes gossip's hints: somebody seen alive is dialled now rather
// than after the back-off.
func (n *node) gossiped(ev gossip.Event) {
	if l := n.leading.Load(); l != nil && ev.Kind != gossip.Dead && ev.Kind != gossip.Left {
		l.links.Kick(launcher.NodeID(ev.Peer.ID))
	}
	n.clones.Note(ev)
	if g := n.gossip.Load(); g != nil {
		n.present.Store(g.Peers())
	}
}

// knownPeers are the gossip addresses worth trying.
func (n *node) knownPeers() []netip.AddrPort {
	out := slices.Clone(n.dial.Remembered().Peers)
	port := uint16(n.m.GossipPort)
	seen := map[netip.AddrPort]bool{}
	for _, a := range out {
		seen[a] = true
	}
	for _, m := range n.record.Nodes() {
		if a := netip.AddrPortFrom(m.Addr.Addr(), port); m.ID != n.m.Node && !seen[a] {
			out = append(out, a)
		}
	}
	return out
}

// readdress keeps the agent told where members are: whoever gets another address while a job runs is no stranger to
// its ranks.
func (n *node) readdress(ctx context.Context) error {
	for {
		present, changed := n.present.Watch()
		addrs := map[launcher.NodeID][]netip.Addr{}
		for _, p := range present {
			if p.Alive {
				addrs[launcher.NodeID(p.ID)] = append(p.Meta.FabricAddrs(), p.Addr)
			}
		}
		n.agent.Readdress(addrs)
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// listed tells of a member by the record, or by the list that this node was told.
func (n *node) listed(id launcher.NodeID) (host string, at netip.AddrPort, ok bool) {
	if m, ok := n.record.Node(id); ok {
		return m.Host, m.Addr, true
	}
	m, ok := n.onRoll(id) // outside raft, or with a copy that lags behind
	return m.Host, m.Addr, ok
}
