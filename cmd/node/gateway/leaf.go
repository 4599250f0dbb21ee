package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// leaf is the certificate of the gateway's CA that this member has. Its key never leaves the process.
type leaf struct {
	cert *tls.Certificate // nil: it has none now
	err  error            // why the leader gave none when it was asked last
}

// leafOf is what a leaf was asked for; another one is asked for when it changes.
type leafOf struct {
	ca       string // its certificate, DER
	at       netip.Addr
	together netip.Prefix // the virtual IP
}

const (
	signWithin = 10 * time.Second
	// clockEach is how often the clock is looked at: it may be set, or the machine sleep, while a timer runs.
	clockEach = time.Hour
	// renewEach is the pause between attempts to renew one that is good for ten days yet.
	renewEach = 10 * time.Minute
)

// keepLeaf has the leader sign a certificate for this member's gateway while there is a CA, anew when two thirds of its
// time are over, and when one of its names has changed.
func (g *Gateway) keepLeaf(ctx context.Context) error {
	var has leafOf
	pause := firstPause
	for {
		x, changed := g.index.Watch()
		want := leafOf{together: x.Gateway.VirtualIP}
		var moved <-chan struct{}
		if g.cfg.Management != nil {
			want.at, moved = g.cfg.Management()
		}
		wait, now := time.Duration(0), g.leaf.Load()
		switch ca := x.Gateway.CA; {
		case ca == nil || g.certificate != nil || g.cfg.Port == 0 || !x.admits() && !g.cfg.Shared:
			if now != (leaf{}) {
				g.leaf.Store(leaf{})
			}
		default:
			want.ca = string(ca.Cert)
			if now.cert != nil && now.err == nil && want == has {
				if wait = min(time.Until(trust.RenewAt(now.cert.Leaf)), clockEach); wait > 0 {
					break
				}
			}
			next, err := g.askLeaf(ctx, ca.Cert, want)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err == nil {
				has, pause = want, firstPause
				g.leaf.Store(leaf{cert: next})
				continue
			}
			if kept := g.failedLeaf(now, ca.Cert, err); kept && want == has {
				wait = renewEach
			} else {
				wait, pause = pause, min(2*pause, longestPause)
			}
		}
		var again <-chan time.Time
		if wait > 0 {
			again = time.After(wait)
		}
		select {
		case <-changed:
		case <-moved:
		case <-again:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Certificate gives what is shown on addresses other than loopback, nil where there is none, and tells when that may have
// changed.
func (g *Gateway) Certificate() (get func() (*tls.Certificate, error), changed <-chan struct{}) {
	_, changed = g.leaf.Watch()
	return g.shown(), changed
}

// failedLeaf keeps what clients take yet, if they do, and says once why there is no other.
func (g *Gateway) failedLeaf(now leaf, ca []byte, err error) (kept bool) {
	next := leaf{err: err}
	if root, bad := x509.ParseCertificate(ca); bad == nil && now.cert != nil &&
		trust.CheckGateway(now.cert.Leaf, root, time.Now()) == nil {
		next.cert = now.cert
	}
	if now.err == nil || now.err.Error() != err.Error() {
		g.cfg.Logger.Warn("gateway gets no certificate", "error", err)
	}
	g.leaf.Store(next)
	return next.cert != nil
}

// askLeaf makes a key, and has the leader sign for it.
func (g *Gateway) askLeaf(ctx context.Context, ca []byte, want leafOf) (*tls.Certificate, error) {
	if g.cfg.Sign == nil {
		return nil, errors.New("ask for the gateway's certificate: nobody signs it")
	}
	key, err := trust.NewKey()
	if err != nil {
		return nil, err
	}
	r := wire.SignGatewayRequest{}
	if want.at.IsValid() {
		r.Addrs = append(r.Addrs, want.at)
	}
	if r.CSR, err = trust.NewCSR(key, g.cfg.Host); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, signWithin)
	defer cancel()
	res, err := g.cfg.Sign(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("ask for the gateway's certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(res.Cert)
	if err != nil {
		return nil, fmt.Errorf("read the gateway's certificate: %w", err)
	}
	root, err := x509.ParseCertificate(ca)
	if err == nil {
		err = trust.CheckGateway(cert, root, time.Now())
	}
	if err != nil { // signed by a CA that this member does not know yet, or knows no more
		return nil, fmt.Errorf("check the gateway's certificate: %w", err)
	}
	return key.ServerCertificate(cert)
}
