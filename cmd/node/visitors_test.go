package node

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sparkrun/sparkrun/cmd/node/server"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/audit"
	"github.com/sparkrun/sparkrun/rendezvous/membership"
	"github.com/sparkrun/sparkrun/rendezvous/remote"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// The clients of one user hold a bounded part of a member, and what they ask again and again does not fill the audit log.
func TestOneUsersClientsHoldLittle(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	h := c.hosts[0]
	h.halt()
	h.cfg.clients = server.Quota{Open: 4, Bytes: 1 << 20}
	h.start()
	h.wait(1)
	book, pad, other := h.login(h.invite("nobody")), h.login(h.invite("nobody")), h.login(h.invite("daemon"))

	var follows sync.WaitGroup
	began, stop := make(chan struct{}, 4), make(chan struct{})
	enough := errors.New("enough")
	for range 4 {
		follows.Go(func() {
			first := true
			err := wire.Follow.Call(t.Context(), book.Client, wire.Empty{}, func(wire.Status) error {
				if first {
					began <- struct{}{}
					<-stop
				}
				first = false
				return enough
			})
			if !errors.Is(err, enough) {
				t.Errorf("follow: %v", err)
			}
		})
	}
	for range 4 {
		<-began
	}
	for what, r := range map[string]remoteClient{"the same client": book, "another one of the same user": pad} {
		if _, err := wire.Jobs.Call(t.Context(), r.Client, wire.JobsRequest{}); !errors.Is(err, wire.ErrDenied) || !strings.Contains(err.Error(), "nobody has 4 calls under way") {
			t.Errorf("%s has a fifth call: %v", what, err)
		}
	}
	if _, err := wire.Jobs.Call(t.Context(), other.Client, wire.JobsRequest{}); err != nil {
		t.Errorf("another user: %v", err)
	}
	close(stop)
	follows.Wait()
	h.eventually("there is room again", func() bool { _, err := wire.Jobs.Call(t.Context(), book.Client, wire.JobsRequest{}); return err == nil })

	if err := wire.StageContent.Call(t.Context(), book.Client, wire.StageChunk{Job: launcher.NewJobID(), Data: make([]byte, 2<<20)}); err == nil || !strings.Contains(err.Error(), "of requests under way") {
		t.Errorf("more than a user may have sent: %v", err)
	}
	h.eventually("nothing is held", func() bool {
		err := wire.StageContent.Call(t.Context(), book.Client, wire.StageChunk{Job: launcher.NewJobID(), Data: make([]byte, 1000<<10)})
		return err == nil || !strings.Contains(err.Error(), "of requests under way")
	})

	for range 30 {
		if _, err := wire.Jobs.Call(t.Context(), other.Client, wire.JobsRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	lines := h.audits("client call")
	lines = slices.DeleteFunc(lines, func(l audit.Line) bool { return l.Who != "daemon" || l.On != "jobs" })
	if len(lines) == 0 || len(lines) > 5 { // one a minute, and this has not lasted long
		t.Errorf("%d lines of 31 equal calls", len(lines))
	}
}

// What a user who is not root may make of tokens and clients is bounded: the record is everybody's.
func TestOneUserDoesNotFillTheRecord(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	h := c.hosts[0]
	n := h.now()
	ada := wire.Caller{User: &wire.User{Name: "nobody", UID: 65534}}
	ask := wire.TokenRequest{Uses: 1, TTL: time.Minute, Role: "client"}
	long := ask
	long.TTL = 25 * time.Hour
	if _, err := wire.Token.Call(t.Context(), n.server.As(ada), long); !errors.Is(err, launcher.ErrInvalid) {
		t.Errorf("a token for 25 hours: %v", err)
	}
	for range 100 {
		if _, err := wire.Token.Call(t.Context(), n.server.As(ada), ask); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := wire.Token.Call(t.Context(), n.server.As(ada), ask); !errors.Is(err, wire.ErrDenied) {
		t.Errorf("one token more: %v", err)
	}
	token := h.invite("nobody") // root may
	for i, held := range n.record.Clients() {
		t.Fatalf("client %d is there: %+v", i, held)
	}
	for i := range 100 {
		id := uuid.NewString()
		invitation := rendezvous.Token{ID: fmt.Sprint("t", i), Hash: []byte(id), Role: rendezvous.RoleClient, Uses: 1, Expires: time.Now().Add(time.Minute), User: "nobody"}
		for _, e := range []rendezvous.Entry{
			{Kind: rendezvous.KindToken, Token: &invitation},
			{Kind: rendezvous.KindLogin, Login: &rendezvous.Login{TokenID: invitation.ID, Client: rendezvous.Client{ID: id, Host: "book", Key: "k"}}},
		} {
			if err := n.failover.Recorder(0).Apply(t.Context(), e, func() bool { return false }); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := remote.Login(t.Context(), t.TempDir()+"/lab", h.addr, token, "book"); !errors.Is(err, wire.ErrDenied) || !strings.Contains(err.Error(), "nobody has 100 clients") {
		t.Errorf("one client more: %v", err)
	}
	h.login(h.invite("daemon"))
}

// One token makes one client, whoever else asks at the same time; an id that is another's is nobody's to take; and a client that
// was removed gets no certificate for its old one.
func TestClientsOfOthersNames(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	h := c.hosts[0]
	n := h.now()
	ask := func(text, id string) (wire.LoginResponse, error) {
		token, err := trust.ParseToken(text)
		if err != nil {
			t.Fatal(err)
		}
		key, err := trust.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		req := wire.LoginRequest{Secret: token.Secret.Reveal(), Client: id, Host: "book"}
		if req.CSR, err = trust.NewCSR(key, id); err != nil {
			t.Fatal(err)
		}
		res, _, err := membership.AskAsNewcomer(t.Context(), time.Now, h.addr, membership.JoinTimeout, token, func(c *wire.Client) (wire.LoginResponse, error) { return wire.Login.Call(t.Context(), c, req) })
		return res, err
	}
	token := h.invite("nobody")
	var all sync.WaitGroup
	var mu sync.Mutex
	in := 0
	for range 8 {
		all.Go(func() {
			_, err := ask(token, uuid.NewString())
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				in++
			} else if !errors.Is(err, rendezvous.ErrTokenUsed) {
				t.Errorf("a login at the same time: %v", err)
			}
		})
	}
	all.Wait()
	if list := n.record.Clients(); in != 1 || len(list) != 1 {
		t.Errorf("one token let in %d machines: %+v", in, list)
	}
	theirs := n.record.Clients()[0]
	for what, id := range map[string]string{"a member's": string(n.self.ID), "another client's": theirs.ID, "none": "x", "in capitals": strings.ToUpper(uuid.NewString())} {
		if res, err := ask(h.invite("daemon"), id); err == nil {
			t.Errorf("an id that is %s: %+v", what, res)
		}
	}
	if res, err := ask(token, theirs.ID); err == nil || len(res.Cert) > 0 {
		t.Error("who has found a used token has a certificate for the client's id")
	}
	joins, err := trust.ParseToken(h.token(wire.TokenRequest{Uses: 1, TTL: time.Minute}))
	if err != nil {
		t.Fatal(err)
	}
	key, err := trust.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	csr, err := trust.NewCSR(key, theirs.ID)
	if err != nil {
		t.Fatal(err)
	}
	join := wire.JoinRequest{Secret: joins.Secret.Reveal(), CSR: csr, Node: launcher.NodeID(theirs.ID), Host: "spark9", Protocol: rendezvous.Protocol, Addr: netip.MustParseAddrPort("127.9.9.9:7940")}
	if err := h.askToJoin(joins, join); !errors.Is(err, wire.ErrDenied) {
		t.Errorf("a node by a client's id: %v", err)
	}

	book := h.login(h.invite("nobody"))
	id := book.identity()
	own, err := id.CSR()
	if err != nil {
		t.Fatal(err)
	}
	at := []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(h.addr), n.self.RPCPort)}
	if cert, err := membership.RenewExpired(t.Context(), time.Now, id, own, at); err != nil || len(cert) == 0 {
		t.Errorf("a client that is on the list: %v", err)
	}
	if _, err := wire.RemoveClients.Call(t.Context(), n.server.As(wire.Caller{User: &wire.User{Name: "root"}}), wire.RemoveClientsRequest{Client: id.NodeID}); err != nil {
		t.Fatal(err)
	}
	if cert, err := membership.RenewExpired(t.Context(), time.Now, id, own, at); !errors.Is(err, wire.ErrDenied) || len(cert) > 0 {
		t.Errorf("a client that was removed: %v", err)
	}
}
