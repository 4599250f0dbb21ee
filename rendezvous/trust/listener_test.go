package trust

import (
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// attackers is how many connections the flood opens: all 5000 take a second or two of both cores.
var attackers = flag.Int("halfopen", 1000, "half-open handshakes of the flood; the bar is 5000")

// lobby is a listener on loopback, behind which each connection that is let in is greeted with "hi".
type lobby struct {
	*Listener
	addr    string
	mu      sync.Mutex
	refused []string
	in      atomic.Int32 // connections let in so far
}

func newLobby(t *testing.T, cfg ListenerConfig) *lobby {
	t.Helper()
	p := &lobby{}
	cfg.Protos = []Proto{{Name: protoRPC, Open: true}, {Name: protoRaft}}
	cfg.Refused = func(from netip.AddrPort, err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.refused = append(p.refused, fmt.Sprintf("%s: %v", from.Addr(), err))
	}
	var err error
	if p.Listener, err = NewListener(cfg); err != nil {
		t.Fatal(err)
	}
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := p.Listen(raw)
	p.addr = raw.Addr().String()
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.in.Add(1)
			served.Go(func() {
				defer c.Close()
				c.Write([]byte("hi"))
				c.Read(make([]byte, 1)) // until it is closed
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.throwAllOut()
		served.Wait()
	})
	return p
}

// throwAllOut ends what the test has left open.
func (p *lobby) throwAllOut() {
	p.Sweep(func(string) bool { return true })
	p.Listener.mu.Lock()
	defer p.Listener.mu.Unlock()
	for _, held := range p.unauthenticated.conns {
		for _, c := range append([]*conn(nil), held...) {
			c.drop(net.ErrClosed)
		}
	}
}

func (p *lobby) said(what string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.refused {
		if strings.Contains(r, what) {
			return true
		}
	}
	return false
}

// knock connects from one of loopback's addresses.
func (p *lobby) knock(from string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: time.Minute}
	return d.Dial("tcp", p.addr)
}

// visit makes a whole connection from an address and reads the greeting; it stays open.
func (p *lobby) visit(from string, c *tls.Config) (*tls.Conn, error) {
	raw, err := p.knock(from)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, c)
	conn.SetDeadline(time.Now().Add(time.Minute))
	hi := make([]byte, 2)
	if _, err = conn.Read(hi); err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}

func (p *lobby) eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.mu.Lock()
			defer p.mu.Unlock()
			t.Fatalf("%s: not so after a minute; refused so far: %v", what, p.refused[:min(10, len(p.refused))])
		}
	}
}

// closed tells whether the other side has closed a connection.
func closed(c net.Conn) bool {
	c.SetReadDeadline(time.Now().Add(time.Minute))
	_, err := c.Read(make([]byte, 1))
	ne, ok := errors.AsType[net.Error](err)
	return err != nil && (!ok || !ne.Timeout())
}

// Thousands of connections that never finish their handshake, of one address and of many: members and newcomers get in
// all the while, and what the listener holds stays small.
func TestHalfOpenHandshakes(t *testing.T) {
	ca := newCA(t, clusterA)
	one, two := newMember(t, ca, node1, "spark1", RoleNode), newMember(t, ca, node2, "spark2", RoleNode)
	p := newLobby(t, ListenerConfig{Gate: newGate(t, one, everyone), Handshake: time.Hour, HalfOpen: 64,
		HalfOpenPerAddr: 16})
	member := newGate(t, two, everyone).Client(node1, protoRaft)
	var flood sync.WaitGroup
	var held []net.Conn
	var mu sync.Mutex
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	for worker := range 20 {
		flood.Go(func() {
			for i := range *attackers / 20 {
				c, err := p.knock(fmt.Sprintf("127.0.0.%d", 100+worker))
				if err != nil {
					continue
				}
				if i%2 == 0 {
					c.Write([]byte{22, 3, 1, 2, 0}) // the beginning of a ClientHello
				}
				mu.Lock()
				held = append(held, c)
				mu.Unlock()
			}
		})
	}
	for i := range 20 {
		c, err := p.visit("127.0.0.1", member)
		if err != nil {
			t.Fatalf("member, attempt %d: %v", i, err)
		}
		c.Close()
		c, err = p.visit("127.0.0.2", JoinClient(PinOf(ca.Cert), clockAt(start), protoRPC))
		if err != nil {
			t.Fatalf("newcomer, attempt %d: %v", i, err)
		}
		c.Close()
	}
	flood.Wait()
	if c, err := p.visit("127.0.0.1", member); err != nil {
		t.Errorf("member, after the flood: %v", err)
	} else {
		c.Close()
	}
	p.Listener.mu.Lock()
	if p.halfOpen.n > 64 {
		t.Errorf("%d half-open connections are held, want 64 at most", p.halfOpen.n)
	}
	p.Listener.mu.Unlock()
	p.eventually(t, "the flood is told of", func() bool { return p.said("127.0.0.1") || p.said(ErrTooMany.Error()) })
}

func TestSlowHandshakeEnds(t *testing.T) {
	ca := newCA(t, clusterA)
	p := newLobby(t, ListenerConfig{Gate: newGate(t, newMember(t, ca, node1, "spark1", RoleNode), everyone),
		Handshake: 50 * time.Millisecond})
	c, err := p.knock("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if !closed(c) {
		t.Error("it is still open")
	}
	p.eventually(t, "it is told of", func() bool { return p.said(ErrSlow.Error()) })
	// One who hangs up by himself is no case for the audit log.
	before := len(p.refused)
	c2, err := p.knock("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	c2.Close()
	p.eventually(t, "it is gone",
		func() bool { p.Listener.mu.Lock(); defer p.Listener.mu.Unlock(); return p.halfOpen.n == 0 })
	if len(p.refused) != before {
		t.Errorf("refused: %v", p.refused)
	}
}

// Who showed no certificate may hold few connections, and not for long.
func TestUnauthenticatedAreLimited(t *testing.T) {
	ca := newCA(t, clusterA)
	gate := newGate(t, newMember(t, ca, node1, "spark1", RoleNode), everyone)
	p := newLobby(t, ListenerConfig{Gate: gate, Unauthenticated: 4, UnauthenticatedPerAddr: 2,
		UnauthenticatedFor: time.Hour})
	unknown := JoinClient(PinOf(ca.Cert), clockAt(start), protoRPC)
	visit := func(from string) *tls.Conn {
		c, err := p.visit(from, unknown)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	first, second := visit("127.0.0.2"), visit("127.0.0.2")
	visit("127.0.0.2")
	if !closed(first) {
		t.Error("the third of one address did not cost the first")
	}
	visit("127.0.0.3")
	visit("127.0.0.4")
	visit("127.0.0.5") // the fifth of all: 127.0.0.2 has two
	if !closed(second) {
		t.Error("the fifth of all did not cost the oldest of who holds most")
	}
	brief := newLobby(t, ListenerConfig{Gate: gate, UnauthenticatedFor: 50 * time.Millisecond})
	c, err := brief.visit("127.0.0.2", unknown)
	if err != nil {
		t.Fatal(err)
	}
	if !closed(c) {
		t.Error("an unauthenticated connection stays for ever")
	}
}

func TestSweepClosesWhoIsGone(t *testing.T) {
	ca := newCA(t, clusterA)
	p := newLobby(t, ListenerConfig{Gate: newGate(t, newMember(t, ca, node1, "spark1", RoleNode), everyone), PeerConns: 2})
	two := newGate(t, newMember(t, ca, node2, "spark2", RoleNode), everyone)
	person := newGate(t, newMember(t, ca, laptop, "ann@laptop", RoleClient), everyone)
	var open []*tls.Conn
	for _, c := range []*tls.Config{two.Client(node1, protoRaft), two.Client(node1, protoRPC),
		person.Client(node1, protoRPC)} {
		conn, err := p.visit("127.0.0.1", c)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		open = append(open, conn)
	}
	if _, err := p.visit("127.0.0.1", two.Client(node1, protoRPC)); err == nil {
		t.Error("a third connection of one member was let in, though two are allowed")
	}
	p.eventually(t, "it is told of", func() bool { return p.said(ErrTooMany.Error()) })
	p.Sweep(func(id string) bool { return id == node2 })
	if !closed(open[0]) || !closed(open[1]) {
		t.Error("connections of who is gone are still open")
	}
	open[2].SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := open[2].Read(make([]byte, 1)); !strings.Contains(fmt.Sprint(err), "timeout") {
		t.Errorf("another's connection: %v", err)
	}
}

// Every refusal is told with its reason, one that TLS itself makes too.
func TestRefusalsAreTold(t *testing.T) {
	ca := newCA(t, clusterA)
	one, two := newMember(t, ca, node1, "spark1", RoleNode), newMember(t, ca, node2, "spark2", RoleNode)
	twin := newMember(t, newCA(t, clusterA), node2, "spark2", RoleNode)
	person := newMember(t, ca, laptop, "ann@laptop", RoleClient)
	p := newLobby(t, ListenerConfig{Gate: newGate(t, one, func(p Peer, key Pin) error {
		if p.NodeID == node2 && key != KeyOf(two.Cert) {
			return errors.New("its key is another's")
		}
		return nil
	})})
	show := func(id *Identity, proto string) *tls.Config {
		return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{proto},
			Certificates: []tls.Certificate{*id.certificate()}}
	}
	keyless := show(two, protoRPC)
	keyless.Certificates[0].PrivateKey = one.key.value()
	for _, tc := range []struct {
		name   string
		config *tls.Config
		says   string
	}{
		{"certificate of another cluster with the same names", show(twin, protoRPC), ErrForeign.Error()},
		{"a client's certificate on raft", show(person, protoRaft), ErrRole.Error()},
		{"a certificate without its key", keyless, "signature"},
		{"a certificate of a stolen CA, for a member's name",
			show(newMember(t, ca, node2, "spark2", RoleNode), protoRPC), "its key is another's"},
		{"nothing, on raft", &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protoRaft}},
			ErrNoCertificate.Error()},
	} {
		if c, err := p.visit("127.0.0.1", tc.config); err == nil {
			c.Close()
			t.Errorf("%s: it was let in", tc.name)
		}
		p.eventually(t, tc.name, func() bool { return p.said(tc.says) })
	}
	if n := p.in.Load(); n != 0 {
		t.Errorf("%d were let in", n)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if diff := cmp.Diff(5, len(p.refused)); diff != "" {
		t.Errorf("refused %v: %s", p.refused, diff)
	}
}
