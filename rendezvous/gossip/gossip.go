// Package gossip tells which nodes of the cluster are up: which answer on the management
// network, at which address, and what they say about themselves.
//
// It decides when a node counts as alive or dead, and how nodes that lost each other find
// each other again. What it says is a hint: messages can be replayed and deaths can be
// false. It must not start, end or move anything, must not take a vote from anybody, must
// not carry secrets or facts that matter, and must not accept a name in place of an
// address.
package gossip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// DefaultPort is the gossip port, TCP and UDP.
const DefaultPort = 7941

// Config of one node. Zero durations mean the default named.
type Config struct {
	// Meta is what the node says about itself; ID and Host are required.
	Meta Meta
	// Bind is the address on the management network to listen on and to advertise: never
	// unspecified, because memberlist would then choose one, and without a zone. Required
	// unless Transport is set.
	Bind netip.Addr
	// Port is the same on every node; default 7941.
	Port uint16
	// Keyring holds the cluster's gossip keys of 32 bytes, the one to send
	// with first. Required.
	Keyring [][]byte
	// Label is the cluster's id: traffic of another cluster is dropped before
	// it is decrypted. Required, at most 255 bytes.
	Label string
	// Allowed limits the addresses of nodes; empty allows all.
	Allowed []netip.Prefix
	// Peers returns the gossip addresses of all known nodes, from the disk: a node that
	// was away for a long time has no other source.
	Peers func() []netip.AddrPort
	// OnChange is called for each change, one call at a time, from Run. A slow call
	// delays the next; only changes that are outdated by then are lost.
	OnChange func(Event)
	// Logger gets memberlist's log too; nil discards.
	Logger *slog.Logger
	// Transport replaces the sockets in tests (memberlist.MockNetwork).
	Transport memberlist.Transport

	// ProbeInterval and ProbeTimeout set how fast a death is noticed; default 1 s and 500
	// ms, memberlist's own, which is 5-8 s. It is a hint: who is down is said by the
	// leader's control streams. Each probe wakes both nodes.
	ProbeInterval, ProbeTimeout time.Duration
	// SpreadInterval is how often news are passed on to three others, also when there are
	// none; default 1 s. Probes carry them too.
	SpreadInterval time.Duration
	// ReclaimAfter is how long a dead node's id stays bound to its old
	// address; default 5 s. Shorter would let one late message move a node.
	ReclaimAfter time.Duration
	// ForgetAfter is how long memberlist itself still talks to dead nodes, which may
	// refute their death; default 30 s. After that only the rejoin loop knows them.
	ForgetAfter time.Duration
	// SyncInterval is how often the whole table is compared with one random peer; default
	// 15 s, because memberlist's own 30 s are long after a lost packet.
	SyncInterval time.Duration
	// RejoinInterval is how often known nodes that are not alive are dialled; default 15
	// s, +-25 %. memberlist never tries again by itself.
	RejoinInterval time.Duration
}

// Kind of a change.
type Kind int

// The changes. Left is a node that has left for good.
const (
	Joined Kind = iota
	Left
	Dead
	Updated
	// HostConflict: Peer has the same host name as Other, which was there first.
	HostConflict
	// IDConflict: a node at Peer's address claims the id of Other, which is alive
	// elsewhere, and is refused. If the node has moved, Dead and Joined follow within
	// seconds; if not, the machine is a copy. The node concerned gets the event too, as
	// Peer and Other.
	IDConflict
)

func (k Kind) String() string {
	return [...]string{"joined", "left", "dead", "updated", "host conflict", "id conflict"}[k]
}

// Peer is another node.
type Peer struct {
	ID      string
	Host    string
	Addr    netip.Addr // management address, also for RPC
	Port    uint16     // gossip port
	RPCPort uint16
	Meta    Meta
	Alive   bool
	Since   time.Time // of the last change of Alive, by this node's clock
}

// Gossip is where the node listens for gossip.
func (p Peer) Gossip() netip.AddrPort { return netip.AddrPortFrom(p.Addr, p.Port) }

// RPC is where the node listens for RPC.
func (p Peer) RPC() netip.AddrPort { return netip.AddrPortFrom(p.Addr, p.RPCPort) }

// Event is one change. Other is set for conflicts only.
type Event struct {
	Kind  Kind
	Peer  Peer
	Other *Peer
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func (c Config) withDefaults() (Config, error) {
	setDefault(&c.Port, DefaultPort)
	setDefault(&c.ProbeInterval, time.Second)
	setDefault(&c.ProbeTimeout, 500*time.Millisecond)
	setDefault(&c.SpreadInterval, time.Second)
	setDefault(&c.ReclaimAfter, 5*time.Second)
	setDefault(&c.ForgetAfter, 30*time.Second)
	setDefault(&c.SyncInterval, 15*time.Second)
	setDefault(&c.RejoinInterval, 15*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.OnChange == nil {
		c.OnChange = func(Event) {}
	}
	if c.Peers == nil {
		c.Peers = func() []netip.AddrPort { return nil }
	}
	c.Bind = c.Bind.Unmap()
	switch {
	case c.Transport == nil &&
		(!c.Bind.IsValid() || c.Bind.IsUnspecified() || c.Bind.IsMulticast() || c.Bind.Zone() != ""):
		return c, fmt.Errorf("open gossip: address %s is not one address of the management network", c.Bind)
	case c.Label == "" || len(c.Label) > memberlist.LabelMaxSize:
		return c, fmt.Errorf("open gossip: label of %d bytes; the cluster's id is needed", len(c.Label))
	}
	if err := checkKeys(c.Keyring); err != nil {
		return c, fmt.Errorf("open gossip: %w", err)
	}
	return c, nil
}

func checkKeys(keys [][]byte) error {
	if len(keys) == 0 {
		return errors.New("the keyring is empty; there is no gossip without a key")
	}
	for i, k := range keys {
		if len(k) != 32 {
			return fmt.Errorf("gossip key %d has %d bytes instead of 32", i+1, len(k))
		}
	}
	return nil
}

// Gossip is one node's part in gossip.
type Gossip struct {
	cfg    Config
	log    *slog.Logger
	list   *memberlist.Memberlist
	ring   *memberlist.Keyring
	table  *table
	rejoin chan struct{} // set by Rejoin
	closed chan struct{}
	once   sync.Once

	update sync.Mutex // one Update at a time
}

// Open listens and answers; Run joins others. It refuses metadata that is too large
// (ErrMetaTooLarge).
func Open(cfg Config) (*Gossip, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	meta, err := cfg.Meta.Encode()
	if err != nil {
		return nil, fmt.Errorf("open gossip: %w", err)
	}
	ring, err := memberlist.NewKeyring(cfg.Keyring, cfg.Keyring[0])
	if err != nil {
		return nil, fmt.Errorf("open gossip: %w", err)
	}
	g := &Gossip{
		cfg: cfg, log: cfg.Logger, ring: ring, table: newTable(cfg.Meta, meta),
		rejoin: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	mc := g.memberlistConfig()
	if mc.Transport == nil {
		if mc.Transport, err = newBounded(cfg.Bind, cfg.Port, mc.Logger); err != nil {
			return nil, fmt.Errorf("open gossip on %s port %d: %w", cfg.Bind, cfg.Port, err)
		}
	}
	if g.list, err = memberlist.Create(mc); err != nil {
		if cfg.Transport == nil {
			_ = mc.Transport.Shutdown()
		}
		return nil, fmt.Errorf("open gossip on %s port %d: %w", cfg.Bind, cfg.Port, err)
	}
	g.table.setSelf(toPeer(g.list.LocalNode()))
	return g, nil
}

func (g *Gossip) memberlistConfig() *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.Name = g.cfg.Meta.ID
	c.Label = g.cfg.Label
	c.Keyring = g.ring
	c.ProbeInterval, c.ProbeTimeout = g.cfg.ProbeInterval, g.cfg.ProbeTimeout
	c.GossipInterval = g.cfg.SpreadInterval
	c.DeadNodeReclaimTime = g.cfg.ReclaimAfter
	c.GossipToTheDeadTime = g.cfg.ForgetAfter
	c.PushPullInterval = g.cfg.SyncInterval
	// For one exchange of tables; 10 s would delay a rejoin when a node has no power.
	c.TCPTimeout = 5 * time.Second
	// Packets fit without it, and without decompression there are no decompression bombs.
	c.EnableCompression = false
	c.RequireNodeNames = false
	c.Logger = log.New(slogWriter{rendezvous.NewSparing(g.log, quietFor)}, "", 0)
	c.LogOutput = nil
	c.Delegate, c.Events, c.Alive, c.Conflict, c.Merge = g.table, g.table, g.table, g.table, g.table
	for _, p := range g.cfg.Allowed {
		p = p.Masked()
		c.CIDRsAllowed = append(c.CIDRsAllowed, net.IPNet{
			IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()),
		})
	}
	c.BindPort, c.AdvertisePort = int(g.cfg.Port), int(g.cfg.Port)
	if g.cfg.Transport != nil {
		c.Transport, c.BindAddr = g.cfg.Transport, ""
		return c
	}
	c.BindAddr, c.AdvertiseAddr = g.cfg.Bind.String(), g.cfg.Bind.String()
	return c
}

// Peers returns all other nodes heard of since Open that have not left, ordered by id.
func (g *Gossip) Peers() []Peer { return g.table.peers() }

// Addr is where this node listens.
func (g *Gossip) Addr() netip.AddrPort { return g.table.selfPeer().Gossip() }

// Rejoin dials the known nodes that are not alive at once, for example after a change of
// the network.
func (g *Gossip) Rejoin() {
	select {
	case g.rejoin <- struct{}{}:
	default: // requested already
	}
}

// Update sends the others new metadata of this node. It does not wait for them.
func (g *Gossip) Update(m Meta) error {
	g.update.Lock()
	defer g.update.Unlock()
	if m.ID != g.cfg.Meta.ID {
		return fmt.Errorf("update gossip metadata: node id %q instead of %q", m.ID, g.cfg.Meta.ID)
	}
	b, err := m.Encode()
	if err != nil {
		return err
	}
	g.table.setMeta(m, b)
	// A time-out only means that the update is still being sent.
	if err := g.list.UpdateNode(time.Millisecond); err != nil {
		g.log.Debug("gossip metadata is still being sent", "detail", err)
	}
	return nil
}

// SetKeyring replaces the keys, the one to send with first. A rotation adds a
// key everywhere, then puts it first everywhere, then drops the old one.
func (g *Gossip) SetKeyring(keys [][]byte) error {
	if err := checkKeys(keys); err != nil {
		return fmt.Errorf("set gossip keys: %w", err)
	}
	g.update.Lock()
	defer g.update.Unlock()
	for _, k := range keys {
		if err := g.ring.AddKey(k); err != nil {
			return fmt.Errorf("set gossip keys: %w", err)
		}
	}
	if err := g.ring.UseKey(keys[0]); err != nil {
		return fmt.Errorf("set gossip keys: %w", err)
	}
	for _, old := range slices.Clone(g.ring.GetKeys()) {
		if !slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, old) }) {
			if err := g.ring.RemoveKey(old); err != nil {
				return fmt.Errorf("set gossip keys: %w", err)
			}
		}
	}
	return nil
}

// Leave announces that this node leaves for good, and waits at most timeout until another
// node has heard it. Only `sparkrun leave` may call it: a node that is merely restarted
// must count as dead, not as left. Call Close next.
func (g *Gossip) Leave(timeout time.Duration) error {
	g.update.Lock()
	defer g.update.Unlock()
	m := g.table.selfPeer().Meta
	m.Leaving = true
	b, err := m.Encode()
	if err != nil {
		return err
	}
	g.table.setMeta(m, b)
	// Each word is repeated four times, to two nodes over as many SpreadIntervals: a
	// time-out only means that some of these are missing.
	err = g.list.UpdateNode(timeout / 2)
	if err = errors.Join(err, g.list.Leave(timeout/2)); err != nil {
		g.log.Debug("good-bye by gossip is not repeated any more", "detail", err)
	}
	return nil
}

// Close stops listening without telling the others. Run returns then.
func (g *Gossip) Close() error {
	var err error
	g.once.Do(func() {
		close(g.closed)
		g.table.close()
		err = g.list.Shutdown()
	})
	return err
}

// Run joins the known nodes, keeps dialling those that are not alive, and calls OnChange,
// until ctx ends or Close is called.
func (g *Gossip) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group errgroup.Group
	group.Go(func() error { return g.table.deliver(ctx, g.log, g.cfg.OnChange) })
	group.Go(func() error { return g.keepJoined(ctx) })
	group.Go(func() error {
		select {
		case <-g.closed:
			cancel(net.ErrClosed)
		case <-ctx.Done():
		}
		return nil
	})
	_ = group.Wait()
	if err := context.Cause(ctx); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// toPeer copies a node, because memberlist goes on changing its own.
func toPeer(n *memberlist.Node) Peer {
	addr, _ := netip.AddrFromSlice(n.Addr)
	p := Peer{ID: strings.Clone(n.Name), Addr: addr.Unmap(), Port: n.Port}
	if m, err := decodeMeta(n.Meta); err == nil {
		p.Meta, p.Host, p.RPCPort = m, m.Host, m.RPCPort
	}
	return p
}

func sortedPeers(m map[string]*Peer) []Peer {
	out := make([]Peer, 0, len(m))
	for _, id := range slices.Sorted(maps.Keys(m)) {
		out = append(out, *m[id])
	}
	return out
}
