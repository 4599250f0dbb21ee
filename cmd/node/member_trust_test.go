package node

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/audit"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/membership"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// thief has a node's identity, and obeys no list.
func (h *host) thief() *trust.Gate {
	h.t.Helper()
	id, err := trust.LoadIdentity(h.cfg.Paths.trust())
	if err != nil {
		h.t.Fatal(err)
	}
	return h.gate(id)
}

func (h *host) gate(id *trust.Identity) *trust.Gate {
	h.t.Helper()
	g, err := trust.NewGate(trust.Config{Identity: id, Members: func(trust.Peer, trust.Pin) error { return nil }})
	if err != nil {
		h.t.Fatal(err)
	}
	return g
}

// knock connects to a host's port, and tells how the host answers: a server judges after the client's handshake, so it
// is read for a moment. An open connection is returned.
func (h *host) knock(c *tls.Config) (*tls.Conn, error) {
	h.t.Helper()
	raw, err := net.Dial("tcp", net.JoinHostPort(h.addr, strconv.Itoa(membership.DefaultRPCPort)))
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, c)
	conn.SetDeadline(time.Now().Add(time.Minute))
	if err = conn.Handshake(); err == nil {
		conn.SetReadDeadline(time.Now().Add(time.Minute))
		_, err = conn.Read(make([]byte, 1))
	}
	if err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}

// issue is a certificate of this cluster's CA, as its thief would make it.
func (h *host) issue(id launcher.NodeID, name string, role trust.Role) *trust.Identity {
	h.t.Helper()
	ca, err := trust.LoadCA(h.cfg.Paths.trust())
	if err != nil {
		h.t.Fatal(err)
	}
	return issueBy(h.t, ca, id, name, role)
}

func issueBy(t testing.TB, ca *trust.CA, id launcher.NodeID, name string, role trust.Role) *trust.Identity {
	t.Helper()
	key, err := trust.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	csr, err := trust.NewCSR(key, string(id))
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ca.Issue(csr, string(id), name, role, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	out, err := trust.NewIdentity(key, cert.Raw, ca.Cert.Raw)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// refusals are the reasons of the handshakes that a host has refused.
func (h *host) refusals() string {
	var all []string
	for _, l := range h.audits("handshake") {
		if l.Outcome != audit.Refused || l.From == "" {
			h.t.Errorf("%+v", l)
		}
		all = append(all, l.Why)
	}
	return strings.Join(all, "\n")
}

// What is no member of this cluster, by name, key, CA and role, comes as far as the handshake and has its line there.
func TestHandshakesOfOthers(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	one, two := c.hosts[0], c.hosts[1]
	id2 := two.now().self.ID
	// The same cluster id, node id and name under another CA.
	twinCA, err := trust.NewCA(one.now().self.Cluster, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	raft := one.now().failover.Proto()
	const notMember = "aaaaaaaa-0000-4000-8000-00000000000f"
	for _, tc := range []struct {
		name, proto, says string
		id                *trust.Identity
	}{
		{"another cluster's certificate with the same names, for calls", dial.Calls, trust.ErrForeign.Error(), issueBy(t, twinCA, id2, "spark2", trust.RoleNode)},
		{"the same, for raft", raft, trust.ErrForeign.Error(), issueBy(t, twinCA, id2, "spark2", trust.RoleNode)},
		{"a stolen CA's certificate in a member's name", raft, "spark2 has another key", one.issue(id2, "spark2", trust.RoleNode)},
		{"a stolen CA's certificate of a node that never joined", dial.Calls, trust.ErrNotMember.Error(), one.issue(notMember, "spark9", trust.RoleNode)},
		{"a client's certificate on raft", raft, trust.ErrNotMember.Error(), one.issue(notMember, "ann@laptop", trust.RoleClient)},
		{"a client's certificate on bulk data", dial.Bulk, trust.ErrNotMember.Error(), one.issue(notMember, "ann@laptop", trust.RoleClient)},
		{"another cluster's certificate with the same names, for bulk data", dial.Bulk, trust.ErrForeign.Error(), issueBy(t, twinCA, id2, "spark2", trust.RoleNode)},
		{"a client's certificate on calls among nodes", dial.Calls, trust.ErrNotMember.Error(), one.issue(notMember, "ann@laptop", trust.RoleClient)},
	} {
		before := len(one.audits("handshake"))
		careless := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{tc.proto}}
		careless.GetClientCertificate = one.gate(tc.id).Client("", tc.proto).GetClientCertificate
		if conn, err := one.knock(careless); err == nil {
			conn.Close()
			t.Errorf("%s: it is let in", tc.name)
		}
		one.eventually(tc.name+" is audited", func() bool { return len(one.audits("handshake")) > before })
		if lines := one.audits("handshake"); !strings.Contains(lines[len(lines)-1].Why, tc.says) {
			t.Errorf("%s: the audit log says %q, want %q", tc.name, lines[len(lines)-1].Why, tc.says)
		}
	}
	if out := two.run(command(2, 1, "true")); out.End != rendezvous.Completed {
		t.Errorf("a launch afterwards: %+v", out)
	}
	bulk, err := two.now().dial.DialFabric(t.Context(), string(one.now().self.ID), dial.Bulk, 0)
	if err != nil {
		t.Fatal("a member's connection for bulk data: ", err)
	}
	defer bulk.Close()
	if got := bulk.(*tls.Conn).ConnectionState().NegotiatedProtocol; got != dial.Bulk {
		t.Errorf("it speaks %q", got)
	}
}

// sameRing waits until these hosts have one gossip key, of this number, and the same.
func sameRing(t *testing.T, number uint64, hosts ...*host) {
	t.Helper()
	hosts[0].eventually(fmt.Sprintf("all have gossip key %d alone", number), func() bool {
		first, err := trust.LoadGossipKeys(hosts[0].cfg.Paths.trust())
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range hosts {
			keyring, err := trust.LoadGossipKeys(h.cfg.Paths.trust())
			if err != nil {
				t.Fatal(err)
			}
			if len(keyring) != 1 || keyring[0].Number != number || !keyring.Equal(first) {
				return false
			}
		}
		return true
	})
}

func (h *host) remove(name string, force bool) wire.RemoveNodeResponse {
	h.t.Helper()
	cl := h.client()
	defer cl.Close()
	var res wire.RemoveNodeResponse
	h.eventually(name+" is removed", func() bool {
		var err error
		res, err = wire.RemoveNode.Call(h.t.Context(), cl, wire.RemoveNodeRequest{Host: name, Force: force})
		if err != nil && !errors.Is(err, wire.ErrRetry) {
			h.t.Fatal(err)
		}
		return err == nil
	})
	return res
}

// A member is taken out while it is off and its keys are in use by somebody else: on every node, one without a copy of
// the record included, its open connections are closed and it gets no new one. The gossip key is another, and a node
// that was off meanwhile gets it.
func TestRemovedNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 7)
	leader := c.hosts[0]
	var outside, gone *host
	leader.eventually("3 vote, 2 stand by", func() bool { return len(leader.now().failover.Raft().Members().Servers) == 5 })
	var hosts []*host // that stay and are there
	for _, h := range c.hosts {
		switch {
		case leader.now().failover.HasPart(h.now().self.ID):
		case outside == nil:
			outside = h
		default:
			gone = h
		}
	}
	absent := c.hosts[slices.IndexFunc(c.hosts, func(h *host) bool { return h != leader && h != outside && h != gone })]
	for _, h := range c.hosts {
		if h != gone && h != absent {
			hosts = append(hosts, h)
		}
	}
	outside.eventually("it is told who is a member", func() bool {
		t, err := wire.AskTrusted.Call(outside.t.Context(), outside.now().server.As(wire.Caller{Node: "another"}), wire.Empty{})
		return err == nil && len(t.Members.Members) == 7
	})
	if outside.now().failover.HasRecord() {
		t.Fatal("the node outside raft has a copy of the record: this test shows less than it should")
	}
	if _, err := trust.LoadCA(outside.cfg.Paths.trust()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a node outside raft holds the CA's key: %v", err)
	}
	// One that it should not have is taken back, at the latest when it is there anew.
	pem, err := os.ReadFile(filepath.Join(leader.cfg.Paths.trust(), "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	outside.halt()
	if err := os.WriteFile(filepath.Join(outside.cfg.Paths.trust(), "ca.pem"), pem, 0o600); err != nil {
		t.Fatal(err)
	}
	outside.start()
	outside.eventually("the CA's key is taken back", func() bool {
		_, err := trust.LoadCA(outside.cfg.Paths.trust())
		return errors.Is(err, fs.ErrNotExist)
	})
	leader.wait(7)

	gone.crash()
	absent.crash()
	thief := gone.thief()
	// Whoever copied the identity offers a session to be resumed, too, if it was ever given one.
	resuming := thief.Client("", dial.Calls)
	resuming.SessionTicketsDisabled, resuming.ServerName, resuming.ClientSessionCache = false, "cluster", tls.NewLRUClientSessionCache(8)
	var open []*tls.Conn
	for _, h := range hosts {
		conn, err := h.knock(resuming)
		if err != nil {
			t.Fatalf("before, on %s: %v", h.cfg.Host, err)
		}
		defer conn.Close()
		open = append(open, conn)
		if again, err := h.knock(resuming); err != nil || again.ConnectionState().DidResume {
			t.Fatalf("%s: a session is resumed, or not: %v", h.cfg.Host, err)
		} else {
			again.Close()
		}
	}
	began := time.Now()
	if res := hosts[1].remove(gone.cfg.Host, true); res.Told {
		t.Error("a machine that is off is said to have been told")
	}
	for i, conn := range open {
		conn.SetReadDeadline(time.Now().Add(time.Minute))
		for err = nil; err == nil; {
			_, err = conn.Read(make([]byte, 4096))
		}
		if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
			t.Errorf("%s leaves a removed node's connection open", hosts[i].cfg.Host)
		}
		t.Logf("%s closed it %s after the removal was asked for", hosts[i].cfg.Host, time.Since(began).Round(time.Millisecond))
		if conn, err := hosts[i].knock(resuming); err == nil {
			conn.Close()
			t.Errorf("%s lets a removed node in", hosts[i].cfg.Host)
		}
	}
	for _, h := range hosts {
		h.eventually("the refusal is audited on "+h.cfg.Host, func() bool { return strings.Contains(h.refusals(), gone.cfg.Host) })
	}
	sameRing(t, 1, hosts...)
	if lines := leader.audits("node remove"); len(lines) != 1 || lines[0].On != gone.cfg.Host || lines[0].Outcome != audit.OK {
		t.Errorf("audit log of the leader: %+v", lines)
	}

	// The node that was off has the old key and the old list, and comes back by itself.
	absent.start()
	leader.wait(6)
	sameRing(t, 1, append(hosts, absent)...)
	absent.eventually("it knows who was removed", func() bool {
		_, _, listed := absent.now().members.List.Listed(launcher.NodeID(thief.Identity().NodeID))
		return !listed
	})
	absent.eventually("it gossips", func() bool { return len(absent.now().network.Listeners()) == 12 })

	// The removed machine is nobody, and says so; it can be freed without the others.
	gone.start()
	cl := gone.client()
	defer cl.Close()
	gone.eventually("it answers its own socket", func() bool {
		_, err := wire.Jobs.Call(t.Context(), cl, wire.JobsRequest{})
		return !errors.Is(err, ErrNoAgent)
	})
	gone.eventually("it is told why it is alone", func() bool {
		_, err := wire.Token.Call(t.Context(), cl, wire.TokenRequest{Uses: 1, TTL: time.Minute})
		if err == nil {
			t.Fatal("a removed machine makes tokens")
		}
		return strings.Contains(err.Error(), "this machine was removed from its cluster: `sudo sparkrun leave`")
	})
	if st, err := wire.ShowStatus.Call(t.Context(), cl, wire.StatusRequest{}); err != nil || !st.Removed {
		t.Errorf("its status: %+v, %v", st, err)
	}
	res, err := wire.Doctor.Call(t.Context(), cl, wire.DoctorRequest{})
	if err != nil || len(res.Nodes) != 1 || !slices.Contains(codesAt(res.Findings, gone.cfg.Host), "removed") {
		t.Errorf("its doctor: %+v, %v", res, err)
	}
	if err := wire.Leave.Call(t.Context(), cl, wire.LeaveRequest{}); err != nil {
		t.Error(err)
	}
	if err := <-gone.done; err != nil {
		t.Error(err)
	}
	gone.stop = nil
	if enrolled, err := trust.Enrolled(gone.cfg.Paths.trust()); enrolled || err != nil {
		t.Errorf("it is enrolled still: %v", err)
	}
}

// A machine that answers removes its own keys; one on which a job runs stays; the one that leads hands over first.
func TestRemoveMembersThatAnswer(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.hosts[0].waitVoters(3)
	job := command(2, 1, "exec sleep 1000")
	job.On = []string{"spark1", "spark3"}
	cl := c.hosts[1].client()
	defer cl.Close()
	seen := errors.New("seen enough")
	if err := wire.Launch.Call(t.Context(), cl, wire.LaunchRequest{Spec: job}, func(p rendezvous.Progress) error {
		if p.Step == rendezvous.StepRunning {
			return seen
		}
		return nil
	}); !errors.Is(err, seen) {
		t.Fatal(err)
	}
	if _, err := wire.RemoveNode.Call(t.Context(), cl, wire.RemoveNodeRequest{Host: "spark3"}); err == nil || !strings.Contains(err.Error(), "stop it first") {
		t.Errorf("with a job there: %v", err)
	}
	_, moved := c.hosts[0].now().toLeader.Leads()
	if _, err := wire.RemoveNode.Call(t.Context(), cl, wire.RemoveNodeRequest{Host: "spark1"}); err == nil || !strings.Contains(err.Error(), "stop it first") {
		t.Errorf("the leader, with a job there: %v", err)
	}
	select {
	case <-moved:
		t.Error("the leadership has moved for a removal that is refused")
	default:
	}
	if _, err := wire.RemoveNode.Call(t.Context(), cl, wire.RemoveNodeRequest{Host: "spark7"}); !errors.Is(err, rendezvous.ErrNoNode) || !strings.Contains(err.Error(), "spark1, spark2, spark3") {
		t.Errorf("a host that is none: %v", err)
	}
	if res := c.hosts[1].remove("spark3", true); !res.Told {
		t.Error("a machine that answers was not told")
	}
	if err := <-c.hosts[2].done; err != nil {
		t.Error(err)
	}
	c.hosts[2].stop = nil
	if enrolled, err := trust.Enrolled(c.hosts[2].cfg.Paths.trust()); enrolled || err != nil {
		t.Errorf("spark3 is enrolled still: %v", err)
	}
	if j, _ := c.hosts[0].now().record.Job(job.ID); j.Outcome == nil || j.Outcome.End != rendezvous.Stopped || !strings.Contains(j.Outcome.Cause, "removed") {
		t.Errorf("the job there: %+v", j.Outcome)
	}
	sameRing(t, 1, c.hosts[0], c.hosts[1])
}
