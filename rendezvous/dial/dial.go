// Package dial reaches members, which have several addresses: on the management
// network, and on the fabric's. It also keeps this node's own listeners open on
// the fabric.
//
// It decides over which address a connection is opened (the best one that works, found by
// racing them, RFC 8305), when a route has stopped working, and when a better one works
// again. A suspected route is left only for another one that was just proven: without
// one, no connection is closed for being slow. It remembers where members were, for a
// start at which gossip knows nothing.
//
// It must not decide who is a member or dead, must not know what is sent on a connection,
// and must not open a second connection where one is enough.
package dial

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/gossip"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// The protocols (ALPN) of members: their calls; and bulk data, by HTTP/1.1 over connections
// of its own, since HTTP/2 would have all of it wait for one core and one window.
const (
	Calls = "h2"
	Bulk  = "sparkrun-bulk/1"
)

// Config of one node's Dialer. All of it is needed.
type Config struct {
	// Path is the file in which the addresses are kept.
	Path string
	// Gate proves who is at the other end.
	Gate *trust.Gate
	// Listed gives a member's host and where it listens, from the member list.
	Listed func(launcher.NodeID) (host string, at netip.AddrPort, ok bool)
	// Inventory is this machine's interfaces, Present are the members that gossip, and
	// where.
	Inventory *rendezvous.Latest[envgen.Inventory]
	Present   *rendezvous.Latest[[]gossip.Peer]
	Logger    *slog.Logger
}

// Dialer opens connections to members, which are named by their id.
type Dialer struct {
	*routes
	cfg     Config
	book    book
	better  chan launcher.NodeID
	detours rendezvous.Latest[struct{}]

	mu      sync.Mutex
	clients map[launcher.NodeID]*peer
}

// Open reads the addresses that were kept. Run keeps the routes.
func Open(cfg Config) (*Dialer, error) {
	d := &Dialer{cfg: cfg, better: make(chan launcher.NodeID, 64), clients: map[launcher.NodeID]*peer{}}
	d.book.path = cfg.Path
	var err error
	if d.book.kept, err = loadAddresses(cfg.Path); err != nil {
		return nil, err
	}
	d.routes = newRoutes(network{
		Routes: func(id string) ([]route, error) { return d.routesTo(launcher.NodeID(id)) },
		Connect: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", to.String())
		},
		Handshake: func(ctx context.Context, c net.Conn, id, proto string) (net.Conn, error) {
			t := tls.Client(c, cfg.Gate.Client(id, proto))
			return t, t.HandshakeContext(ctx)
		},
		Proto: Calls, Acked: acked,
		Cut:      func(local netip.Addr) bool { return linkIsCut(cfg.Inventory.Load(), local) },
		OnChange: func(string) { d.detours.Store(struct{}{}) },
		OnBetter: func(id string) { d.moveBack(launcher.NodeID(id)) },
		Logger:   cfg.Logger,
	})
	return d, nil
}

// Run watches the connections, and remembers where members are.
func (d *Dialer) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.watch(ctx, d.cfg.Inventory) })
	g.Go(func() error { return d.remember(ctx) })
	return g.Wait()
}

// Close ends attempts under way, and the clients. Connections from Dial belong to their
// caller.
func (d *Dialer) Close() {
	d.mu.Lock()
	for _, c := range d.clients {
		c.Close()
	}
	d.mu.Unlock()
	d.routes.Close()
}

// Better gives members to which a better route works again while a call is under way on a
// worse one: a long stream should be reopened.
func (d *Dialer) Better() <-chan launcher.NodeID { return d.better }

// DetoursChanged gives a channel that is closed when Detour changes for any member.
func (d *Dialer) DetoursChanged() <-chan struct{} {
	_, changed := d.detours.Watch()
	return changed
}

// moveBack moves what it can to a better route that works again: raft's connections and
// new calls at once, streams through Better. A call under way stays where it is until it
// ends.
func (d *Dialer) moveBack(id launcher.NodeID) {
	d.cfg.Logger.Info("move back to the better route", "node", id)
	if !d.redial(string(id), Calls) {
		return
	}
	d.renew(id)
	select {
	case d.better <- id:
	default: // nobody has streams
	}
}

// peer is one member: the client, and the connection that it calls over now.
type peer struct {
	*wire.Client
	now atomic.Pointer[http.Transport]
}

func (p *peer) RoundTrip(r *http.Request) (*http.Response, error) { return p.now.Load().RoundTrip(r) }

// CloseIdleConnections is called by http.Client.
func (p *peer) CloseIdleConnections() { p.now.Load().CloseIdleConnections() }

// Client gives a member's calls. All of them share one HTTP/2 connection.
func (d *Dialer) Client(id launcher.NodeID) *wire.Client {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.clients[id]; c != nil {
		return c.Client
	}
	c := &peer{}
	c.now.Store(d.transport(id))
	c.Client = wire.NewClient(&http.Client{Transport: c}, "https://"+string(id))
	d.clients[id] = c
	return c.Client
}

func (d *Dialer) transport(id launcher.NodeID) *http.Transport {
	t := &http.Transport{
		Protocols: new(http.Protocols),
		// A ping after 2 s of silence shows whether the other end's kernel still answers. If
		// it does and the agent does not, allow more time: an agent may be busy. Control
		// streams are never silent for so long.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 2 * time.Second, PingTimeout: 4 * time.Second,
			MaxReadFrameSize: 64 << 10}, // output comes in fewer frames than with the default, 16 KiB
		// Each ping wakes both nodes, also with no call under way. This also ends what renew
		// left behind.
		IdleConnTimeout: time.Minute,
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.Dial(ctx, string(id), Calls)
		},
	}
	t.Protocols.SetHTTP2(true)
	return t
}

// renew has new calls to a member open a new connection.
func (d *Dialer) renew(id launcher.NodeID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.clients[id]; c != nil {
		c.now.Swap(d.transport(id)).CloseIdleConnections()
	}
}

// acked asks the kernel what the peer's kernel has acknowledged: that does not depend on
// how busy the agents at both ends are.
func acked(c net.Conn) (bytes uint64, quiet time.Duration, waiting bool) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return 0, 0, false
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return 0, 0, false
	}
	_ = raw.Control(func(fd uintptr) { // closed in the meantime: nothing waits
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			quiet = time.Duration(info.Last_ack_recv) * time.Millisecond
			bytes, waiting = info.Bytes_acked, info.Unacked > 0
		}
	})
	return bytes, quiet, waiting
}

// linkIsCut tells whether an address of this node is on an interface without a link. IPv6
// has addresses that no inventory lists.
func linkIsCut(inv envgen.Inventory, local netip.Addr) bool {
	nic, ok := inv.Holder(local)
	if !ok {
		return local.Is4() && len(inv.NICs) > 0
	}
	return !nic.Loopback && (!nic.Up || nic.Carrier != nil && !*nic.Carrier)
}

// Locate finds a member's management address and port: gossip knows where it is
// now, the list of members where it was.
func (d *Dialer) Locate(id launcher.NodeID) (netip.AddrPort, error) {
	for _, p := range d.cfg.Present.Load() {
		if p.ID == string(id) {
			return p.RPC(), nil
		}
	}
	if _, at, ok := d.cfg.Listed(id); ok {
		return at, nil
	}
	return netip.AddrPort{}, fmt.Errorf("find node %s: %w", id, rendezvous.ErrNoNode)
}

// HostOf gives a member's host, for display; the id if the host is not known.
func (d *Dialer) HostOf(id launcher.NodeID) string {
	if host, _, ok := d.cfg.Listed(id); ok {
		return host
	}
	for _, p := range d.cfg.Present.Load() {
		if p.ID == string(id) {
			return p.Host
		}
	}
	return string(id)
}

// routesTo lists where a member listens: on management, then at fabric addresses that an
// interface of this node reaches.
func (d *Dialer) routesTo(id launcher.NodeID) ([]route, error) {
	var out []route
	mgmt, err := d.Locate(id)
	if err == nil {
		out = append(out, route{Addr: mgmt})
	}
	inv := d.cfg.Inventory.Load()
	for _, listener := range d.Fabric(id) {
		for _, a := range fromHere(listener.Addr(), string(id), inv) {
			r := route{Addr: netip.AddrPortFrom(a, listener.Port()), Fabric: true}
			if r.Addr != mgmt && !slices.Contains(out, r) {
				out = append(out, r)
			}
		}
	}
	if len(out) == 0 {
		return nil, err
	}
	return out, nil
}

// fromHere gives an address in the form that this node can use: unchanged if an interface
// of ours is in its subnet; a link-local one with the interface at which the cable probe
// hears that node. Going through a router would mean going through management.
func fromHere(a netip.Addr, id string, own envgen.Inventory) (out []netip.Addr) {
	if a.IsLinkLocalUnicast() && a.Is6() {
		if own.Cabling == nil {
			return nil
		}
		for _, s := range own.Cabling.Sightings {
			if zoned := a.WithZone(s.NIC); s.Peer.Node == id && !s.Clone && !slices.Contains(out, zoned) {
				out = append(out, zoned)
			}
		}
		return out
	}
	for _, nic := range own.NICs {
		for _, p := range nic.Addresses {
			if nic.Up && p.Addr() == a {
				return nil // our own machine would answer
			}
			if nic.Up && p.Contains(a) {
				out = []netip.Addr{a}
			}
		}
	}
	return out
}
