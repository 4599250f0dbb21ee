package trust

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// greedyCSR asks for everything a request can ask for.
func greedyCSR(t testing.TB, key Key) []byte {
	t.Helper()
	isCA, err := asn1.Marshal(struct{ IsCA bool }{true})
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:         pkix.Name{CommonName: "root", Organization: []string{"admins"}},
		DNSNames:        []string{"spark2", "*"},
		EmailAddresses:  []string{"root@spark2"},
		IPAddresses:     []net.IP{net.IPv4(10, 0, 0, 2)},
		URIs:            []*url.URL{Peer{NodeID: node2, Role: RoleNode, Cluster: clusterA}.uri()},
		ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: isCA}},
	}, key.value())
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

// checkIssued fails unless cert says exactly what Issue was told, whatever the request said.
func checkIssued(t testing.TB, ca *CA, cert *x509.Certificate, want Peer, now time.Time) {
	t.Helper()
	got, err := verifyLeaf(cert, ca.Cert, x509.ExtKeyUsageClientAuth, now)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("peer (-want +got):\n%s", diff)
	}
	usages := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if want.Role == RoleNode {
		usages = append(usages, x509.ExtKeyUsageServerAuth)
	}
	if diff := cmp.Diff(usages, cert.ExtKeyUsage); diff != "" {
		t.Errorf("usages (-want +got):\n%s", diff)
	}
	if cert.IsCA || cert.KeyUsage != x509.KeyUsageDigitalSignature ||
		len(cert.DNSNames)+len(cert.EmailAddresses)+len(cert.IPAddresses) != 0 || len(cert.URIs) != 1 {
		t.Errorf("certificate grants more than asked: CA %v, usage %b, names %q %q %v %v", cert.IsCA, cert.KeyUsage,
			cert.DNSNames, cert.EmailAddresses, cert.IPAddresses, cert.URIs)
	}
	if subject := cert.Subject.String(); subject != "CN="+want.Host {
		t.Errorf("subject is %q, want only the host %q", subject, want.Host)
	}
	if !cert.NotBefore.Equal(now.Add(-time.Hour)) || !cert.NotAfter.Equal(now.Add(30*24*time.Hour)) {
		t.Errorf("valid from %s to %s, want 1 h before and 30 days after %s", cert.NotBefore, cert.NotAfter, now)
	}
}

func TestIssueTakesOnlyTheKeyFromARequest(t *testing.T) {
	ca := newCA(t, clusterA)
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []Peer{
		{NodeID: node1, Host: "spark1", Role: RoleNode, Cluster: clusterA},
		{NodeID: laptop, Host: "ann@laptop.lan", Role: RoleClient, Cluster: clusterA},
	} {
		cert, err := ca.Issue(greedyCSR(t, key), want.NodeID, want.Host, want.Role, start)
		if err != nil {
			t.Fatal(err)
		}
		checkIssued(t, ca, cert, want, start)
		if !key.value().PublicKey.Equal(cert.PublicKey) {
			t.Error("certificate is for another key")
		}
	}
}

func TestIssueRefuses(t *testing.T) {
	ca := newCA(t, clusterA)
	_, good := newKeyAndCSR(t, node1)
	request := func(key any) []byte {
		csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
		if err != nil {
			t.Fatal(err)
		}
		return csr
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	// Somebody else's public key under one's own signature: a certificate for a key one does not have.
	other, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificateRequest(good)
	if err != nil {
		t.Fatal(err)
	}
	otherSPKI, err := x509.MarshalPKIXPublicKey(&other.value().PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	unproven := bytes.Replace(good, parsed.RawSubjectPublicKeyInfo, otherSPKI, 1)

	for _, tc := range []struct {
		name, nodeID, host string
		role               Role
		csr                []byte
		at                 time.Time
		says               string
	}{
		{"unproven key", node1, "spark1", RoleNode, unproven, start, "check certificate request"},
		{"RSA key", node1, "spark1", RoleNode, request(rsaKey), start, "P-256"},
		{"P-384 key", node1, "spark1", RoleNode, request(p384), start, "P-256"},
		{"Ed25519 key", node1, "spark1", RoleNode, request(edKey), start, "P-256"},
		{"no request", node1, "spark1", RoleNode, nil, start, "read certificate request"},
		{"bytes after it", node1, "spark1", RoleNode, append(bytes.Clone(good), 0), start, "read certificate request"},
		{"huge", node1, "spark1", RoleNode, make([]byte, maxCSR+1), start, "limit"},
		{"node id in upper case", strings.ToUpper(node1), "spark1", RoleNode, good, start, "lower-case UUID"},
		{"node id with a path", node1 + "/../x", "spark1", RoleNode, good, start, "lower-case UUID"},
		{"host with a line break", node1, "spark1\nCN=root", RoleNode, good, start, "host name"},
		{"no host", node1, "", RoleNode, good, start, "host name"},
		{"unknown role", node1, "spark1", "admin", good, start, "role"},
		{"clock before the CA", node1, "spark1", RoleNode, good, start.AddDate(-1, 0, 0), "check the clock"},
		{"CA has ended", node1, "spark1", RoleNode, good, start.AddDate(11, 0, 0), "check the clock"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cert, err := ca.Issue(tc.csr, tc.nodeID, tc.host, tc.role, tc.at)
			if err == nil || cert != nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, error %v; want an error that says %q", cert, err, tc.says)
			}
		})
	}
}

func TestCACertificate(t *testing.T) {
	ca := newCA(t, clusterA)
	if !strings.Contains(ca.Cert.Subject.CommonName, clusterA) || !ca.Cert.MaxPathLenZero ||
		ca.Cert.NotAfter.Sub(start) != CALifetime {
		t.Errorf("CA is %q, path length %d, until %s", ca.Cert.Subject, ca.Cert.MaxPathLen, ca.Cert.NotAfter)
	}
	if _, err := NewCA("my cluster", start); err == nil {
		t.Error("a cluster id that is no UUID was taken")
	}
	// Nothing outlives its CA.
	_, csr := newKeyAndCSR(t, node1)
	late, err := ca.Issue(csr, node1, "spark1", RoleNode, start.Add(CALifetime-time.Hour))
	if err != nil || !late.NotAfter.Equal(ca.Cert.NotAfter) {
		t.Errorf("certificate of the last hour: %v, until %s; want until %s", err, late.NotAfter, ca.Cert.NotAfter)
	}
}

func TestCAPEMRoundTrip(t *testing.T) {
	ca, other := newCA(t, clusterA), newCA(t, clusterA)
	text, err := ca.MarshalPEM()
	if err != nil {
		t.Fatal(err)
	}
	back, err := ParseCA(text)
	if err != nil {
		t.Fatal(err)
	}
	if back.Cluster != clusterA || PinOf(back.Cert) != PinOf(ca.Cert) {
		t.Errorf("CA came back as %s of %s", PinOf(back.Cert), back.Cluster)
	}
	if peer := newMember(t, back, node1, "spark1", RoleNode).Peer; peer.Cluster != clusterA {
		t.Errorf("member is %+v", peer)
	}

	member := newMember(t, ca, node1, "spark1", RoleNode)
	mixed, err := marshalBundle(ca.key, other.Cert)
	if err != nil {
		t.Fatal(err)
	}
	notCA, err := marshalBundle(member.key, member.Cert)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"empty": nil, "cut": text[:len(text)/2], "key and certificate of two CAs": mixed, "a node's": notCA,
		"text after it":     append(bytes.Clone(text), "x"...),
		"certificate twice": append(bytes.Clone(text), text[bytes.Index(text, []byte("-----BEGIN CERT")):]...),
	} {
		if _, err := ParseCA(text); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestRenewalPeer(t *testing.T) {
	ca, twin := newCA(t, clusterA), newCA(t, clusterA)
	member := newMember(t, ca, node1, "spark1", RoleNode)
	csr, err := member.CSR()
	if err != nil {
		t.Fatal(err)
	}
	_, otherCSR := newKeyAndCSR(t, node1)
	impostor := newMember(t, twin, node1, "spark1", RoleNode)
	impostorCSR, err := impostor.CSR()
	if err != nil {
		t.Fatal(err)
	}
	// No clock is asked: a certificate of months ago names its peer, and Issue makes the next.
	peer, pin, err := RenewalPeer(ca.Cert, member.Cert.Raw, csr)
	if err != nil || peer != member.Peer || pin != KeyOf(member.Cert) {
		t.Fatalf("peer is %+v, %v; want %+v", peer, err, member.Peer)
	}
	later := start.AddDate(0, 3, 0)
	cert, err := ca.Issue(csr, peer.NodeID, peer.Host, peer.Role, later)
	if err != nil {
		t.Fatal(err)
	}
	checkIssued(t, ca, cert, member.Peer, later)
	if want := start.Add(-time.Hour + (30*24+1)*time.Hour*2/3); !member.RenewAt().Equal(want) {
		t.Errorf("renewal is due at %s, want %s", member.RenewAt(), want)
	}

	for name, tc := range map[string]struct{ old, csr []byte }{
		"request by another key":      {member.Cert.Raw, otherCSR},
		"certificate of a twin":       {impostor.Cert.Raw, impostorCSR},
		"CA certificate as one's own": {ca.Cert.Raw, csr},
		"no certificate":              {nil, csr},
		"no request":                  {member.Cert.Raw, nil},
		"certificate with a bit wrong": {append(bytes.Clone(member.Cert.Raw[:len(member.Cert.Raw)-1]),
			member.Cert.Raw[len(member.Cert.Raw)-1]^1), csr},
	} {
		if _, _, err := RenewalPeer(ca.Cert, tc.old, tc.csr); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestNewIdentityRefusesWhatDoesNotBelongTogether(t *testing.T) {
	ca, twin := newCA(t, clusterA), newCA(t, clusterA)
	member, other := newMember(t, ca, node1, "spark1", RoleNode), newMember(t, ca, node2, "spark2", RoleNode)
	confused := *ca // the true key writes the name of another cluster
	confused.Cluster = clusterB
	csr, err := member.CSR()
	if err != nil {
		t.Fatal(err)
	}
	misnamed, err := confused.Issue(csr, node1, "spark1", RoleNode, start)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		key      Key
		cert, ca []byte
	}{
		"cluster of another name": {member.key, misnamed.Raw, ca.Cert.Raw},
		"another's key":           {other.key, member.Cert.Raw, ca.Cert.Raw},
		"no key":                  {Key{}, member.Cert.Raw, ca.Cert.Raw},
		"another CA":              {member.key, member.Cert.Raw, twin.Cert.Raw},
		"leaf as CA":              {member.key, member.Cert.Raw, member.Cert.Raw},
		"CA as leaf":              {ca.key, ca.Cert.Raw, ca.Cert.Raw},
		"damaged":                 {member.key, member.Cert.Raw[1:], ca.Cert.Raw},
	} {
		if id, err := NewIdentity(tc.key, tc.cert, tc.ca); err == nil {
			t.Errorf("%s: made the identity %+v", name, id.Peer)
		}
	}
}

// Identities that our CA would never write are refused even under its signature.
func TestPeerOfWantsTheCanonicalForm(t *testing.T) {
	good := "sparkrun://" + clusterA + "/node/" + node1
	for text, ok := range map[string]bool{
		good:                             true,
		good + "/":                       false,
		good + "?role=node":              false,
		good + "#x":                      false,
		"https" + good[len("sparkrun"):]: false,
		"sparkrun://root@" + good[len("sparkrun://"):]:            false,
		"sparkrun://" + clusterA + ":7940/node/" + node1:          false,
		"sparkrun://" + clusterA + "//node/" + node1:              false,
		"sparkrun://" + clusterA + "/admin/" + node1:              false,
		"sparkrun://" + clusterA + "/node/" + node1 + "%0a":       false,
		"sparkrun://" + clusterA + "/%6eode/" + node1:             false,
		"sparkrun://" + strings.ToUpper(node1) + "/node/" + node1: false,
		"sparkrun://" + clusterA + "/ca":                          false,
	} {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		_, err = peerOf(&x509.Certificate{URIs: []*url.URL{u}, Subject: pkix.Name{CommonName: "spark1"}})
		if (err == nil) != ok {
			t.Errorf("%s: error %v", text, err)
		}
	}
	u, _ := url.Parse(good)
	_, err := peerOf(&x509.Certificate{URIs: []*url.URL{u, u}, Subject: pkix.Name{CommonName: "spark1"}})
	wantErr(t, "two identities", err, ErrForeign)
}

func FuzzIssue(f *testing.F) {
	ca := newCA(f, clusterA)
	key, csr := newKeyAndCSR(f, node1)
	f.Add(csr)
	f.Add(greedyCSR(f, key))
	f.Add([]byte{0x30, 0x80})
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, csr []byte) {
		cert, err := ca.Issue(csr, node1, "spark1", RoleNode, start)
		if err != nil {
			return
		}
		checkIssued(t, ca, cert, Peer{NodeID: node1, Host: "spark1", Role: RoleNode, Cluster: clusterA}, start)
	})
}
