package trust

import (
	"bytes"
	"crypto/tls"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// errRefusedByPeer stands for "some error": the end that is refused learns an alert only.
var errRefusedByPeer = errors.New("any")

func TestHandshake(t *testing.T) {
	ca, otherCA := newCA(t, clusterA), newCA(t, clusterB)
	// The same cluster UUID and node UUIDs under a key of the attacker's: only the signature differs.
	twinCA := newCA(t, clusterA)
	one := newMember(t, ca, node1, "spark1", RoleNode)
	two := newMember(t, ca, node2, "spark2", RoleNode)
	person := newMember(t, ca, laptop, "ann@laptop", RoleClient)
	twin := newMember(t, twinCA, node2, "spark2", RoleNode)
	foreign := newMember(t, otherCA, node2, "spark2", RoleNode)
	twinPerson := newMember(t, twinCA, laptop, "ann@laptop", RoleClient)

	server := func(id *Identity) *tls.Config {
		return newGate(t, id, everyone).Server(Proto{Name: protoRPC, Open: true}, Proto{Name: protoRaft})
	}
	client := func(id *Identity, want string, proto ...string) *tls.Config {
		return newGate(t, id, everyone).Client(want, proto...)
	}
	at := func(when time.Time, id *Identity) *Gate {
		g, err := NewGate(Config{Identity: id, Members: everyone, Now: clockAt(when)})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	// A client that omits every check of its own, as an attacker's would.
	careless := func(id *Identity, proto string) *tls.Config {
		return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{proto},
			Certificates: []tls.Certificate{*id.certificate()}}
	}
	tls12 := func(c *tls.Config) *tls.Config {
		c = c.Clone()
		c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		return c
	}
	stolen := *two.certificate() // node 2's certificate without its key
	stolen.PrivateKey = one.key.value()
	expired := start.Add(CertLifetime + time.Second)
	renewed := newMemberAt(t, ca, node1, "spark1", RoleNode, expired)

	for _, tc := range []struct {
		name       string
		server     *tls.Config
		client     *tls.Config
		serverErr  error
		clientErr  error
		serverRead string
	}{
		{"member to the member it wants, raft", server(one), client(two, node1, protoRaft), nil, nil, "hello"},
		{"member to any member, RPC", server(one), client(two, "", protoRPC), nil, nil, "hello"},
		{"person on RPC", server(one), client(person, node1, protoRPC), nil, nil, "hello"},
		{"person on raft", server(one), client(person, node1, protoRaft), ErrRole, errRefusedByPeer, ""},
		{"person without ALPN", server(one), client(person, node1), ErrRole, errRefusedByPeer, ""},
		{"newcomer with the right pin", server(one), JoinClient(PinOf(ca.Cert), clockAt(start), protoRPC), nil, nil, "hello"},
		{"newcomer on raft", server(one), JoinClient(PinOf(ca.Cert), clockAt(start), protoRaft), ErrNoCertificate,
			errRefusedByPeer, ""},
		{"newcomer without ALPN", server(one), JoinClient(PinOf(ca.Cert), clockAt(start)), ErrNoCertificate,
			errRefusedByPeer, ""},
		{"newcomer with another cluster's pin", server(one), JoinClient(PinOf(otherCA.Cert), clockAt(start), protoRPC),
			errRefusedByPeer, ErrForeign, ""},
		{"newcomer with its clock a year behind", server(one),
			JoinClient(PinOf(ca.Cert), clockAt(start.AddDate(-1, 0, 0)), protoRPC), errRefusedByPeer, ErrExpired, ""},
		{"another node answers", server(two), client(one, node1, protoRPC), errRefusedByPeer, ErrWrongNode, ""},
		{"server of another cluster", server(foreign), client(one, node2, protoRPC), errRefusedByPeer, ErrForeign, ""},
		{"server of another cluster with the same names", server(twin), client(one, node2, protoRPC), errRefusedByPeer,
			ErrForeign, ""},
		{"client of another cluster", server(one), careless(foreign, protoRPC), ErrForeign, errRefusedByPeer, ""},
		{"client of another cluster with the same names", server(one), careless(twin, protoRPC), ErrForeign,
			errRefusedByPeer, ""},
		{"person of another cluster with the same names", server(one), careless(twinPerson, protoRPC), ErrForeign,
			errRefusedByPeer, ""},
		{"certificate without its key", server(one),
			&tls.Config{InsecureSkipVerify: true, NextProtos: []string{protoRaft},
				Certificates: []tls.Certificate{stolen}}, errRefusedByPeer, errRefusedByPeer, ""},
		{"a person's certificate on a server", server(person), client(one, "", protoRPC), errRefusedByPeer, ErrRole, ""},
		{"newcomer meets a person's certificate on a server", server(person),
			JoinClient(PinOf(ca.Cert), clockAt(start), protoRPC), errRefusedByPeer, ErrRole, ""},
		{"expired client", at(expired, one).Server(Proto{Name: protoRPC, Open: true}), careless(two, protoRPC),
			ErrExpired, errRefusedByPeer, ""},
		{"expired server", server(one), at(expired, two).Client(node1, protoRPC), errRefusedByPeer, ErrExpired, ""},
		{"own certificate expired", at(expired, renewed).Server(Proto{Name: protoRPC, Open: true}),
			at(expired, two).Client(node1, protoRPC), errRefusedByPeer, ErrExpired, ""},
		{"client speaks TLS 1.2", server(one), tls12(client(two, node1, protoRPC)), errRefusedByPeer, errRefusedByPeer, ""},
		{"server speaks TLS 1.2", tls12(server(one)), client(two, node1, protoRPC), errRefusedByPeer, errRefusedByPeer, ""},
		{"newcomer meets TLS 1.2", tls12(server(one)), JoinClient(PinOf(ca.Cert), clockAt(start), protoRPC),
			errRefusedByPeer, errRefusedByPeer, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out := connect(t, tc.server, tc.client)
			for end, e := range map[string][2]error{"server": {out.server, tc.serverErr}, "client": {out.client, tc.clientErr}} {
				if e[1] != errRefusedByPeer {
					wantErr(t, end, e[0], e[1])
				} else if e[0] == nil {
					t.Errorf("%s: no error, want one", end)
				}
			}
			if out.received != tc.serverRead {
				t.Errorf("server's application read %q, want %q", out.received, tc.serverRead)
			}
		})
	}
}

// The server's answer to an expired certificate is a bare alert, so the client must say it before.
func TestOwnExpiredCertificateIsNamed(t *testing.T) {
	ca := newCA(t, clusterA)
	later := start.Add(CertLifetime + time.Hour)
	server, err := NewGate(Config{Identity: newMemberAt(t, ca, node1, "spark1", RoleNode, later), Members: everyone,
		Now: clockAt(later)})
	if err != nil {
		t.Fatal(err)
	}
	client, err := NewGate(Config{Identity: newMember(t, ca, node2, "spark2", RoleNode), Members: everyone,
		Now: clockAt(later)})
	if err != nil {
		t.Fatal(err)
	}
	out := connect(t, server.Server(Proto{Name: protoRPC, Open: true}), client.Client(node1, protoRPC))
	if out.client == nil || !strings.Contains(out.client.Error(), "own certificate is out of date") {
		t.Errorf("client error is %v, want one about its own certificate", out.client)
	}
}

func TestNewcomerSendsNothingToAWrongCluster(t *testing.T) {
	ca, attacker := newCA(t, clusterA), newCA(t, clusterA)
	evil := newMember(t, attacker, node1, "spark1", RoleNode)
	config := func(chain ...[]byte) *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{{Certificate: chain, PrivateKey: evil.key.value()}},
			NextProtos: []string{protoRPC}}
	}
	// The attacker's CA with the true public key in it (they have the same length): the pin fits.
	forgedCA := bytes.Replace(attacker.Cert.Raw, attacker.Cert.RawSubjectPublicKeyInfo, ca.Cert.RawSubjectPublicKeyInfo, 1)
	// A node gone bad shows its true certificate and a CA with altered content: the pin fits and so does the leaf.
	bad := newMember(t, ca, node1, "spark1", RoleNode)
	alteredCA := bytes.Clone(ca.Cert.Raw)
	alteredCA[len(alteredCA)-1] ^= 1

	for name, server := range map[string]*tls.Config{
		"own CA in the chain":       config(evil.Cert.Raw, attacker.Cert.Raw),
		"the true CA in the chain":  config(evil.Cert.Raw, ca.Cert.Raw),
		"both CAs in the chain":     config(evil.Cert.Raw, attacker.Cert.Raw, ca.Cert.Raw),
		"the true key, forged CA":   config(evil.Cert.Raw, forgedCA),
		"no CA in the chain":        config(evil.Cert.Raw),
		"a self-signed certificate": config(attacker.Cert.Raw),
		"an altered CA": {NextProtos: []string{protoRPC}, Certificates: []tls.Certificate{
			{Certificate: [][]byte{bad.Cert.Raw, alteredCA}, PrivateKey: bad.key.value()}}},
	} {
		t.Run(name, func(t *testing.T) {
			out := connect(t, server, JoinClient(PinOf(ca.Cert), clockAt(start), protoRPC))
			wantErr(t, "client", out.client, ErrForeign)
			if out.received != "" || out.server == nil {
				t.Errorf("server's application read %q, handshake error %v; want nothing read and an error",
					out.received, out.server)
			}
		})
	}
}

func TestRemovedMemberIsRefusedAtOnce(t *testing.T) {
	ca := newCA(t, clusterA)
	var removed atomic.Value
	removed.Store("")
	members := func(p Peer, _ Pin) error {
		if p.NodeID == removed.Load() {
			return errors.New("removed 2026-11-01 by ann")
		}
		return nil
	}
	gate1 := newGate(t, newMember(t, ca, node1, "spark1", RoleNode), members)
	gate2 := newGate(t, newMember(t, ca, node2, "spark2", RoleNode), members)
	server := gate1.Server(Proto{Name: protoRPC, Open: true})
	// The removed node's own software need not obey any list, and it tries to resume.
	lax := newGate(t, gate2.Identity(), everyone).Client(node1, protoRPC)
	lax.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	lax.ServerName = "spark1" // the cache's key
	lax.SessionTicketsDisabled = false

	first := connect(t, server, lax)
	if first.client != nil || first.received != "hello" {
		t.Fatalf("member was refused: %v, %v", first.client, first.server)
	}
	if again := connect(t, server, lax); again.client != nil || again.resumed {
		t.Fatalf("second connection: error %v, resumed %v; want none and a full handshake", again.client, again.resumed)
	}
	if peer, err := gate1.Peer(first.state); err != nil || peer.NodeID != node2 {
		t.Fatalf("peer of the open connection is %+v, %v", peer, err)
	}

	removed.Store(node2)
	out := connect(t, server, lax)
	wantErr(t, "server", out.server, ErrNotMember)
	if out.received != "" || out.client == nil {
		t.Errorf("removed node got through: read %q, client error %v", out.received, out.client)
	}
	if out.server != nil && !strings.Contains(out.server.Error(), "spark2") {
		t.Errorf("server error %q does not name the host", out.server)
	}
	// On the connection that was open all the time, the next RPC is refused too.
	_, err := gate1.Peer(first.state)
	wantErr(t, "peer of the open connection", err, ErrNotMember)
	// And nobody dials it any more.
	out = connect(t, gate2.Server(Proto{Name: protoRPC, Open: true}), gate1.Client(node2, protoRPC))
	wantErr(t, "dialling the removed node", out.client, ErrNotMember)
}

// Even where a server hands out tickets (a mistake of a later day), a resumed session is checked again.
func TestResumedSessionIsChecked(t *testing.T) {
	ca := newCA(t, clusterA)
	var refuse atomic.Bool
	gate1 := newGate(t, newMember(t, ca, node1, "spark1", RoleNode), func(Peer, Pin) error {
		if refuse.Load() {
			return errors.New("removed")
		}
		return nil
	})
	server := gate1.Server(Proto{Name: protoRPC, Open: true})
	server.SessionTicketsDisabled = false
	client := newGate(t, newMember(t, ca, node2, "spark2", RoleNode), everyone).Client(node1, protoRPC)
	client.SessionTicketsDisabled = false
	client.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	client.ServerName = "spark1" // the cache's key

	connect(t, server, client)
	if out := connect(t, server, client); !out.resumed {
		t.Fatalf("the session was not resumed (%v, %v): this test shows nothing", out.client, out.server)
	}
	refuse.Store(true)
	out := connect(t, server, client)
	wantErr(t, "server", out.server, ErrNotMember)
	if out.received != "" {
		t.Errorf("server's application read %q", out.received)
	}
}

func TestPeerTellsWhoIsThere(t *testing.T) {
	ca := newCA(t, clusterA)
	gate := newGate(t, newMember(t, ca, node1, "spark1", RoleNode), everyone)
	server := gate.Server(Proto{Name: protoRPC, Open: true})
	for _, tc := range []struct {
		name   string
		client *tls.Config
		want   Peer
		err    error
	}{
		{"node", newGate(t, newMember(t, ca, node2, "spark2", RoleNode), everyone).Client(node1, protoRPC),
			Peer{NodeID: node2, Host: "spark2", Role: RoleNode, Cluster: clusterA}, nil},
		{"person", newGate(t, newMember(t, ca, laptop, "ann@laptop", RoleClient), everyone).Client(node1, protoRPC),
			Peer{NodeID: laptop, Host: "ann@laptop", Role: RoleClient, Cluster: clusterA}, nil},
		{"newcomer", JoinClient(PinOf(ca.Cert), clockAt(start), protoRPC), Peer{}, ErrNoCertificate},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out := connect(t, server, tc.client)
			if out.server != nil || out.client != nil {
				t.Fatalf("handshake: %v, %v", out.server, out.client)
			}
			got, err := gate.Peer(out.state)
			wantErr(t, "peer", err, tc.err)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("peer (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRenewedIdentityServesOpenListeners(t *testing.T) {
	ca := newCA(t, clusterA)
	old := newMember(t, ca, node1, "spark1", RoleNode)
	gate := newGate(t, old, everyone)
	server := gate.Server(Proto{Name: protoRPC, Open: true})
	var seen []string
	client := newGate(t, newMember(t, ca, node2, "spark2", RoleNode), everyone).Client(node1, protoRPC)
	verify := client.VerifyConnection
	client.VerifyConnection = func(cs tls.ConnectionState) error {
		seen = append(seen, cs.PeerCertificates[0].SerialNumber.String())
		return verify(cs)
	}
	connect(t, server, client)
	fresh := newMember(t, ca, node1, "spark1", RoleNode)
	if err := gate.Renew(fresh); err != nil {
		t.Fatal(err)
	}
	connect(t, server, client)
	if want := []string{old.Cert.SerialNumber.String(), fresh.Cert.SerialNumber.String()}; !slices.Equal(seen, want) {
		t.Errorf("server showed certificates %v, want %v", seen, want)
	}
	for _, other := range []*Identity{
		newMember(t, ca, node2, "spark2", RoleNode),
		newMember(t, ca, node1, "spark1", RoleClient),
		newMember(t, newCA(t, clusterB), node1, "spark1", RoleNode),
	} {
		if err := gate.Renew(other); err == nil {
			t.Errorf("gate of node %s took the identity %+v", node1, other.Peer)
		}
	}
}
