package node

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/audit"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// A cluster that was off for 60 days comes back though every certificate has ended: those with the CA's key help
// themselves, and then the others. Who has been taken out gets none.
func TestOffForSixtyDays(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 4)
	c.hosts[0].waitVoters(3)
	removed := c.hosts[3]
	removed.crash()
	old := removed.thief().Identity()
	c.hosts[0].remove(removed.cfg.Host, true)
	sameRing(t, 1, c.hosts[:3]...)
	for _, h := range c.hosts[:3] {
		h.halt()
	}
	// One that is a voter and holds no key of the CA's has to ask.
	if err := trust.ForgetCA(c.hosts[2].cfg.Paths.trust()); err != nil {
		t.Fatal(err)
	}
	later := func() time.Time { return time.Now().Add(60 * 24 * time.Hour) }
	for _, h := range c.hosts[:3] {
		h.cfg.Now = later
		h.start()
	}
	c.hosts[2].wait(3)
	for _, h := range c.hosts[:3] {
		id, err := trust.LoadIdentity(h.cfg.Paths.trust())
		if err != nil {
			t.Fatal(err)
		}
		if left := id.Cert.NotAfter.Sub(later()); left < 29*24*time.Hour || id.Peer != h.now().members.List.Gate.Identity().Peer {
			t.Errorf("%s has a certificate for %s, %+v", h.cfg.Host, left, id.Peer)
		}
	}
	if out := c.hosts[2].run(command(3, 1, "true")); out.End != rendezvous.Completed {
		t.Errorf("a launch afterwards: %+v", out)
	}
	signed := 0
	for _, h := range c.hosts[:2] {
		for _, l := range h.audits("renew expired") {
			if l.Outcome == audit.OK && l.Who == "spark3" {
				signed++
			}
		}
	}
	if signed == 0 {
		t.Error("no line tells of the renewal")
	}

	newcomer := c.hosts[0].now().server.As(wire.Caller{Addr: "192.0.2.1:1"})
	csr, err := old.CSR()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wire.RenewExpired.Call(t.Context(), newcomer, wire.RenewExpiredRequest{Cert: old.Cert.Raw, CSR: csr}); !errors.Is(err, wire.ErrDenied) || !strings.Contains(err.Error(), "spark4 was removed from its cluster") {
		t.Errorf("a machine that was taken out: %v", err)
	}
	other := c.hosts[1].thief().Identity()
	otherCSR, err := other.CSR()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wire.RenewExpired.Call(t.Context(), newcomer, wire.RenewExpiredRequest{Cert: other.Cert.Raw, CSR: csr}); !errors.Is(err, wire.ErrDenied) {
		t.Errorf("somebody else's certificate: %v", err)
	}
	if _, err := wire.RenewExpired.Call(t.Context(), newcomer, wire.RenewExpiredRequest{Cert: other.Cert.Raw, CSR: otherCSR}); err != nil {
		t.Errorf("a member's own: %v", err)
	}
	var refused []string
	for _, l := range c.hosts[0].audits("renew expired") {
		if l.Outcome == audit.Refused && l.From == "192.0.2.1:1" {
			refused = append(refused, l.Why)
		}
	}
	if len(refused) != 2 || !strings.Contains(refused[0], "spark4 was removed from its cluster") {
		t.Errorf("the audit log has of the two that were refused: %q", refused)
	}
}
