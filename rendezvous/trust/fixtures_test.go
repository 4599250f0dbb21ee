package trust

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

const (
	clusterA = "11111111-1111-4111-8111-111111111111"
	clusterB = "22222222-2222-4222-8222-222222222222"
	node1    = "aaaaaaaa-0000-4000-8000-000000000001"
	node2    = "aaaaaaaa-0000-4000-8000-000000000002"
	laptop   = "aaaaaaaa-0000-4000-8000-00000000000f"

	protoRPC  = "h2"
	protoRaft = "sparkrun-raft/1"
)

var start = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func clockAt(t time.Time) func() time.Time { return func() time.Time { return t } }

func everyone(Peer, Pin) error { return nil }

func newCA(t testing.TB, cluster string) *CA {
	t.Helper()
	ca, err := NewCA(cluster, start)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func newKeyAndCSR(t testing.TB, nodeID string) (Key, []byte) {
	t.Helper()
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	csr, err := NewCSR(key, nodeID)
	if err != nil {
		t.Fatal(err)
	}
	return key, csr
}

func newMember(t testing.TB, ca *CA, nodeID, host string, role Role) *Identity {
	t.Helper()
	return newMemberAt(t, ca, nodeID, host, role, start)
}

func newMemberAt(t testing.TB, ca *CA, nodeID, host string, role Role, now time.Time) *Identity {
	t.Helper()
	key, csr := newKeyAndCSR(t, nodeID)
	cert, err := ca.Issue(csr, nodeID, host, role, now)
	if err != nil {
		t.Fatal(err)
	}
	id, err := NewIdentity(key, cert.Raw, ca.Cert.Raw)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func newGate(t testing.TB, id *Identity, members func(Peer, Pin) error) *Gate {
	t.Helper()
	g, err := NewGate(Config{Identity: id, Members: members, Now: clockAt(start)})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// outcome is what the two ends of one connection saw.
type outcome struct {
	server, client error
	received       string // what the server's application read
	state          tls.ConnectionState
	resumed        bool // as the client saw it
}

// connect dials server with client over loopback; the client says "hello" and waits for "hi" as soon as TLS lets it.
func connect(t testing.TB, server, client *tls.Config) outcome {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var out outcome
	served := make(chan struct{})
	go func() {
		defer close(served)
		raw, err := listener.Accept()
		if err != nil {
			out.server = err
			return
		}
		conn := tls.Server(raw, server)
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(20 * time.Second))
		if out.server = conn.Handshake(); out.server == nil {
			_, out.server = conn.Write([]byte("hi"))
		}
		out.state = conn.ConnectionState()
		// Read whatever comes, also after a failed handshake: a secret sent too early must show up here.
		text, _ := io.ReadAll(conn)
		out.received = string(text)
	}()
	raw, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn := tls.Client(raw, client)
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	if out.client = conn.Handshake(); out.client == nil {
		_, out.client = conn.Write([]byte("hello"))
		// A server judges a client's certificate only after the client's handshake has ended: its answer tells.
		if _, err := io.ReadFull(conn, make([]byte, 2)); out.client == nil {
			out.client = err
		}
		out.resumed = conn.ConnectionState().DidResume
	}
	conn.Close()
	<-served
	return out
}

func wantErr(t testing.TB, what string, got, want error) {
	t.Helper()
	if want == nil && got != nil || want != nil && !errors.Is(got, want) {
		t.Errorf("%s: error is %v, want %v", what, got, want)
	}
}
