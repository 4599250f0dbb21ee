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

// With a CA of the gateway's own every member's gateway shows a certificate of it, one that starts under the next leader
// too: the CA's key is where the record is.
func TestGatewaysSpeakTLS(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	free.Close()
	c := newCluster(t, 3, func(cfg *Config) { cfg.GatewayPort = port })
	leader := c.hosts[0]
	leader.waitVoters(3)
	typed := c.hosts[2].client()
	defer typed.Close()
	open := true
	for _, change := range []rendezvous.GatewayChange{{Open: &open},
		{CA: &rendezvous.GatewayCA{Names: []string{"models.example.com"}}}} {
		if _, err := wire.ChangeGateway.Call(t.Context(), typed, change); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.ContainsFunc(leader.audits("gateway"), func(l audit.Line) bool {
		return l.On == "ca create models.example.com" && l.Outcome == audit.OK
	}) {
		t.Errorf("audit log: %+v", leader.audits("gateway"))
	}
	shown, err := wire.ShowGateway.Call(t.Context(), typed, wire.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(shown.CA.Cert)) {
		t.Fatalf("no certificate: %q", shown.CA.Cert)
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
