package trust

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var reach = GatewayReach{Names: []string{"spark1", "models.example.com"},
	Nets: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/24"), netip.MustParsePrefix("10.9.9.9/32")}}

func newGatewayCAOf(t *testing.T, now time.Time) *GatewayCA {
	t.Helper()
	ca, err := NewGatewayCA(clusterA, reach, now)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// The CA's own certificate says, critically, what it is for, and it is no CA of members.
func TestGatewayCA(t *testing.T) {
	ca := newGatewayCAOf(t, start)
	if d := cmp.Diff(reach, GatewayNames(ca.Cert), cmpopts.EquateComparable(netip.Prefix{})); d != "" {
		t.Error(d)
	}
	if !ca.Cert.PermittedDNSDomainsCritical || !ca.Cert.IsCA || !ca.Cert.MaxPathLenZero ||
		!cmp.Equal(ca.Cert.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}) {
		t.Errorf("%+v", ca.Cert)
	}
	if _, err := clusterOf(ca.Cert); !errors.Is(err, ErrForeign) {
		t.Errorf("members take it for their CA: %v", err)
	}
	for name, r := range map[string]GatewayReach{"no name": {Nets: reach.Nets}, "no network": {Names: reach.Names}} {
		if _, err := NewGatewayCA(clusterA, r, start); err == nil {
			t.Errorf("%s: the CA would be bound to none", name)
		}
	}
}

// It signs for the names that it is told, not for those of the request, and for none that its certificate does not
// permit.
func TestGatewayCAIssues(t *testing.T) {
	ca := newGatewayCAOf(t, start)
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ca.Issue(greedyCSR(t, key), []string{"spark1"}, []netip.Addr{netip.MustParseAddr("10.9.9.9")}, start)
	if err != nil {
		t.Fatal(err)
	}
	if len(cert.DNSNames) != 1 || len(cert.IPAddresses) != 1 || len(cert.URIs)+len(cert.EmailAddresses) > 0 || cert.IsCA {
		t.Errorf("it names %s, %s, %s, %s", cert.DNSNames, cert.IPAddresses, cert.URIs, cert.EmailAddresses)
	}
	if got := cert.NotAfter.Sub(start); got != CertLifetime {
		t.Errorf("it is good for %s", got)
	}
	if _, err := key.ServerCertificate(cert); err != nil {
		t.Error(err)
	}
	other, csr := newKeyAndCSR(t, node1)
	if _, err := other.ServerCertificate(cert); err == nil {
		t.Error("it is shown with another key")
	}
	for name, addr := range map[string]string{"spark9": "10.9.9.9", "spark1": "10.9.9.10"} {
		if _, err := ca.Issue(csr, []string{name}, []netip.Addr{netip.MustParseAddr(addr)}, start); err == nil {
			t.Errorf("it signs for %s and %s", name, addr)
		}
	}
	last := ca.Cert.NotAfter.Add(-time.Hour)
	if cert, err := ca.Issue(csr, []string{"spark1"}, nil, last); err != nil || cert.NotAfter.After(ca.Cert.NotAfter) {
		t.Errorf("near its end: %v", err)
	}
}

// A CA of the same key and more names is another certificate; what it signs is taken by those who have the first one, as
// far as that permits it.
func TestGatewayCAExtended(t *testing.T) {
	ca := newGatewayCAOf(t, start)
	more := GatewayReach{Names: append([]string{"spark2"}, reach.Names...), Nets: reach.Nets}
	wider, err := ca.Extended(clusterA, more, start)
	if err != nil {
		t.Fatal(err)
	}
	_, csr := newKeyAndCSR(t, node1)
	for name, want := range map[string]bool{"spark1": true, "spark2": false} {
		cert, err := wider.Issue(csr, []string{name}, nil, start)
		if err != nil {
			t.Fatal(err)
		}
		if err := CheckGateway(cert, ca.Cert, start); (err == nil) != want {
			t.Errorf("%s by the first one: %v", name, err)
		}
	}
}

// Its key is in the record only sealed: it opens with the members' keys, and as nothing else.
func TestGatewayCASealed(t *testing.T) {
	ca := newGatewayCAOf(t, start)
	old, now := NewGossipKey(0), NewGossipKey(1)
	sealer, err := NewSealer(Keyring{old}, nil)
	if err != nil {
		t.Fatal(err)
	}
	box, err := ca.Seal(sealer)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(box, []byte("PRIVATE")) {
		t.Error("the key is in the clear")
	}
	again, err := OpenGatewayCA(sealer, box)
	if err != nil || !again.Cert.Equal(ca.Cert) {
		t.Fatalf("it opens to %v, %v", again, err)
	}
	if _, err := sealer.Open(box, SecretWords("gateway", "ca", "")...); !errors.Is(err, ErrSealed) {
		t.Errorf("it opens as a job's secret: %v", err)
	}
	rotated, err := NewSealer(Keyring{now}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenGatewayCA(rotated, box); !errors.Is(err, ErrSealed) {
		t.Errorf("with another key: %v", err)
	}
	// the key of before is kept while it is needed, though a later one was retired since
	kept, all, err := Retired{NewGossipKey(0), old}.Keep(Keyring{now}, []Sealed{SealedGateway(box)})
	if err != nil || !all || !Keyring(kept).has(old) {
		t.Errorf("kept %d keys, all %t: %v", len(kept), all, err)
	}
}

func writePEM(t *testing.T, path string, blocks ...*pem.Block) string {
	t.Helper()
	var text []byte
	for _, b := range blocks {
		text = append(text, pem.EncodeToMemory(b)...)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Whoever has stolen the CA's key can play a server of the cluster's, and no other: clients that trust the CA refuse
// what it signs beyond its constraints.
func TestClientsHoldTheGatewayCAToItsNames(t *testing.T) {
	now := time.Now()
	ca := newGatewayCAOf(t, now)
	dir := t.TempDir()
	caFile := writePEM(t, filepath.Join(dir, "ca.pem"), &pem.Block{Type: "CERTIFICATE", Bytes: ca.Cert.Raw})
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		names []string
		addr  string
		host  string // that clients connect to
		want  bool
	}{
		"a member's name":                {names: []string{"spark1"}, host: "spark1", want: true},
		"a given name":                   {names: []string{"models.example.com"}, host: "models.example.com", want: true},
		"an address":                     {addr: "127.0.0.1", host: "127.0.0.1", want: true},
		"another's name":                 {names: []string{"bank.example.com"}, host: "bank.example.com"},
		"another's beside a member's":    {names: []string{"spark1", "bank.example.com"}, host: "spark1"},
		"another's address":              {addr: "127.0.7.7", host: "127.0.7.7"},
		"an address of the other family": {addr: "::1", host: "::1"},
		"no name":                        {host: "spark1"},
	} {
		t.Run(name, func(t *testing.T) {
			template := &x509.Certificate{DNSNames: tt.names, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
				KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
			if tt.addr != "" {
				template.IPAddresses = []net.IP{net.ParseIP(tt.addr)}
			}
			leaf, err := sign(template, ca.Cert, &key.value().PublicKey, ca.key)
			if err != nil {
				t.Fatal(err)
			}
			shown, err := key.ServerCertificate(leaf)
			if err != nil {
				t.Fatal(err)
			}
			l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{*shown}})
			if err != nil {
				t.Fatal(err)
			}
			srv := &http.Server{Handler: http.NotFoundHandler(), ErrorLog: log.New(io.Discard, "", 0)}
			go srv.Serve(l)
			defer srv.Close()

			roots := x509.NewCertPool()
			roots.AddCert(ca.Cert)
			c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{RootCAs: roots, ServerName: tt.host})
			if (err == nil) != tt.want {
				t.Errorf("Go: %v", err)
			}
			if err == nil {
				c.Close()
			}
			leafFile := writePEM(t, filepath.Join(dir, "leaf.pem"), &pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw})
			kind := "-verify_hostname"
			if net.ParseIP(tt.host) != nil {
				kind = "-verify_ip"
			}
			ran(t, tt.want, "openssl", "verify", "-CAfile", caFile, "-purpose", "sslserver", kind, tt.host, leafFile)
			_, port, _ := net.SplitHostPort(l.Addr().String())
			ran(t, tt.want, "curl", "-sS", "--noproxy", "*", "--cacert", caFile, "--connect-to", "::127.0.0.1:"+port,
				"https://"+net.JoinHostPort(tt.host, port)+"/")
		})
	}
}

// ran runs a client, where the machine has it.
func ran(t *testing.T, want bool, argv ...string) {
	t.Helper()
	path, err := exec.LookPath(argv[0])
	if err != nil {
		t.Log(err)
		return
	}
	out, err := exec.CommandContext(t.Context(), path, argv[1:]...).CombinedOutput()
	if (err == nil) != want {
		t.Errorf("%s: %v: %s", strings.Join(argv, " "), err, out)
	}
}
