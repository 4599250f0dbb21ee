package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"
)

const (
	// CALifetime is how long a cluster's CA certificate is valid; no certificate outlives it.
	CALifetime = 10 * 365 * 24 * time.Hour
	// CertLifetime is how long a node's or client's certificate is valid. It limits only the use of a stolen key
	// that nobody has noticed: a noticed one is removed from the membership list, which takes effect at once.
	CertLifetime = 30 * 24 * time.Hour
	// clockSkew is how far a peer's clock may be behind ours without seeing our new certificate as not yet valid.
	clockSkew = time.Hour
	// maxCSR is the largest certificate request read, in bytes; ours are about 300.
	maxCSR = 8 << 10
)

// NewCSR makes a certificate request (PKCS #10, DER): the public key, and the proof that the sender has the private
// one. The name in it is only for display; Issue does not read it.
func NewCSR(key Key, nodeID string) ([]byte, error) {
	csr, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: nodeID}}, key.value())
	if err != nil {
		return nil, fmt.Errorf("make certificate request of %s: %w", nodeID, err)
	}
	return csr, nil
}

// CA signs the certificates of one cluster. Whoever has it can make members, so only voters and standbys have it.
type CA struct {
	Cert    *x509.Certificate
	Cluster string // UUID, also written into every certificate
	key     Key
}

// NewCA makes the CA of a new cluster. cluster must be a lower-case UUID.
func NewCA(cluster string, now time.Time) (*CA, error) {
	if !uuidForm().MatchString(cluster) {
		return nil, fmt.Errorf("make CA: cluster id %q is not a lower-case UUID", cluster)
	}
	key, err := NewKey()
	if err != nil {
		return nil, fmt.Errorf("make CA: %w", err)
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "sparkrun CA " + cluster},
		URIs:                  []*url.URL{caURI(cluster)},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(CALifetime),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true, // it signs members, never another CA
	}
	cert, err := sign(template, template, &key.value().PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make CA: %w", err)
	}
	return &CA{Cert: cert, Cluster: cluster, key: key}, nil
}

// Issue signs a certificate for the key that csr (DER) proves possession of; every name, date and right in it comes
// from the arguments. The caller has made sure that nodeID does not belong to another node: Issue cannot know.
func (ca *CA) Issue(csr []byte, nodeID, host string, role Role, now time.Time) (*x509.Certificate, error) {
	peer := Peer{NodeID: nodeID, Host: host, Role: role, Cluster: ca.Cluster}
	if err := peer.validate(); err != nil {
		return nil, fmt.Errorf("issue certificate: %w", err)
	}
	public, err := provenKey(csr)
	if err != nil {
		return nil, fmt.Errorf("issue certificate for %s: %w", nodeID, err)
	}
	if now.Before(ca.Cert.NotBefore) || now.After(ca.Cert.NotAfter) {
		return nil, fmt.Errorf("issue certificate for %s: the CA is valid from %s to %s: check the clock", nodeID,
			ca.Cert.NotBefore.Format(time.RFC3339), ca.Cert.NotAfter.Format(time.RFC3339))
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: host},
		URIs:                  []*url.URL{peer.uri()},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              slices.MinFunc([]time.Time{now.Add(CertLifetime), ca.Cert.NotAfter}, time.Time.Compare),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	if role == RoleNode {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	cert, err := sign(template, ca.Cert, public, ca.key)
	if err != nil {
		return nil, fmt.Errorf("issue certificate for %s: %w", nodeID, err)
	}
	return cert, nil
}

// RenewalPeer says for whom a renewal is: old (DER) is a certificate of this cluster and csr (DER) is for the same
// key. The old one may have expired, so that a cluster that was off for months can come back. The caller must check
// that the peer is still a member with this key before it calls Issue. A replayed request is harmless: its
// certificate is for the same key only.
func RenewalPeer(ca *x509.Certificate, old, csr []byte) (Peer, Pin, error) {
	cert, err := x509.ParseCertificate(old)
	if err != nil {
		return Peer{}, Pin{}, fmt.Errorf("renew certificate: %w: %w", ErrForeign, err)
	}
	peer, err := verifyLeaf(cert, ca, x509.ExtKeyUsageAny, cert.NotAfter)
	if err != nil {
		return Peer{}, Pin{}, fmt.Errorf("renew certificate: %w", err)
	}
	public, err := provenKey(csr)
	if err != nil {
		return Peer{}, Pin{}, fmt.Errorf("renew certificate of %s: %w", peer.NodeID, err)
	}
	if !public.Equal(cert.PublicKey) {
		return Peer{}, Pin{}, fmt.Errorf("renew certificate of %s: the request is for another key: %w", peer.NodeID,
			ErrForeign)
	}
	return peer, KeyOf(cert), nil
}

// provenKey reads only the key of a certificate request, whose signature proves that the sender has the private
// key.
func provenKey(csr []byte) (*ecdsa.PublicKey, error) {
	if len(csr) > maxCSR {
		return nil, fmt.Errorf("certificate request has %d bytes, limit %d", len(csr), maxCSR)
	}
	request, err := x509.ParseCertificateRequest(csr)
	if err != nil {
		return nil, fmt.Errorf("read certificate request: %w", err)
	}
	public, ok := request.PublicKey.(*ecdsa.PublicKey)
	if !ok || public.Curve != elliptic.P256() {
		return nil, errors.New("read certificate request: its key is not ECDSA P-256")
	}
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("check certificate request: %w", err)
	}
	return public, nil
}

// sign leaves the serial number to x509: 159 random bits.
func sign(template, parent *x509.Certificate, public *ecdsa.PublicKey, key Key) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key.value())
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// MarshalPEM is the CA with its private key, for [SaveCA] and for sending it to another voter over a Gate's
// connection.
func (ca *CA) MarshalPEM() ([]byte, error) { return marshalBundle(ca.key, ca.Cert) }

// ParseCA reads what MarshalPEM wrote and checks that key and certificate belong together.
func ParseCA(text []byte) (*CA, error) {
	key, certs, err := parseBundle(text, 1)
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	cluster, err := clusterOf(certs[0])
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	return &CA{Cert: certs[0], Cluster: cluster, key: key}, nil
}

// marshalBundle writes a key and its certificate, which is the first of certs, as one PEM text: one file is
// replaced by one rename, so a key and a certificate on disk always match.
func marshalBundle(key Key, certs ...*x509.Certificate) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key.value())
	if err != nil {
		return nil, fmt.Errorf("write key: %w", err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	for _, c := range certs {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return text, nil
}

// parseBundle reads one key and exactly n certificates, the first being the key's. Its errors quote no part of the
// text.
func parseBundle(text []byte, n int) (Key, []*x509.Certificate, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "PRIVATE KEY" {
		return Key{}, nil, errors.New("it does not begin with a PRIVATE KEY in PEM form")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return Key{}, nil, errors.New("its PRIVATE KEY is damaged")
	}
	private, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || private.Curve != elliptic.P256() {
		return Key{}, nil, errors.New("its PRIVATE KEY is not ECDSA P-256")
	}
	var certs []*x509.Certificate
	for block, rest = pem.Decode(rest); block != nil; block, rest = pem.Decode(rest) {
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil || block.Type != "CERTIFICATE" {
			return Key{}, nil, fmt.Errorf("its certificate %d is damaged", len(certs)+1)
		}
		certs = append(certs, cert)
	}
	if len(certs) != n || len(rest) != 0 {
		return Key{}, nil, fmt.Errorf("it has %d certificates and %d bytes of anything else, want %d and none",
			len(certs), len(rest), n)
	}
	if !private.PublicKey.Equal(certs[0].PublicKey) {
		return Key{}, nil, errors.New("its key and certificate do not belong together")
	}
	return Key{seal(private)}, certs, nil
}
