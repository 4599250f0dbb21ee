package trust

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// GatewayCA signs what members' gateways show to programs that ask them for models. It has nothing to do with the
// cluster's own CA: whoever trusts it trusts it for servers of a few names and networks, and no member lets anybody in
// by it.
type GatewayCA struct {
	Cert *x509.Certificate
	key  Key
}

// GatewayReach is what a gateway's certificate may name; neither is empty.
type GatewayReach struct {
	Names []string // of DNS
	Nets  []netip.Prefix
}

// NewGatewayCA makes one for a cluster, with a new key.
func NewGatewayCA(cluster string, reach GatewayReach, now time.Time) (*GatewayCA, error) {
	key, err := NewKey()
	if err != nil {
		return nil, fmt.Errorf("make the gateway's CA: %w", err)
	}
	return newGatewayCA(key, cluster, reach, now)
}

// Extended is a CA of the same key: what it signs is good for those, too, who have the certificate of before, as far as
// that permits it.
func (ca *GatewayCA) Extended(cluster string, reach GatewayReach, now time.Time) (*GatewayCA, error) {
	return newGatewayCA(ca.key, cluster, reach, now)
}

func newGatewayCA(key Key, cluster string, reach GatewayReach, now time.Time) (*GatewayCA, error) {
	if len(reach.Names) == 0 || len(reach.Nets) == 0 { // none of a kind would permit all of it (RFC 5280, 4.2.1.10)
		return nil, errors.New("make the gateway's CA: it needs a name and a network at least, to be bound to them")
	}
	template := &x509.Certificate{
		Subject:                     pkix.Name{CommonName: "sparkrun gateway CA " + cluster},
		NotBefore:                   now.Add(-clockSkew),
		NotAfter:                    now.Add(CALifetime),
		KeyUsage:                    x509.KeyUsageCertSign,
		ExtKeyUsage:                 []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid:       true,
		IsCA:                        true,
		MaxPathLenZero:              true,
		PermittedDNSDomainsCritical: true,
		PermittedDNSDomains:         reach.Names,
	}
	for _, n := range reach.Nets {
		n = n.Masked()
		template.PermittedIPRanges = append(template.PermittedIPRanges,
			&net.IPNet{IP: n.Addr().AsSlice(), Mask: net.CIDRMask(n.Bits(), n.Addr().BitLen())})
	}
	cert, err := sign(template, template, &key.value().PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make the gateway's CA: %w", err)
	}
	return &GatewayCA{Cert: cert, key: key}, nil
}

// GatewayNames tells what the certificate of a gateway's CA permits.
func GatewayNames(ca *x509.Certificate) (reach GatewayReach) {
	reach.Names = ca.PermittedDNSDomains
	for _, n := range ca.PermittedIPRanges {
		at, _ := netip.AddrFromSlice(n.IP)
		bits, _ := n.Mask.Size()
		reach.Nets = append(reach.Nets, netip.PrefixFrom(at, bits))
	}
	return reach
}

// HasName tells whether a name is permitted.
func (r GatewayReach) HasName(name string) bool {
	return slices.ContainsFunc(r.Names, func(of string) bool { return strings.EqualFold(of, name) })
}

// HasAddr tells whether an address is permitted.
func (r GatewayReach) HasAddr(at netip.Addr) bool {
	return slices.ContainsFunc(r.Nets, func(n netip.Prefix) bool { return n.Contains(at) })
}

// Issue signs the certificate of a member's gateway for the key that csr (DER) proves possession of. What the CA's own
// certificate does not permit is refused: clients would refuse all of it.
func (ca *GatewayCA) Issue(csr []byte, names []string, addrs []netip.Addr, now time.Time) (*x509.Certificate, error) {
	public, err := provenKey(csr)
	if err != nil {
		return nil, fmt.Errorf("issue the gateway's certificate: %w", err)
	}
	if len(names)+len(addrs) == 0 {
		return nil, errors.New("issue the gateway's certificate: it would name nothing")
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "sparkrun gateway"},
		DNSNames:              names,
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              slices.MinFunc([]time.Time{now.Add(CertLifetime), ca.Cert.NotAfter}, time.Time.Compare),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	for _, at := range addrs {
		template.IPAddresses = append(template.IPAddresses, at.AsSlice())
	}
	cert, err := sign(template, ca.Cert, public, ca.key)
	if err == nil {
		err = CheckGateway(cert, ca.Cert, now)
	}
	if err != nil {
		return nil, fmt.Errorf("issue the gateway's certificate: %w", err)
	}
	return cert, nil
}

// CheckGateway tells whether clients that trust the CA take a certificate.
func CheckGateway(cert, ca *x509.Certificate, now time.Time) error {
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	_, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now})
	return err
}

// gatewayWords are what its sealed key is bound to. A job's secret has three words.
func gatewayWords() []string { return []string{"gateway", "ca"} }

// SealedGateway is the sealed key of a gateway's CA.
func SealedGateway(box []byte) Sealed { return Sealed{Box: box, Words: gatewayWords()} }

// Seal gives the CA with its key, for the record.
func (ca *GatewayCA) Seal(s Sealer) ([]byte, error) {
	text, err := marshalBundle(ca.key, ca.Cert)
	if err != nil {
		return nil, fmt.Errorf("seal the gateway's CA: %w", err)
	}
	return s.Seal(NewSecret(text), gatewayWords()...)
}

// OpenGatewayCA opens what Seal gave.
func OpenGatewayCA(s Sealer, box []byte) (*GatewayCA, error) {
	text, err := s.Open(box, gatewayWords()...)
	if err != nil {
		return nil, fmt.Errorf("open the gateway's CA: %w", err)
	}
	key, certs, err := parseBundle(text.Reveal(), 1)
	if err != nil {
		return nil, fmt.Errorf("open the gateway's CA: %w", err)
	}
	return &GatewayCA{Cert: certs[0], key: key}, nil
}

// ServerCertificate is what a server of this key shows.
func (k Key) ServerCertificate(cert *x509.Certificate) (*tls.Certificate, error) {
	if private := k.value(); private == nil || !private.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("the certificate is for another key")
	}
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: k.value(), Leaf: cert}, nil
}
