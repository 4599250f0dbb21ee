package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/discover"
	"github.com/sparkrun/sparkrun/rendezvous/membership"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// found is what a listener makes of announcements of a cluster by these hosts, in their order.
func found(ca string, by ...*host) discover.Cluster {
	c := discover.Cluster{ID: "65a59063-4d7b-4c93-8fa5-4ecc3df44c65", CA: ca}
	for _, h := range by {
		c.Members = append(c.Members, discover.Found{Host: h.cfg.Host, Addr: netip.MustParseAddrPort(h.addr + ":7940")})
	}
	return c
}

func (h *host) ca() string { return trust.PinOf(h.now().members.List.Gate.Identity().CA).String() }

// Finding is not trusting: a foreign cluster may announce anything, another's CA too, and gets nothing for it.
func TestJoinFound(t *testing.T) {
	t.Parallel()
	c, other := newCluster(t, 1), newCluster(t, 1)
	leader, foreign := c.hosts[0], other.hosts[0]
	token := leader.token(wire.TokenRequest{Uses: 1, TTL: 10 * time.Minute})

	h := c.newcomer("spark2")
	_, err := JoinFound(t.Context(), h.cfg, found(foreign.ca(), foreign, leader), token)
	if !errors.Is(err, trust.ErrForeign) {
		t.Errorf("another CA's announcement: %v", err)
	}
	for _, want := range []string{leader.ca(), foreign.ca(), "nothing was sent"} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("another CA's announcement: %v, want %q", err, want)
		}
	}
	// With its CA copied the foreign cluster is asked to prove it, and cannot.
	if _, err := JoinFound(t.Context(), h.cfg, found(leader.ca(), foreign), token); !errors.Is(err, trust.ErrForeign) || !strings.Contains(err.Error(), foreign.addr) {
		t.Errorf("a copied announcement: %v", err)
	}
	if enrolled, err := trust.Enrolled(h.cfg.Paths.trust()); enrolled || err != nil {
		t.Errorf("enrolled %v, %v", enrolled, err)
	}
	// The true one behind it is found all the same, and the token has not been used.
	silent := c.newcomer("silent") // nothing listens there
	j, err := JoinFound(t.Context(), h.cfg, found(leader.ca(), silent, foreign, leader), token)
	if err != nil || j.Host != "spark2" || j.Leader != "spark1" {
		t.Fatalf("joined %+v, %v", j, err)
	}
	if lines := append(foreign.audits("join"), leader.audits("join")...); len(lines) != 1 || lines[0].Who != "spark2" {
		t.Errorf("joins were asked for: %+v", lines)
	}

	// Hundreds that come first, take the connection and say nothing, hold nobody up.
	tar, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tar.Close()
	flooded := discover.Cluster{ID: found(leader.ca()).ID, CA: leader.ca()}
	for range 300 {
		flooded.Members = append(flooded.Members, discover.Found{Host: "a", Addr: tar.Addr().(*net.TCPAddr).AddrPort()})
	}
	flooded.Members = append(flooded.Members, found(leader.ca(), leader).Members...)
	one := leader.token(wire.TokenRequest{Uses: 1, TTL: 10 * time.Minute})
	if j, err := JoinFound(t.Context(), c.newcomer("spark4").cfg, flooded, one); err != nil || j.Leader != "spark1" {
		t.Fatalf("joined %+v behind a flood, %v", j, err)
	}

	// One that has proven itself has the last word: nobody else is asked.
	late := c.newcomer("spark3")
	if _, err := JoinFound(t.Context(), late.cfg, found(leader.ca(), leader, leader), token); !errors.Is(err, rendezvous.ErrTokenUsed) {
		t.Errorf("a used token: %v", err)
	}
	if lines := leader.audits("join"); len(lines) != 3 {
		t.Errorf("joins were asked for: %+v", lines)
	}
	if _, err := JoinFound(t.Context(), late.cfg, found(leader.ca(), leader), "spk1.x"); !errors.Is(err, trust.ErrTokenMalformed) {
		t.Errorf("no token: %v", err)
	}
	// Nobody listens for clusters on a machine that is in one.
	if _, err := Find(t.Context(), leader.cfg); !errors.Is(err, membership.ErrEnrolled) {
		t.Errorf("a member looks for clusters: %v", err)
	}
	if _, err := Find(t.Context(), late.cfg); !errors.Is(err, discover.ErrNoMulticast) {
		t.Errorf("on loopback: %v", err)
	}
}
