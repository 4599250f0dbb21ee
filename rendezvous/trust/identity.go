package trust

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Identity is what this machine shows to others: a certificate, its key, and the common CA. It is immutable.
type Identity struct {
	Peer // as the certificate says
	Cert *x509.Certificate
	CA   *x509.Certificate
	key  Key
}

// NewIdentity makes an identity from the key and the certificates (both DER) of a join or a renewal, and checks
// that they belong together. An expired certificate is accepted: it is needed to ask for the next one.
func NewIdentity(key Key, cert, ca []byte) (*Identity, error) {
	parsedCert, err := x509.ParseCertificate(cert)
	if err != nil {
		return nil, fmt.Errorf("make identity: read certificate: %w", err)
	}
	parsedCA, err := x509.ParseCertificate(ca)
	if err != nil {
		return nil, fmt.Errorf("make identity: read CA certificate: %w", err)
	}
	if key.value() == nil || !key.value().PublicKey.Equal(parsedCert.PublicKey) {
		return nil, errors.New("make identity: the certificate is for another key")
	}
	return newIdentity(key, parsedCert, parsedCA)
}

func newIdentity(key Key, cert, ca *x509.Certificate) (*Identity, error) {
	peer, err := verifyLeaf(cert, ca, x509.ExtKeyUsageAny, cert.NotAfter)
	if err != nil {
		return nil, fmt.Errorf("make identity: %w", err)
	}
	return &Identity{Peer: peer, Cert: cert, CA: ca, key: key}, nil
}

// CSR is a request for the next certificate of the same key, see [RenewalPeer].
func (id *Identity) CSR() ([]byte, error) { return NewCSR(id.key, id.NodeID) }

// Renewed is the same identity with its next certificate (DER).
func (id *Identity) Renewed(cert []byte) (*Identity, error) {
	return NewIdentity(id.key, cert, id.CA.Raw)
}

// RenewAt is when to ask for the next certificate: after two thirds of its time.
func (id *Identity) RenewAt() time.Time { return RenewAt(id.Cert) }

// RenewAt is the same for any certificate.
func RenewAt(cert *x509.Certificate) time.Time {
	return cert.NotBefore.Add(cert.NotAfter.Sub(cert.NotBefore) * 2 / 3)
}

// certificate includes the CA's, because a newcomer knows only its pin.
func (id *Identity) certificate() *tls.Certificate {
	return &tls.Certificate{Certificate: [][]byte{id.Cert.Raw, id.CA.Raw}, PrivateKey: id.key.value(), Leaf: id.Cert}
}

// LogValue names the identity instead of printing whole certificates.
func (id *Identity) LogValue() slog.Value {
	return slog.GroupValue(slog.String("node", id.NodeID), slog.String("host", id.Host),
		slog.String("role", string(id.Role)),
		slog.String("cluster", id.Cluster), slog.Time("until", id.Cert.NotAfter))
}
