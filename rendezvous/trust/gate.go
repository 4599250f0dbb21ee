package trust

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Config is what a Gate needs.
type Config struct {
	// Identity is this machine's own; it can be replaced later ([Gate.Renew]) while listeners are open.
	Identity *Identity
	// Members returns nil for a peer that now belongs to the cluster with this key ([KeyOf]), else why not. It is
	// called in every handshake and by every Gate.Peer, from many goroutines; it must answer from memory. A peer
	// that it refuses is revoked.
	Members func(p Peer, key Pin) error
	// Now is the clock for checking certificates; nil means time.Now.
	Now func() time.Time
}

// Gate makes the TLS configurations of one machine. All of them follow its identity and its membership list live.
type Gate struct {
	members func(Peer, Pin) error
	now     func() time.Time
	current atomic.Pointer[Identity]
}

// NewGate makes a Gate; Identity and Members are required.
func NewGate(c Config) (*Gate, error) {
	if c.Identity == nil || c.Members == nil {
		return nil, errors.New("make gate: Identity and Members are required")
	}
	g := &Gate{members: c.Members, now: c.Now}
	if g.now == nil {
		g.now = time.Now
	}
	g.current.Store(c.Identity)
	return g, nil
}

// Identity is the current one.
func (g *Gate) Identity() *Identity { return g.current.Load() }

// Renew uses a new certificate of the same peer from the next handshake on; open connections stay.
func (g *Gate) Renew(id *Identity) error {
	if old := g.Identity().Peer; id.NodeID != old.NodeID || id.Cluster != old.Cluster || id.Role != old.Role {
		return fmt.Errorf("renew identity of %s %s in cluster %s: the new one is of %s %s in cluster %s",
			old.Role, old.NodeID, old.Cluster, id.Role, id.NodeID, id.Cluster)
	}
	g.current.Store(id)
	return nil
}

// Proto is one ALPN protocol of a listener, and whom it admits before any handler runs.
type Proto struct {
	Name string
	// Open also admits clients, and newcomers without any certificate: handlers must ask Gate.Peer. A protocol that
	// is not Open, or not in the list, is for nodes only.
	Open bool
}

// Server is the configuration of a listener. A certificate that is shown must be valid, on any protocol; showing
// none is allowed only on an Open one.
func (g *Gate) Server(protos ...Proto) *tls.Config {
	open := map[string]bool{}
	var names []string
	for _, p := range protos {
		names = append(names, p.Name)
		open[p.Name] = p.Open
	}
	c := base(names, g.now)
	// Requested, not required: newcomers have none. VerifyConnection below does all the checking.
	c.ClientAuth = tls.RequestClientCert
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return g.Identity().certificate(), nil }
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		isOpen := open[cs.NegotiatedProtocol]
		if len(cs.PeerCertificates) == 0 && isOpen {
			return nil
		}
		peer, err := g.verify(cs, x509.ExtKeyUsageClientAuth)
		if err != nil {
			return fmt.Errorf("admit peer: %w", err)
		}
		if peer.Role != RoleNode && !isOpen {
			return fmt.Errorf("admit %s %s (%s) to protocol %q: %w", peer.Role, peer.NodeID, peer.Host,
				cs.NegotiatedProtocol, ErrRole)
		}
		return nil
	}
	return c
}

// Client is the configuration for dialling the node whose UUID is want; "" means any member node. The dialled
// address does not matter.
func (g *Gate) Client(want string, protos ...string) *tls.Config {
	c := base(protos, g.now)
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		id := g.Identity()
		// The server would only answer "bad certificate", which does not help.
		if now := g.now(); now.After(id.Cert.NotAfter) {
			return nil, fmt.Errorf("dial as %s: own %w: it expired %s, the clock says %s", id.NodeID, ErrExpired,
				id.Cert.NotAfter.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
		}
		return id.certificate(), nil
	}
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		peer, err := g.verify(cs, x509.ExtKeyUsageServerAuth)
		if err != nil {
			return fmt.Errorf("dial node %s: %w", want, err)
		}
		if peer.Role != RoleNode {
			return fmt.Errorf("dial node %s: %s is a %s: %w", want, peer.NodeID, peer.Role, ErrRole)
		}
		if want != "" && peer.NodeID != want {
			return fmt.Errorf("dial node %s: %w: %s (%s)", want, ErrWrongNode, peer.NodeID, peer.Host)
		}
		return nil
	}
	return c
}

// JoinClient is the configuration for dialling a cluster of which only the pin is known: to join it, or to renew a
// certificate that has expired. The server is checked during the handshake, before a byte of the caller is sent,
// and is shown no certificate. A nil now means time.Now.
func JoinClient(pin Pin, now func() time.Time, protos ...string) *tls.Config {
	if now == nil {
		now = time.Now
	}
	c := base(protos, now)
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		for _, ca := range cs.PeerCertificates[min(1, len(cs.PeerCertificates)):] {
			if PinOf(ca) != pin {
				continue
			}
			peer, err := verifyLeaf(cs.PeerCertificates[0], ca, x509.ExtKeyUsageServerAuth, now())
			if err != nil {
				return fmt.Errorf("check cluster by pin: %w", err)
			}
			if peer.Role != RoleNode {
				return fmt.Errorf("check cluster by pin: %s is a %s: %w", peer.NodeID, peer.Role, ErrRole)
			}
			return nil
		}
		return fmt.Errorf("check the cluster: %w: its CA is not the token's, whose fingerprint is %s: check the address "+
			"and the token", ErrForeign, pin)
	}
	return c
}

// Peer says who is at the other end of a connection whose handshake a Gate's configuration has checked. It asks
// Members again, because connections may outlive membership. They may outlive the certificate too: that is checked
// only in handshakes, so that a renewal breaks no stream. ErrNoCertificate means a newcomer, which only Join and
// renewal may serve.
func (g *Gate) Peer(cs tls.ConnectionState) (Peer, error) {
	if len(cs.PeerCertificates) == 0 {
		return Peer{}, ErrNoCertificate
	}
	peer, err := peerOf(cs.PeerCertificates[0])
	if err != nil {
		return Peer{}, err
	}
	return peer, g.member(peer, cs.PeerCertificates[0])
}

func (g *Gate) verify(cs tls.ConnectionState, usage x509.ExtKeyUsage) (Peer, error) {
	if len(cs.PeerCertificates) == 0 {
		return Peer{}, ErrNoCertificate
	}
	peer, err := verifyLeaf(cs.PeerCertificates[0], g.Identity().CA, usage, g.now())
	if err != nil {
		return Peer{}, err
	}
	return peer, g.member(peer, cs.PeerCertificates[0])
}

func (g *Gate) member(p Peer, cert *x509.Certificate) error {
	if err := g.members(p, KeyOf(cert)); err != nil {
		return fmt.Errorf("%s %s (%s): %w: %w", p.Role, p.NodeID, p.Host, ErrNotMember, err)
	}
	return nil
}

// base is what all configurations have in common. Every one of them sets VerifyConnection, which unlike
// VerifyPeerCertificate runs on resumed sessions too; and no session is ever resumed.
func base(protos []string, now func() time.Time) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		SessionTicketsDisabled: true,
		NextProtos:             protos,
		Time:                   now,
		// The library's own check compares host names against public CAs; ours are UUIDs under one private CA.
		InsecureSkipVerify: true, //nolint:gosec // replaced by VerifyConnection, see above
	}
}
