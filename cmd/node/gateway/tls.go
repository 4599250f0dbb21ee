package gateway

import (
	"crypto/tls"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"
)

// certificate is a member's, of two files that an administrator renews: tailscale's, Let's Encrypt's, a company's.
type certificate struct {
	cert, key string

	mu     sync.Mutex
	loaded *tls.Certificate
	of     [2]time.Time // the files' times when they were read
	looked time.Time
}

// lookEach is the least time between two looks at the files.
const lookEach = 10 * time.Second

// get gives the newest certificate that can be read, for one handshake.
func (c *certificate) get() (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.loaded != nil && time.Since(c.looked) < lookEach {
		return c.loaded, nil
	}
	c.looked = time.Now()
	var of [2]time.Time
	for i, path := range []string{c.cert, c.key} {
		if fi, err := os.Stat(path); err == nil {
			of[i] = fi.ModTime()
		}
	}
	if c.loaded != nil && of == c.of {
		return c.loaded, nil
	}
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	switch {
	case err == nil:
		c.loaded, c.of = &pair, of
	case c.loaded == nil: // else one file may have been renewed a moment before the other
		return nil, fmt.Errorf("read the gateway's certificate: %w", err)
	}
	return c.loaded, nil
}

// get gives the certificate of the gateway's CA, or why there is none; neither: it is being signed.
func (l leaf) get() (*tls.Certificate, error) {
	if l.cert != nil {
		return l.cert, nil
	}
	return nil, l.err
}

// shown gives what is shown on addresses other than loopback: the administrator's files, or the certificate of the
// gateway's CA; nil: they speak plain HTTP.
func (g *Gateway) shown() func() (*tls.Certificate, error) {
	switch {
	case g.certificate != nil:
		return g.certificate.get
	case g.index.Load().Gateway.CA != nil:
		return func() (*tls.Certificate, error) { return g.leaf.Load().get() }
	}
	return nil
}

// tlsAt is how an address speaks: by TLS where there is a certificate, but not on loopback.
func (g *Gateway) tlsAt(at netip.Addr) *tls.Config {
	get := g.shown()
	if get == nil || slices.Contains(loopback, at) {
		return nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return get()
	}}
}
