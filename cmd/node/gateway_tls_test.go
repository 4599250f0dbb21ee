package node

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/audit"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// shows gives the certificate that a host's gateway shows to clients who trust these, or why there is none. The error is
// waited away for a minute.
func (h *host) shows(port int, roots *x509.CertPool, not *x509.Certificate) *x509.Certificate {
	h.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		c, err := tls.Dial("tcp", fmt.Sprintf("%s:%d", h.addr, port), &tls.Config{RootCAs: roots})
		if err == nil {
			cert := c.ConnectionState().PeerCertificates[0]
			c.Close()
			if not == nil || !cert.Equal(not) {
				return cert
			}
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("the gateway of %s: %v", h.cfg.Host, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// portOf is one that is free.
func portOf(t *testing.T) int {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer free.Close()
	return free.Addr().(*net.TCPAddr).Port
}

// secures makes the CA, and gives it as clients have it.
func (h *host) secures(names ...string) *x509.CertPool {
	h.t.Helper()
	c := h.client()
	defer c.Close()
	open := true
	for _, change := range []rendezvous.GatewayChange{{Open: &open}, {CA: &rendezvous.GatewayCA{Names: names}}} {
		if _, err := wire.ChangeGateway.Call(h.t.Context(), c, change); err != nil {
			h.t.Fatal(err)
		}
	}
	shown, err := wire.ShowGateway.Call(h.t.Context(), c, wire.Empty{})
	if err != nil {
		h.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(shown.CA.Cert)) {
		h.t.Fatalf("no certificate: %q", shown.CA.Cert)
	}
	return roots
}

// With a CA of the gateway's own every member's gateway shows a certificate of it, one that starts under the next leader
// too: the CA's key is where the record is.
func TestGatewaysSpeakTLS(t *testing.T) {
	port := portOf(t)
	c := newCluster(t, 3, func(cfg *Config) { cfg.GatewayPort = port })
	leader := c.hosts[0]
	leader.waitVoters(3)
	roots := c.hosts[2].secures("models.example.com")
	if !slices.ContainsFunc(leader.audits("gateway"), func(l audit.Line) bool {
		return l.On == "ca create models.example.com" && l.Outcome == audit.OK
	}) {
		t.Errorf("audit log: %+v", leader.audits("gateway"))
	}
	var first []*x509.Certificate
	for _, h := range c.hosts {
		cert := h.shows(port, roots, nil)
		for _, name := range []string{h.cfg.Host, "models.example.com"} {
			if err := cert.VerifyHostname(name); err != nil {
				t.Errorf("%s: %v", h.cfg.Host, err)
			}
		}
		first = append(first, cert)
	}
	if err := first[0].VerifyHostname(c.hosts[1].cfg.Host); err == nil {
		t.Error("a member has the name of another")
	}

	leader.halt()
	again := c.hosts[2]
	again.halt()
	again.start()
	again.wait(2)
	again.shows(port, roots, first[2]) // its key was new, so the next leader has signed it
	leader.start()
	leader.wait(3)
	leader.shows(port, roots, first[0])
}

// The gateway's CA outlives the key that seals it in the record, however many machines are removed; that key goes when the
// CA does.
func TestGatewayCAOutlivesRotation(t *testing.T) {
	t.Parallel()
	port := portOf(t)
	c := newCluster(t, 4, func(cfg *Config) { cfg.GatewayPort = port })
	one, two, three := c.hosts[0], c.hosts[1], c.hosts[2]
	one.waitVoters(3)
	roots := two.secures()
	before := three.shows(port, roots, nil)
	remove := func(h *host, number uint64) {
		t.Helper()
		one.remove(h.cfg.Host, true)
		if err := <-h.done; err != nil {
			t.Error(err)
		}
		h.stop = nil
		sameRing(t, number, one, two, three)
	}
	add := func(name string) *host {
		t.Helper()
		h := c.newcomer(name)
		if _, err := Join(t.Context(), h.cfg, one.addr, one.token(wire.TokenRequest{Uses: 1, TTL: time.Minute})); err != nil {
			t.Fatal(err)
		}
		h.start()
		one.wait(4)
		return h
	}
	remove(c.hosts[3], 1)
	remove(add("spark5"), 2)
	three.halt()
	three.start()
	one.wait(3)
	three.shows(port, roots, before) // signed with the key of two rotations ago

	cl := one.client()
	defer cl.Close()
	if _, err := wire.ChangeGateway.Call(t.Context(), cl, rendezvous.GatewayChange{DropCA: true}); err != nil {
		t.Fatal(err)
	}
	remove(add("spark6"), 3)
	for _, h := range []*host{one, two, three} {
		h.eventually("the key that sealed it is gone from "+h.cfg.Host, func() bool {
			retired, err := trust.LoadRetired(h.cfg.Paths.trust())
			return err == nil && len(retired) == 1 && retired[0].Number == 2
		})
	}
}
