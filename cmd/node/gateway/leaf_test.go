package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// signer is a leader that signs, or does not.
type signer struct {
	mu    sync.Mutex
	ca    *trust.GatewayCA
	err   error
	asked int
}

func (s *signer) sign(_ context.Context, r wire.SignGatewayRequest) (wire.SignGatewayResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.err != nil {
		return wire.SignGatewayResponse{}, s.err
	}
	cert, err := s.ca.Issue(r.CSR, []string{"spark1"}, r.Addrs, time.Now())
	if err != nil {
		return wire.SignGatewayResponse{}, err
	}
	return wire.SignGatewayResponse{Cert: cert.Raw}, nil
}

func (s *signer) says(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// took gives how often it was asked since this was last called.
func (s *signer) took() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.asked
	s.asked = 0
	return n
}

// renew gives it a new CA.
func (s *signer) renew(t *testing.T) *rendezvous.GatewayCA {
	t.Helper()
	ca, err := trust.NewGatewayCA("c", trust.GatewayReach{Names: []string{"spark1"},
		Nets: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ca = ca
	return &rendezvous.GatewayCA{Cert: ca.Cert.Raw}
}

func openTo(ca *rendezvous.GatewayCA) View {
	v := viewOf()
	v.Gateway.Open, v.Gateway.CA = true, ca
	return v
}

// A certificate is asked for when there is a CA, an address that changes, or two thirds of its time are over, and not
// before; what a leader does not renew is shown as long as clients take it.
func TestLeafIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &signer{}
		view, at := &rendezvous.Latest[View]{}, &rendezvous.Latest[netip.Addr]{}
		at.Store(netip.MustParseAddr("127.0.0.2"))
		view.Store(viewOf())
		g, err := Open(Config{Host: "spark1", Port: 1, Management: at.Watch, Map: view, Sign: s.sign,
			Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var parts sync.WaitGroup
		defer parts.Wait()
		defer cancel()
		parts.Go(func() { g.follow(ctx) })
		parts.Go(func() { g.keepLeaf(ctx) })
		began := time.Now()
		want := func(what string, asked int, has string) {
			t.Helper()
			synctest.Wait()
			now, got := g.leaf.Load(), "none"
			if now.cert != nil {
				got = fmt.Sprintf("%s from %s", now.cert.Leaf.IPAddresses[0],
					now.cert.Leaf.NotBefore.Add(time.Hour).Sub(began.Truncate(time.Second)))
			}
			if now.err != nil {
				got += ", " + now.err.Error()
			}
			if n := s.took(); n != asked || got != has {
				t.Errorf("%s: asked %d times, has %s; want %d, %s", what, n, got, asked, has)
			}
		}
		want("without a CA", 0, "none")
		closed := viewOf()
		closed.Gateway.CA = s.renew(t)
		view.Store(closed)
		want("nobody else comes in", 0, "none")
		view.Store(openTo(closed.Gateway.CA))
		want("with a CA", 1, "127.0.0.2 from 0s")
		view.Store(openTo(closed.Gateway.CA))
		want("another map", 0, "127.0.0.2 from 0s")
		time.Sleep(19 * 24 * time.Hour)
		want("after 19 days", 0, "127.0.0.2 from 0s")
		time.Sleep(25 * time.Hour)
		want("after 20 days", 1, "127.0.0.2 from 479h40m0s")
		at.Store(netip.MustParseAddr("127.0.0.3"))
		want("moved", 1, "127.0.0.3 from 481h0m0s")

		s.says(wire.ErrNoLeader)
		time.Sleep(20*24*time.Hour + time.Hour)
		synctest.Wait()
		s.took() // it has asked since it was due
		want("without a leader", 0, "127.0.0.3 from 481h0m0s, ask for the gateway's certificate: no leader")
		time.Sleep(renewEach)
		want("10 minutes later", 1, "127.0.0.3 from 481h0m0s, ask for the gateway's certificate: no leader")
		time.Sleep(10 * 24 * time.Hour)
		synctest.Wait()
		s.took()
		want("past its end", 0, "none, ask for the gateway's certificate: no leader")
		s.says(nil)
		time.Sleep(longestPause)
		synctest.Wait()
		if n := s.took(); n != 1 || g.leaf.Load().cert == nil || g.leaf.Load().err != nil {
			t.Errorf("a new leader: asked %d times, %+v", n, g.leaf.Load())
		}
		s.says(errors.New("no"))
		view.Store(openTo(s.renew(t)))
		synctest.Wait()
		if g.leaf.Load().cert != nil {
			t.Error("what another CA has signed is shown")
		}
		view.Store(viewOf())
		s.took()
		want("without a CA again", 0, "none")
	})
}

// With a CA all addresses but loopback speak TLS with what it has signed; without, plain HTTP; and never plain HTTP
// while there is a CA but no certificate.
func TestListensByTheCA(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).AddrPort().Port()
	free.Close()
	s := &signer{}
	view, at := &rendezvous.Latest[View]{}, &rendezvous.Latest[netip.Addr]{}
	at.Store(netip.MustParseAddr("127.0.0.2")) // stands in for one of another interface
	view.Store(openTo(nil))
	g, err := Open(Config{Host: "spark1", Port: port, Management: at.Watch, Map: view, Sign: s.sign,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.Run(ctx)
	}()
	defer func() {
		cancel()
		<-done
		g.Close()
	}()
	roots := x509.NewCertPool()
	get := func(url string) string {
		c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots}}}
		res, err := c.Get(fmt.Sprintf(url, port))
		if err != nil {
			return err.Error()
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		return res.Status + " " + string(text)
	}
	want := func(what, url, word string) {
		t.Helper()
		deadline := time.Now().Add(10 * time.Second)
		for got := ""; !strings.Contains(got, word); time.Sleep(time.Millisecond) {
			if got = get(url); time.Now().After(deadline) {
				t.Fatalf("%s: %s: %s; it listens on %v", what, url, got, g.Listening())
			}
		}
	}
	const plain, secured = "http://127.0.0.2:%d/health", "https://127.0.0.2:%d/health"
	want("without a CA", plain, "200")
	s.says(errors.New("no leader"))
	ca := s.renew(t)
	view.Store(openTo(ca))
	want("not signed yet", plain, "refused")
	want("not signed yet", "http://127.0.0.1:%d/health", "200")
	for g.Listening().Err == nil {
		time.Sleep(time.Millisecond)
	}
	wantHas(t, "not signed yet", g.Listening().Err.Error(), "listen on 127.0.0.2", "no leader")
	s.says(nil)
	want("signed", secured, "unknown authority")
	roots.AddCert(s.ca.Cert)
	want("signed", secured, "200")
	want("signed", plain, "400") // net/http's: Client sent an HTTP request to an HTTPS server
	want("signed", "http://127.0.0.1:%d/health", "200")
	view.Store(openTo(s.renew(t)))
	want("another CA", secured, "unknown authority")
	roots.AddCert(s.ca.Cert)
	want("another CA", secured, "200")
	view.Store(openTo(nil))
	want("no CA any more", plain, "200")
}
