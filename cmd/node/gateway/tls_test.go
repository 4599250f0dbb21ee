package gateway

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// writeCert makes a certificate and its key of a name, in the files of a folder.
func writeCert(t *testing.T, dir, name string, at time.Time) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{"cert": {Type: "CERTIFICATE", Bytes: cert}, "key": {Type: "PRIVATE KEY", Bytes: der}} {
		path := filepath.Join(dir, file)
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
}

// A certificate that was renewed is taken within seconds; one that is half written leaves the old one in use; without
// any, an address other than loopback is not listened on, and why is told.
func TestCertificateIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		c := &certificate{cert: filepath.Join(dir, "cert"), key: filepath.Join(dir, "key")}
		if _, err := c.get(); err == nil || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("without files: %v", err)
		}
		name := func() string {
			t.Helper()
			pair, err := c.get()
			if err != nil {
				t.Fatal(err)
			}
			return pair.Leaf.Subject.CommonName
		}
		writeCert(t, dir, "first", time.Unix(1000, 0))
		if got := name(); got != "first" {
			t.Errorf("it is %s", got)
		}
		writeCert(t, dir, "second", time.Unix(2000, 0))
		time.Sleep(lookEach)
		if got := name(); got != "second" {
			t.Errorf("renewed it is %s", got)
		}
		if err := os.WriteFile(c.cert, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lookEach)
		if got := name(); got != "second" {
			t.Errorf("half written it is %s", got)
		}
	})
}

// With a certificate all addresses but loopback speak TLS.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	writeCert(t, dir, "spark1", time.Now())
	g, err := Open(Config{Host: "spark1", Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key"),
		Map: &rendezvous.Latest[View]{}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if g.tlsAt(netip.MustParseAddr("127.0.0.1")) != nil || g.tlsAt(netip.IPv6Loopback()) != nil {
		t.Error("loopback speaks TLS")
	}
	cfg := g.tlsAt(netip.MustParseAddr("10.0.0.1"))
	if cfg == nil {
		t.Fatal("the management address speaks plain HTTP")
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	srv := g.server(t.Context())
	go srv.Serve(l)
	defer srv.Close()
	c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true, ServerName: "spark1"}) // it is self-signed
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := c.ConnectionState().PeerCertificates[0].Subject.CommonName; got != "spark1" {
		t.Errorf("it shows the certificate of %s", got)
	}
}
