package gossip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/memberlist"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(lastProbes{m}) }

// lastProbes waits for memberlist's last probes, which end an interval after Close.
type lastProbes struct{ *testing.M }

func (m lastProbes) Run() int {
	code := m.M.Run()
	for end := time.Now().Add(3 * time.Second); goleak.Find() != nil && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	return code
}

var (
	key1 = bytes.Repeat([]byte{1}, 32)
	key2 = bytes.Repeat([]byte{2}, 32)
)

func nodeID(i int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", i) }

// ear is a node with its events.
type ear struct {
	*Gossip
	id     string
	events chan Event
	stop   func()
}

// network is a set of nodes on loopback addresses of their own.
type network struct {
	t     *testing.T
	port  uint16
	known []netip.AddrPort

	mu  sync.Mutex
	cut map[netip.Addr]int // side of a partition
}

func newNetwork(t *testing.T) *network {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	n := &network{t: t, port: uint16(ln.Addr().(*net.TCPAddr).Port), cut: map[netip.Addr]int{}}
	for i := 1; i <= 8; i++ {
		n.known = append(n.known, netip.AddrPortFrom(addr(i), n.port))
	}
	return n
}

func addr(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 9, byte(i)}) }

func (n *network) config(i int) Config {
	cfg := Config{
		Meta: Meta{ID: nodeID(i), Host: fmt.Sprint("spark", i), RPCPort: 7940, Version: "1.0", InventoryHash: "abc"},
		Bind: addr(i), Port: n.port, Keyring: [][]byte{key1}, Label: "cluster-1",
		Allowed: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		Peers:   func() []netip.AddrPort { return n.known },
	}
	if os.Getenv("GOSSIP_LOG") != "" {
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("me", i)
	}
	return cfg
}

// open starts a node and its Run.
func (n *network) open(cfg Config) *ear {
	n.t.Helper()
	e := &ear{id: cfg.Meta.ID, events: make(chan Event, 1000)}
	cfg.OnChange = func(ev Event) { e.events <- ev }
	g, err := Open(cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	e.Gossip = g
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }() // joined by stop
	var once sync.Once
	e.stop = func() {
		once.Do(func() {
			g.Close()
			if err := <-done; err != nil {
				n.t.Errorf("Run: %v", err)
			}
			cancel()
		})
	}
	n.t.Cleanup(e.stop)
	return e
}

// wait returns the next event that fits.
func (e *ear) wait(t *testing.T, within time.Duration, what string, fits func(Event) bool) Event {
	t.Helper()
	deadline := time.After(within)
	for {
		select {
		case ev := <-e.events:
			if fits(ev) {
				return ev
			}
		case <-deadline:
			t.Fatalf("%s: not within %v: %s; it knows %+v", e.id, within, what, e.Peers())
		}
	}
}

func is(k Kind, id string) func(Event) bool {
	return func(e Event) bool { return e.Kind == k && e.Peer.ID == id }
}

// all waits until each node has heard of each other.
func all(t *testing.T, ears ...*ear) {
	t.Helper()
	for _, e := range ears {
		missing := map[string]bool{}
		for _, o := range ears {
			missing[o.id] = o != e
		}
		delete(missing, e.id)
		for len(missing) > 0 {
			ev := e.wait(t, 45*time.Second, fmt.Sprint("still missing: ", missing),
				func(ev Event) bool { return ev.Kind == Joined })
			delete(missing, ev.Peer.ID)
		}
	}
}

func TestConverge(t *testing.T) {
	for _, count := range []int{3, 8} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			n := newNetwork(t)
			var ears []*ear
			for i := 1; i <= count; i++ {
				ears = append(ears, n.open(n.config(i)))
			}
			all(t, ears...)
			peers := ears[0].Peers()
			if len(peers) != count-1 {
				t.Fatalf("%d peers", len(peers))
			}
			p := peers[0]
			p.Since = time.Time{}
			want := Peer{ID: nodeID(2), Host: "spark2", Addr: addr(2), Port: n.port, RPCPort: 7940,
				Meta: n.config(2).Meta, Alive: true}
			if d := cmp.Diff(want, p, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
				t.Error(d)
			}
		})
	}
}

// The same on memberlist's own network in memory, as tests of whole nodes use.
func TestMockNetwork(t *testing.T) {
	n := newNetwork(t)
	var mock memberlist.MockNetwork
	n.known = nil
	var trs []*memberlist.MockTransport
	for i := 1; i <= 3; i++ {
		tr := mock.NewTransport(nodeID(i))
		ip, port, err := tr.FinalAdvertiseAddr("", 0)
		if err != nil {
			t.Fatal(err)
		}
		a, _ := netip.AddrFromSlice(ip)
		n.known = append(n.known, netip.AddrPortFrom(a.Unmap(), uint16(port)))
		trs = append(trs, tr)
	}
	var ears []*ear
	for i, tr := range trs {
		cfg := n.config(i + 1)
		cfg.Transport, cfg.Bind = tr, netip.Addr{}
		ears = append(ears, n.open(cfg))
	}
	all(t, ears...)
	// A sender on this network waits for its receiver for ever.
	over := make(chan struct{})
	var drains sync.WaitGroup
	for i, e := range ears {
		e.stop()
		drains.Go(func() {
			for {
				select {
				case <-trs[i].PacketCh():
				case c := <-trs[i].StreamCh():
					c.Close()
				case <-over:
					return
				}
			}
		})
	}
	t.Cleanup(func() { // when the last senders are through
		defer drains.Wait()
		defer close(over)
		deadline := time.Now().Add(5 * time.Second)
		for goleak.Find(goleak.IgnoreAnyFunction("github.com/sparkrun/sparkrun/rendezvous/gossip.TestMockNetwork.func1")) != nil && time.Now().Before(deadline) {
			time.Sleep(10 * time.Millisecond)
		}
	})
}

func TestDeathAndReturn(t *testing.T) {
	n := newNetwork(t)
	a, b, c := n.open(n.config(1)), n.open(n.config(2)), n.open(n.config(3))
	all(t, a, b, c)
	begin := time.Now()
	c.stop() // without a word
	for _, e := range []*ear{a, b} {
		e.wait(t, 45*time.Second, "a death", is(Dead, c.id))
	}
	d := time.Since(begin)
	t.Logf("dead after %v", d)
	if d > 8*time.Second {
		t.Errorf("the death was noticed after %v, want 8 s at most", d)
	}
	if p := a.Peers()[1]; p.ID != c.id || p.Alive {
		t.Errorf("the dead node is %+v", p)
	}
	c = n.open(n.config(3))
	a.wait(t, 45*time.Second, "a return", is(Joined, c.id))
	b.wait(t, 45*time.Second, "a return", is(Joined, c.id))
}

func TestLeave(t *testing.T) {
	n := newNetwork(t)
	a, b := n.open(n.config(1)), n.open(n.config(2))
	all(t, a, b)
	if err := b.Leave(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	b.stop()
	a.wait(t, 45*time.Second, "a good-bye", is(Left, b.id))
	if len(a.Peers()) != 0 {
		t.Errorf("peers %+v", a.Peers())
	}
}

func TestUpdate(t *testing.T) {
	n := newNetwork(t)
	a, b := n.open(n.config(1)), n.open(n.config(2))
	all(t, a, b)
	m := n.config(2).Meta
	m.Epoch, m.InventoryHash = 7, "def"
	if err := b.Update(m); err != nil {
		t.Fatal(err)
	}
	if ev := a.wait(t, 45*time.Second, "an update", is(Updated, b.id)); ev.Peer.Meta != m {
		t.Errorf("metadata %+v, want %+v", ev.Peer.Meta, m)
	}
	m.Host = strings.Repeat("h", 65)
	if err := b.Update(m); !errors.Is(err, ErrMetaTooLarge) {
		t.Errorf("a host name of 65 bytes: %v", err)
	}
	m = n.config(1).Meta
	if err := b.Update(m); err == nil {
		t.Error("a node took another's id")
	}
}

// lossy drops what crosses a partition.
type lossy struct {
	*memberlist.NetTransport
	n  *network
	me netip.Addr
}

func (l lossy) blocked(to string) bool {
	ap, err := netip.ParseAddrPort(to)
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	return err == nil && l.n.cut[l.me] != l.n.cut[ap.Addr().Unmap()]
}

func (l lossy) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	if l.blocked(a.Addr) {
		return time.Now(), nil
	}
	return l.NetTransport.WriteToAddress(b, a)
}

func (l lossy) DialAddressTimeout(a memberlist.Address, d time.Duration) (net.Conn, error) {
	if l.blocked(a.Addr) {
		return nil, errors.New("no route to host")
	}
	return l.NetTransport.DialAddressTimeout(a, d)
}

// After a partition nodes find together again by themselves, when memberlist
// has long forgotten them.
func TestPartitionHeals(t *testing.T) {
	n := newNetwork(t)
	var ears []*ear
	for i := 1; i <= 4; i++ {
		cfg := n.config(i)
		tr, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{
			BindAddrs: []string{addr(i).String()}, BindPort: int(n.port), Logger: slog.NewLogLogger(slog.DiscardHandler, 0),
		})
		if err != nil {
			t.Fatal(err)
		}
		cfg.Transport = lossy{tr, n, addr(i)}
		cfg.ProbeInterval, cfg.ProbeTimeout = 100*time.Millisecond, 50*time.Millisecond
		cfg.ForgetAfter, cfg.SyncInterval = 100*time.Millisecond, time.Hour
		cfg.RejoinInterval = 500 * time.Millisecond
		ears = append(ears, n.open(cfg))
	}
	all(t, ears...)
	n.mu.Lock()
	n.cut[addr(3)], n.cut[addr(4)] = 1, 1
	n.mu.Unlock()
	lost := map[string]bool{}
	ears[0].wait(t, 45*time.Second, "the other side lost", func(e Event) bool {
		lost[e.Peer.ID] = e.Kind == Dead
		return lost[nodeID(3)] && lost[nodeID(4)]
	})
	ears[3].wait(t, 45*time.Second, "spark1 lost", is(Dead, nodeID(1)))
	if !ears[0].Peers()[0].Alive {
		t.Error("spark2 is on the same side")
	}
	n.mu.Lock()
	clear(n.cut)
	n.mu.Unlock()
	ears[0].wait(t, 45*time.Second, "spark3 again", is(Joined, nodeID(3)))
	ears[3].wait(t, 45*time.Second, "spark1 again", is(Joined, nodeID(1)))
}

// A node may come back under another address.
func TestAddressChange(t *testing.T) {
	n := newNetwork(t)
	tune := func(c Config) Config { c.ReclaimAfter = time.Second; return c }
	a, b, c := n.open(tune(n.config(1))), n.open(tune(n.config(2))), n.open(tune(n.config(3)))
	all(t, a, b, c)
	c.stop()
	moved := tune(n.config(3))
	moved.Bind = addr(30)
	c = n.open(moved)
	for _, e := range []*ear{a, b} {
		e.wait(t, 45*time.Second, "the node at its new address", func(ev Event) bool {
			return ev.Peer.ID == c.id && ev.Peer.Addr == addr(30) && (ev.Kind == Joined || ev.Kind == Updated)
		})
	}
	// And it is still reachable there a while later: everybody agrees.
	m := moved.Meta
	m.Epoch = 9
	if err := c.Update(m); err != nil {
		t.Fatal(err)
	}
	a.wait(t, 45*time.Second, "an update from the new address",
		func(ev Event) bool { return ev.Peer.Meta.Epoch == 9 && ev.Peer.Addr == addr(30) })
}

func TestConflicts(t *testing.T) {
	n := newNetwork(t)
	a, b := n.open(n.config(1)), n.open(n.config(2))
	all(t, a, b)

	// Another machine with the host name of the second.
	same := n.config(3)
	same.Meta.Host = "spark2"
	n.open(same)
	ev := a.wait(t, 45*time.Second, "a host conflict", func(e Event) bool { return e.Kind == HostConflict })
	if ids := map[string]bool{ev.Peer.ID: true, ev.Other.ID: true}; !ids[nodeID(2)] || !ids[nodeID(3)] {
		t.Errorf("conflict of %s and %s", ev.Peer.ID, ev.Other.ID)
	}
	b.wait(t, 45*time.Second, "a host conflict with itself", func(e Event) bool {
		return e.Kind == HostConflict && e.Peer.ID == nodeID(3) && e.Other.ID == nodeID(2)
	})

	// A copied machine: refused, the first unharmed.
	clone := n.config(2)
	clone.Bind = addr(20)
	n.open(clone)
	ev = a.wait(t, 45*time.Second, "an id conflict", func(e Event) bool { return e.Kind == IDConflict })
	if ev.Peer.Addr != addr(20) || ev.Other.Addr != addr(2) {
		t.Errorf("conflict of %v with %v", ev.Peer.Addr, ev.Other.Addr)
	}
	for _, p := range a.Peers() {
		if p.ID == nodeID(2) && (p.Addr != addr(2) || !p.Alive) {
			t.Errorf("the first of two is now %+v", p)
		}
	}
}

// What is not of this cluster is not let in, whichever side begins.
func TestRefused(t *testing.T) {
	for name, spoil := range map[string]func(*Config){
		"other key":   func(c *Config) { c.Keyring = [][]byte{key2} },
		"other label": func(c *Config) { c.Label = "cluster-2" },
		"other network": func(c *Config) {
			c.Allowed = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.PrefixFrom(addr(3), 32)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t)
			n.known = nil
			a := n.open(n.config(1))
			cfg := n.config(3)
			spoil(&cfg)
			b := n.open(cfg)
			_, err := b.list.Join([]string{a.Addr().String()})
			if err == nil && name != "other network" {
				t.Error("it joined")
			}
			if _, err := a.list.Join([]string{b.Addr().String()}); err == nil && name != "other network" {
				t.Error("it was joined")
			}
			if p := b.Peers(); len(p) != 0 {
				t.Errorf("it knows %+v", p)
			}
			if p := a.Peers(); len(p) != 0 && name != "other network" {
				t.Errorf("it is known: %+v", p)
			}
		})
	}
}

// Keys change under running nodes.
func TestKeyRotation(t *testing.T) {
	n := newNetwork(t)
	a, b := n.open(n.config(1)), n.open(n.config(2))
	all(t, a, b)
	for _, ring := range [][][]byte{{key1, key2}, {key2, key1}, {key2}} {
		for _, e := range []*ear{a, b} {
			if err := e.SetKeyring(ring); err != nil {
				t.Fatal(err)
			}
		}
	}
	cfg := n.config(3)
	cfg.Keyring = [][]byte{key2}
	c := n.open(cfg)
	a.wait(t, 45*time.Second, "a node with the new key", is(Joined, c.id))
	if got := a.ring.GetKeys(); len(got) != 1 || !bytes.Equal(got[0], key2) {
		t.Errorf("%d keys left", len(got))
	}
	if err := a.SetKeyring(nil); err == nil {
		t.Error("gossip without a key")
	}
}

func TestOpenRefuses(t *testing.T) {
	n := newNetwork(t)
	for name, spoil := range map[string]func(*Config){
		"unspecified address": func(c *Config) { c.Bind = netip.IPv4Unspecified() },
		"no address":          func(c *Config) { c.Bind = netip.Addr{} },
		"zone":                func(c *Config) { c.Bind = netip.MustParseAddr("fe80::1%eth0") },
		"no key":              func(c *Config) { c.Keyring = nil },
		"short key":           func(c *Config) { c.Keyring = [][]byte{key1[:16]} },
		"no label":            func(c *Config) { c.Label = "" },
		"long label":          func(c *Config) { c.Label = strings.Repeat("l", 256) },
		"no id":               func(c *Config) { c.Meta.ID = "spark1" },
		"long host":           func(c *Config) { c.Meta.Host = strings.Repeat("h", 65) },
		"odd host":            func(c *Config) { c.Meta.Host = "spark\x1b[2J" },
	} {
		cfg := n.config(1)
		spoil(&cfg)
		if g, err := Open(cfg); err == nil {
			g.Close()
			t.Errorf("%s: opened", name)
		}
	}
	cfg := n.config(1)
	g, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if g2, err := Open(cfg); err == nil {
		g2.Close()
		t.Error("opened twice on one address")
	}
}
