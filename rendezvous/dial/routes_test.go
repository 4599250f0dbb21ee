package dial

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/rendezvous"
)

var (
	mgmt   = route{Addr: netip.MustParseAddrPort("10.0.0.2:7940")}
	cable1 = route{Addr: netip.MustParseAddrPort("192.168.1.2:7940"), Fabric: true}
	cable2 = route{Addr: netip.MustParseAddrPort("192.168.2.2:7940"), Fabric: true}
)

// fakeNet is the networks to one member: what each address does.
type fakeNet struct {
	t     *testing.T
	r     *routes
	links rendezvous.Latest[envgen.Inventory]
	began time.Time
	stop  func()

	mu     sync.Mutex
	does   map[netip.AddrPort]string // "" = answers at once; "dies" = once connected
	dials  []string                  // "ADDR@TIME", in order
	open   map[*fakeConn]bool
	told   []string
	cut    bool
	slow   time.Duration // of a handshake
	asked  int           // how often the kernel was
	listed []route
}

// fakeConn carries nothing: the kernel's word on it is made up.
type fakeConn struct {
	net.Conn
	n    *fakeNet
	addr netip.AddrPort
	sent bool // something waits to be acknowledged, where nothing is
}

func (c *fakeConn) Close() error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	delete(c.n.open, c)
	return nil
}

func (c *fakeConn) Write(b []byte) (int, error) { return len(b), nil }
func (c *fakeConn) Read(b []byte) (int, error)  { return len(b), nil }

func (c *fakeConn) LocalAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}
}

func newNet(t *testing.T, routes ...route) *fakeNet {
	n := &fakeNet{t: t, began: time.Now(), does: map[netip.AddrPort]string{}, open: map[*fakeConn]bool{}, listed: routes}
	n.r = newRoutes(network{
		Routes: func(string) ([]route, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			return slices.Clone(n.listed), nil
		},
		Connect: n.connect,
		Handshake: func(ctx context.Context, c net.Conn, _, _ string) (net.Conn, error) {
			f := c.(*conn).Conn.(*fakeConn)
			n.mu.Lock()
			does, slow := n.does[f.addr], n.slow
			n.mu.Unlock()
			if does == "silent" || does == "dies" {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			if does == "stranger" {
				return nil, errors.New("it is another node")
			}
			select {
			case <-time.After(slow):
				return c, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
		Proto: "h2",
		Acked: func(c net.Conn) (uint64, time.Duration, bool) {
			f := c.(*fakeConn)
			n.mu.Lock()
			defer n.mu.Unlock()
			n.asked++
			return 7, time.Hour, f.sent && (n.does[f.addr] == "silent" || n.does[f.addr] == "dies")
		},
		Cut: func(netip.Addr) bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.cut
		},
		OnChange: func(string) { n.tell("detour %v", n.r.Detour("b")) },
		OnBetter: func(string) { n.tell("better") },
		Logger:   slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.r.watch(ctx, &n.links) }()
	n.stop = func() {
		cancel()
		<-done
		n.r.Close()
	}
	return n
}

func (n *fakeNet) connect(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	n.mu.Lock()
	n.dials = append(n.dials, fmt.Sprintf("%s@%s", to.Addr(), time.Since(n.began)))
	does := n.does[to]
	n.mu.Unlock()
	switch does {
	case "silent":
		<-ctx.Done()
		return nil, ctx.Err()
	case "refuses":
		return nil, errors.New("connection refused")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	c := &fakeConn{n: n, addr: to, sent: true}
	n.open[c] = true
	return c, nil
}

func (n *fakeNet) tell(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.told = append(n.told, fmt.Sprintf(format, args...))
}

func (n *fakeNet) set(r route, does string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.does[r.Addr] = does
}

func (n *fakeNet) dial() (route, time.Duration, error) {
	began := time.Now()
	c, err := n.r.Dial(n.t.Context(), "b", "h2")
	took := time.Since(began)
	if err != nil {
		return route{}, took, err
	}
	return c.(*conn).route, took, nil
}

// write has something said on each connection, and read has that answered.
func (n *fakeNet) write() {
	for _, c := range n.r.connsOf("b", func(*conn) bool { return true }) {
		_, _ = c.Write([]byte("?"))
	}
}

func (n *fakeNet) read() {
	for _, c := range n.r.connsOf("b", func(*conn) bool { return true }) {
		_, _ = c.Read(make([]byte, 1))
	}
}

// opened lists where connections are open.
func (n *fakeNet) opened() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []string
	for c := range n.open {
		out = append(out, c.addr.Addr().String())
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (n *fakeNet) said() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.told)
}

func TestBestRouteIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNet(t, mgmt, cable1)
		defer n.stop()
		route, _, err := n.dial()
		time.Sleep(10 * time.Second)
		if err != nil || route != mgmt || len(n.dials) != 1 || n.r.Detour("b") || len(n.said()) != 0 {
			t.Errorf("%v, %v, dials %v, told %v", route, err, n.dials, n.said())
		}
	})
}

// A dead management network costs its head start once; from then on the fabric
// is asked first.
func TestDeadRouteGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNet(t, mgmt, cable1, cable2)
		defer n.stop()
		n.set(mgmt, "silent")
		route, took, err := n.dial()
		if err != nil || route != cable1 || took != firstHead {
			t.Fatalf("%v after %s, %v", route, took, err)
		}
		time.Sleep(connectWithin)
		synctest.Wait()
		if !n.r.Detour("b") {
			t.Error("no detour is told")
		}
		n.set(cable1, "refuses")
		if route, took, err = n.dial(); err != nil || route != cable2 || took != 0 {
			t.Errorf("then %v after %s, %v", route, took, err)
		}
	})
}

func TestMemberThatIsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNet(t, mgmt, cable1)
		defer n.stop()
		n.set(mgmt, "refuses")
		n.set(cable1, "silent")
		_, took, err := n.dial()
		if err == nil || !strings.Contains(err.Error(), "connection refused") || took > connectWithin {
			t.Errorf("%v after %s: management's error is wanted", err, took)
		}
		time.Sleep(10 * time.Second)
		if len(n.said()) != 0 || n.r.Detour("b") {
			t.Errorf("told %v: nothing is known of its routes", n.said())
		}
		n.mu.Lock()
		n.listed = nil
		n.mu.Unlock()
		if _, _, err = n.dial(); err == nil {
			t.Error("a member without an address is reached")
		}
	})
}

// Somebody else at the management address: the fabric leads to the member.
func TestStrangerAtTheAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNet(t, mgmt, cable1)
		defer n.stop()
		n.set(mgmt, "stranger")
		if route, _, err := n.dial(); err != nil || route != cable1 {
			t.Errorf("%v, %v", route, err)
		}
	})
}

// A peer whose kernel answers and whose process is slow gets one handshake to
// make: one on each of its routes would make it slower still.
func TestSlowPeerGetsOneHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNet(t, mgmt, cable1, cable2)
		defer n.stop()
		n.slow = 3 * time.Second
		route, took, err := n.dial()
		if err != nil || route != mgmt || took != n.slow || len(n.dials) != 1 {
			t.Errorf("%v after %s, %v; dialled %v, want management alone", route, took, err, n.dials)
		}
	})
}

// A route that dies under a handshake gives way to the next.
func TestRouteDiesUnderHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNet(t, mgmt, cable1)
		defer n.stop()
		n.set(mgmt, "dies")
		route, took, err := n.dial()
		if err != nil || route != cable1 || took > 2*suspectAfter {
			t.Errorf("%v after %s, %v", route, took, err)
		}
	})
}

// A better route that is only slow wins in the end, and is no detour.
func TestSlowRouteIsBetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNet(t, mgmt, cable1)
		defer n.stop()
		n.slow = 400 * time.Millisecond
		route, _, err := n.dial()
		if err != nil || route != mgmt {
			t.Errorf("%v, %v: it had its head start", route, err)
		}
		n.mu.Lock()
		n.slow = 0
		n.mu.Unlock()
		if n.opened() == "" || n.r.Detour("b") {
			t.Errorf("open %s", n.opened())
		}
		time.Sleep(10 * time.Second)
		if got := n.opened(); got != "10.0.0.2" {
			t.Errorf("open %s", got)
		}
	})
}

// The route dies under a connection: another is proven within raft's lease, the
// connection is closed, and when the route carries again that is told.
func TestRouteDiesAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNet(t, mgmt, cable1)
		defer n.stop()
		if _, _, err := n.dial(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		n.set(mgmt, "silent")
		died := time.Now()
		for n.opened() != "" && time.Since(died) < time.Minute {
			n.write()
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(died); took > 600*time.Millisecond {
			t.Errorf("the dead route was left after %s", took)
		}
		if route, took, err := n.dial(); err != nil || route != cable1 || took != 0 {
			t.Fatalf("%v after %s, %v", route, took, err)
		}
		time.Sleep(30 * time.Second)
		n.set(mgmt, "")
		time.Sleep(againEvery * againTimes * 3)
		want := []string{"detour true", "detour false", "better"}
		if d := cmp.Diff(want, n.said()); d != "" {
			t.Errorf("told (-want +got):\n%s", d)
		}
		if !n.r.redial("b", "h2") || n.r.redial("stranger", "h2") || n.opened() == "" {
			t.Error("only the detour is off the best route, and may stay on it")
		}
		n.r.redial("b", "raft")
		if got := n.opened(); got != "" || n.r.redial("b", "h2") {
			t.Errorf("after leaving the detour %s is open", got)
		}
		if route, _, err := n.dial(); err != nil || route != mgmt {
			t.Errorf("%v, %v", route, err)
		}
	})
}

// Nothing is closed in a hurry for silence where there is nothing better: the
// other end may be slow, or both routes dead.
func TestSilenceAloneClosesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNet(t, mgmt, cable1)
		defer n.stop()
		if _, _, err := n.dial(); err != nil {
			t.Fatal(err)
		}
		n.set(mgmt, "silent")
		n.set(cable1, "silent")
		n.write()
		time.Sleep(deadAfter - lookEvery)
		if n.opened() == "" {
			t.Fatal("closed without another route")
		}
		n.set(mgmt, "") // acknowledged at last
		time.Sleep(time.Minute)
		if n.opened() == "" || len(n.said()) != 0 {
			t.Errorf("open %q, told %v", n.opened(), n.said())
		}
		n.set(mgmt, "silent")
		n.write()
		time.Sleep(deadAfter + 2*lookEvery)
		if n.opened() != "" {
			t.Error("a dead connection is kept for ever")
		}
	})
}

// The kernel is asked about a write that stays unanswered, once; about what is answered, and about a connection
// that is quiet, it is not: a ticker here would wake each node for each of its connections.
func TestAnsweredWritesAskNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNet(t, mgmt, cable1)
		defer n.stop()
		if _, _, err := n.dial(); err != nil {
			t.Fatal(err)
		}
		asked := func() int {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.asked
		}
		for range 600 {
			n.write()
			time.Sleep(time.Millisecond)
			n.read()
			time.Sleep(99 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		if asked() != 0 || n.r.armed.Load() {
			t.Errorf("asked %d times in a minute of answers and one of silence; a look is due: %v", asked(), n.r.armed.Load())
		}
		n.write()
		time.Sleep(time.Minute)
		if asked() != 1 || n.r.armed.Load() || n.opened() == "" {
			t.Errorf("one write that the peer's kernel has: asked %d times; open %q", asked(), n.opened())
		}
	})
}

// This machine's own cable is out: that is known without any silence.
func TestOwnLinkIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNet(t, mgmt, cable1)
		defer n.stop()
		if _, _, err := n.dial(); err != nil {
			t.Fatal(err)
		}
		n.mu.Lock()
		n.cut = true
		n.mu.Unlock()
		n.set(mgmt, "refuses") // as the kernel does without a link
		synctest.Wait()        // it watches
		n.links.Store(envgen.Inventory{})
		synctest.Wait()
		if got := n.opened(); got != "" || !slices.Equal(n.said(), []string{"detour true"}) {
			t.Errorf("open %q, told %v", got, n.said())
		}
		if route, took, err := n.dial(); err != nil || route != cable1 || took != 0 {
			t.Errorf("%v after %s, %v", route, took, err)
		}
	})
}

// A link that comes and goes each second is not moved to.
func TestFlappingRouteIsNotTrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNet(t, mgmt, cable1)
		defer n.stop()
		n.set(mgmt, "refuses")
		if route, _, err := n.dial(); err != nil || route != cable1 {
			t.Fatalf("%v, %v", route, err)
		}
		for i := range 60 {
			n.set(mgmt, []string{"", "refuses"}[i%2])
			time.Sleep(time.Second + 100*time.Millisecond)
		}
		moves := 0
		for _, s := range n.said() {
			if s == "better" {
				moves++
			}
		}
		if moves > 8 {
			t.Errorf("moved back %d times in a minute", moves)
		}
	})
}

func TestCloseEndsAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNet(t, mgmt, cable1)
		n.set(mgmt, "silent")
		if _, _, err := n.dial(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		n.stop()
		if took := time.Since(began); took != 0 {
			t.Errorf("closing took %s", took)
		}
		if _, _, err := n.dial(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}
