package node

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/audit"
	"github.com/sparkrun/sparkrun/rendezvous/membership"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// audits reads a host's audit log, the lines about one thing.
func (h *host) audits(what string) (lines []audit.Line) {
	h.t.Helper()
	f, err := os.Open(h.cfg.Paths.audit())
	if err != nil {
		h.t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var l audit.Line
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			h.t.Fatalf("%v in %q", err, s.Text())
		}
		if l.What == what {
			lines = append(lines, l)
		}
	}
	return lines
}

// newcomer is a machine on this cluster's network that is in no cluster.
func (c *cluster) newcomer(name string) *host {
	dir := c.t.TempDir()
	last := c.hosts[len(c.hosts)-1]
	at := strings.LastIndexByte(last.addr, '.')
	c.news++
	h := &host{t: c.t, addr: fmt.Sprintf("%s.%d", last.addr[:at], 100+c.news)}
	h.cfg = last.cfg
	h.cfg.Paths = Paths{State: dir + "/state", Run: dir + "/run", Sysfs: "/sys", Socket: dir + "/agent.sock"}
	h.cfg.Host, h.cfg.Management, h.cfg.Witness, h.cfg.Logger = name, h.addr, false, testLogger(c.t, name)
	for _, edit := range c.edits {
		edit(&h.cfg)
	}
	c.t.Cleanup(h.halt)
	return h
}

func (h *host) token(r wire.TokenRequest) string {
	h.t.Helper()
	cl := h.client()
	defer cl.Close()
	res, err := wire.Token.Call(h.t.Context(), cl, r)
	if err != nil {
		h.t.Fatal(err)
	}
	return res.Token
}

// Whoever comes with a token that is no good is refused in words that say why, and each refusal has its line on the
// leader; the machine that was refused is as it was.
func TestTokensThatAreNoGood(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	leader := c.hosts[0]
	other := newCluster(t, 1)
	once := leader.token(wire.TokenRequest{Uses: 1, TTL: time.Minute})
	stolen := c.newcomer("spark3")
	if _, err := Join(t.Context(), stolen.cfg, leader.addr, once); err != nil {
		t.Fatal(err)
	}
	short := leader.token(wire.TokenRequest{Uses: 1, TTL: time.Millisecond})
	time.Sleep(2 * time.Millisecond) // its whole life
	good := leader.token(wire.TokenRequest{Uses: 2, TTL: time.Minute})
	unknown, err := trust.ParseToken(good)
	if err != nil {
		t.Fatal(err)
	}
	unknown.Secret = trust.NewSecret([]byte("sixteen bytes !!"))
	before := len(leader.audits("join"))

	for i, tc := range []struct {
		name, token, at string
		witness         bool
		want            error
		says            string
	}{
		{"stolen and used", once, leader.addr, false, rendezvous.ErrTokenUsed, "token used up"},
		{"stolen and used, by way of a follower", once, c.hosts[1].addr, false, rendezvous.ErrTokenUsed, "token used up"},
		{"expired", short, leader.addr, false, rendezvous.ErrTokenExpired, "token expired"},
		{"for a node, by a witness", good, leader.addr, true, rendezvous.ErrTokenRole, "it admits a node, and this is a witness"},
		{"for a witness, by a node", leader.token(wire.TokenRequest{Uses: 1, TTL: time.Minute, Role: "witness"}), leader.addr, false, rendezvous.ErrTokenRole, "admits a witness"},
		{"for a client, by a node", leader.token(wire.TokenRequest{Uses: 1, TTL: time.Minute, Role: "client", User: "root"}), leader.addr, false, rendezvous.ErrTokenRole, "admits a client"},
		{"of no cluster's making", unknown.Reveal(), leader.addr, false, rendezvous.ErrTokenUnknown, "token not known"},
	} {
		h := c.newcomer(fmt.Sprintf("mallory%d", i))
		h.cfg.Witness = tc.witness
		_, err := Join(t.Context(), h.cfg, tc.at, tc.token)
		if !errors.Is(err, tc.want) || !strings.Contains(fmt.Sprint(err), tc.says) {
			t.Errorf("%s: error %v, want one that says %q", tc.name, err, tc.says)
		}
		if enrolled, err := trust.Enrolled(h.cfg.Paths.trust()); enrolled || err != nil {
			t.Errorf("%s: enrolled %v, %v", tc.name, enrolled, err)
		}
		lines := leader.audits("join")
		last := lines[len(lines)-1]
		if len(lines) != before+i+1 || last.Who != h.cfg.Host || last.Outcome != audit.Refused || !strings.Contains(last.Why, tc.says) || last.From == "" {
			t.Errorf("%s: the audit log ends with %+v", tc.name, last)
		}
	}
	// Another cluster's token stops at the pin: nothing of it reaches this one.
	h := c.newcomer("mallory")
	if _, err := Join(t.Context(), h.cfg, leader.addr, other.hosts[0].token(wire.TokenRequest{Uses: 1, TTL: time.Minute})); err == nil || !strings.Contains(err.Error(), "check the address and the token") {
		t.Errorf("another cluster's token: %v", err)
	}
	if lines := leader.audits("join"); len(lines) != before+7 {
		t.Errorf("another cluster's token came as far as the leader: %+v", lines[len(lines)-1])
	}
	if n := len(leader.now().record.Nodes()); n != 3 {
		t.Errorf("the cluster has %d members, want 3", n)
	}
	for _, h := range c.hosts {
		text, err := os.ReadFile(h.cfg.Paths.audit())
		if err != nil {
			t.Fatal(err)
		}
		for _, token := range []string{once, good, short} {
			if secret := token[strings.LastIndexByte(token, '.')+1:]; strings.Contains(string(text), secret) {
				t.Errorf("the audit log of %s shows a token's secret", h.cfg.Host)
			}
		}
	}
}

// askToJoin sends a newcomer's request to a host.
func (h *host) askToJoin(token trust.Token, r wire.JoinRequest) error {
	h.t.Helper()
	_, _, err := membership.AskAsNewcomer(h.t.Context(), time.Now, h.addr, membership.JoinTimeout, token,
		func(c *wire.Client) (wire.JoinResponse, error) { return wire.Join.Call(h.t.Context(), c, r) })
	return err
}

// A join that somebody recorded and sends again lets nobody in, however many uses its token has left.
func TestReplayedJoin(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	leader := c.hosts[0]
	token, err := trust.ParseToken(leader.token(wire.TokenRequest{Uses: 5, TTL: time.Minute}))
	if err != nil {
		t.Fatal(err)
	}
	h := c.newcomer("spark2")
	key, err := trust.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	id := launcher.NodeID("aaaaaaaa-0000-4000-8000-000000000002")
	csr, err := trust.NewCSR(key, string(id))
	if err != nil {
		t.Fatal(err)
	}
	req := wire.JoinRequest{Secret: token.Secret.Reveal(), CSR: csr, Node: id, Host: "spark2", Protocol: rendezvous.Protocol, Addr: netip.MustParseAddrPort(h.addr + ":7940")}
	if err := leader.askToJoin(token, req); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := leader.askToJoin(token, req); !errors.Is(err, wire.ErrDenied) || !strings.Contains(err.Error(), "a join cannot be made twice") {
			t.Errorf("replayed: %v", err)
		}
	}
	lines := leader.audits("join")
	if len(lines) != 3 || lines[0].Outcome != audit.OK || lines[1].Outcome != audit.Refused || lines[2].Outcome != audit.Refused {
		t.Errorf("audit log: %+v", lines)
	}
}

// What users do has a line where they typed it and where it was decided; what a node starts has one there.
func TestAuditOfUsersCalls(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	spec := command(2, 1, "true")
	c.hosts[1].run(spec)
	cl := c.hosts[1].client()
	defer cl.Close()
	if _, err := wire.Stop.Call(t.Context(), cl, wire.StopRequest{Job: "nonesuch"}); err == nil {
		t.Error("a job that is not there was stopped")
	}
	if err := wire.Exec.Call(t.Context(), cl, wire.ExecRequest{Job: "nonesuch", Session: "one", Argv: []string{"true"}}, func(wire.ExecChunk) error { return nil }); err == nil {
		t.Error("exec in a job that is not there")
	}
	for _, h := range c.hosts {
		launch := h.audits("launch")
		if len(launch) != 1 || launch[0].On != string(spec.ID) || launch[0].Who == "" || launch[0].UID == nil || launch[0].From != "spark2" || launch[0].Outcome != audit.OK {
			t.Errorf("%s: launch: %+v", h.cfg.Host, launch)
		}
		if stop := h.audits("stop"); len(stop) != 1 || stop[0].Outcome != audit.Failed || stop[0].On != "nonesuch" {
			t.Errorf("%s: stop: %+v", h.cfg.Host, stop)
		}
		prepare := h.audits("prepare ranks for " + launch[0].Who)
		if len(prepare) != 1 || prepare[0].On != string(spec.ID) || prepare[0].Who != "spark1" {
			t.Errorf("%s: prepare: %+v", h.cfg.Host, prepare)
		}
	}
	if exec := c.hosts[1].audits("exec"); len(exec) != 1 || exec[0].Outcome != audit.Failed {
		t.Errorf("exec: %+v", exec)
	}
	if lead := c.hosts[0].audits("lead"); len(lead) != 1 {
		t.Errorf("lead: %+v", lead)
	}
}
