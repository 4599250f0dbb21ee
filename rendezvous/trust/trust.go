// Package trust decides who belongs to a cluster, how a newcomer proves that it was invited, and what TLS members
// speak.
//
// The rules, in the order in which an attacker meets them:
//   - Every connection is TLS 1.3 and both ends are checked by a [Gate]: signed by this cluster's own CA, in date, of
//     the right role, on the member list at this very moment, and, when dialling, exactly the node that was wanted.
//   - A newcomer has no certificate. It holds a [Token]: a pin of the CA's public key and a secret. It checks the pin
//     during the handshake ([JoinClient]), so the secret only ever reaches a node of the cluster that made it.
//   - The newcomer's key never leaves it; [CA.Issue] signs its public half and takes nothing else from its request.
//   - Revoking a node is removing it from the list: no CRL, no waiting for the certificate to run out.
//   - Connections come in through a [Listener], which bounds what unauthenticated peers can hold open.
//
// It must not: open a listener or dial; gossip or vote; keep the list of members or of tokens (both are passed in);
// decide what an admitted peer may do beyond its role.
package trust

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// Reasons for refusing a peer. Handshake errors wrap one of these; the other end sees only "bad certificate".
var (
	ErrNoCertificate = errors.New("peer sent no certificate")
	ErrForeign       = errors.New("certificate is not of this cluster")
	ErrExpired       = errors.New("certificate is out of date (or a clock is wrong)")
	ErrNotMember     = errors.New("not a member of this cluster")
	ErrWrongNode     = errors.New("another node answered")
	ErrRole          = errors.New("role does not allow this")
)

// Role is what a certificate or a token is for. It is part of the certificate, so that one kind cannot be used as
// another.
type Role string

const (
	RoleNode   Role = "node"   // runs ranks, gossips, votes; may act as TLS server and client
	RoleClient Role = "client" // a person's machine: may only dial, and only protocols that are Open
	// RoleWitness is a role of tokens only: a machine that joins with one votes and gets no ranks. Its certificate
	// has RoleNode.
	RoleWitness Role = "witness"
)

// Peer is what a certificate says about its holder. Only values that passed a check are ever handed out.
type Peer struct {
	NodeID  string // UUID, lower case; also of a client
	Host    string // host name when the certificate was issued (a client: user@host); for display, never for decisions
	Role    Role
	Cluster string // UUID, lower case
}

// UUIDs have only one spelling here, so that comparing strings compares identities.
var uuidForm = plain.Pattern(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// A host name is shown in logs and on terminals: no spaces, control characters or quotes; 64 is HOST_NAME_MAX.
var hostForm = plain.Pattern(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$`)

func (p Peer) validate() error {
	switch {
	case !uuidForm().MatchString(p.NodeID):
		return fmt.Errorf("node id %q is not a lower-case UUID", p.NodeID)
	case !uuidForm().MatchString(p.Cluster):
		return fmt.Errorf("cluster id %q is not a lower-case UUID", p.Cluster)
	case !hostForm().MatchString(p.Host):
		return fmt.Errorf("host name %q must be 1 to 64 of letters, digits and . _ @ -", p.Host)
	case p.Role != RoleNode && p.Role != RoleClient:
		return fmt.Errorf("role %q is not known", p.Role)
	}
	return nil
}

// uri is the only place of a certificate from which the identity is read: sparkrun://CLUSTER/ROLE/NODE.
func (p Peer) uri() *url.URL {
	return &url.URL{Scheme: "sparkrun", Host: p.Cluster, Path: "/" + string(p.Role) + "/" + p.NodeID}
}

// peerOf reads a certificate whose signature the caller has checked or is about to check.
func peerOf(cert *x509.Certificate) (Peer, error) {
	if len(cert.URIs) != 1 {
		return Peer{}, fmt.Errorf("%w: it names %d identities, want 1", ErrForeign, len(cert.URIs))
	}
	u := cert.URIs[0]
	role, id, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	p := Peer{NodeID: id, Host: cert.Subject.CommonName, Role: Role(role), Cluster: u.Host}
	if err := p.validate(); err != nil {
		return Peer{}, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	// Building it again and comparing excludes a port, a user, a query and odd escapes.
	if p.uri().String() != u.String() {
		return Peer{}, fmt.Errorf("%w: identity %q is not in canonical form", ErrForeign, u)
	}
	return p, nil
}

// verifyLeaf is the only place where a certificate is accepted: signed directly by ca (a chain through other
// certificates is never built), valid at the given time, made for usage, and naming ca's own cluster.
func verifyLeaf(leaf, ca *x509.Certificate, usage x509.ExtKeyUsage, at time.Time) (Peer, error) {
	cluster, err := clusterOf(ca)
	if err != nil {
		return Peer{}, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{usage}})
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		switch invalid.Reason {
		case x509.Expired:
			return Peer{}, fmt.Errorf("%w: %w", ErrExpired, err)
		case x509.IncompatibleUsage:
			return Peer{}, fmt.Errorf("%w: %w", ErrRole, err)
		}
	}
	if err != nil {
		return Peer{}, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	peer, err := peerOf(leaf)
	if err != nil {
		return Peer{}, err
	}
	if peer.Cluster != cluster {
		return Peer{}, fmt.Errorf("%w: it names cluster %s, want %s", ErrForeign, peer.Cluster, cluster)
	}
	return peer, nil
}

// clusterOf checks that cert is a cluster's CA certificate and returns the cluster's UUID. The self-signature matters:
// a pin covers the public key only, and the signature binds every other field to that key.
func clusterOf(cert *x509.Certificate) (string, error) {
	if err := cert.CheckSignatureFrom(cert); err != nil {
		return "", fmt.Errorf("%w: its CA certificate: %w", ErrForeign, err)
	}
	if len(cert.URIs) != 1 || !uuidForm().MatchString(cert.URIs[0].Host) ||
		cert.URIs[0].String() != caURI(cert.URIs[0].Host).String() {
		return "", fmt.Errorf("%w: %q is no sparkrun CA", ErrForeign, cert.Subject)
	}
	return cert.URIs[0].Host, nil
}

func caURI(cluster string) *url.URL {
	return &url.URL{Scheme: "sparkrun", Host: cluster, Path: "/ca"}
}

// Pin is the SHA-256 of a CA's public key (its SubjectPublicKeyInfo, DER), as in a token and as a person compares
// it.
type Pin [sha256.Size]byte

// PinOf is the pin of a CA certificate.
func PinOf(ca *x509.Certificate) Pin { return KeyOf(ca) }

// KeyOf is the same for any certificate's key: it identifies a member together with its id.
func KeyOf(cert *x509.Certificate) Pin { return sha256.Sum256(cert.RawSubjectPublicKeyInfo) }

// String is the pin in URL-safe base64, 43 characters.
func (p Pin) String() string { return base64.RawURLEncoding.EncodeToString(p[:]) }
