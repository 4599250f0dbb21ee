package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// TestListening: it follows the settings, and who was let in by settings that are no more is not served.
func TestListening(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).AddrPort().Port()
	free.Close()
	mgmt := netip.MustParseAddr("127.0.0.2") // stands in for one of another interface
	var moved rendezvous.Latest[netip.Addr]
	moved.Store(mgmt)
	view := &rendezvous.Latest[View]{}
	view.Store(viewOf())
	g, err := Open(Config{
		Host: "spark1", Port: port, Management: moved.Watch, Map: view, Logger: slog.New(slog.DiscardHandler),
	})
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
	answers := func(host string) bool {
		c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		res, err := c.Get(fmt.Sprintf("http://%s:%d/health", host, port))
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == 200
	}
	want := func(what string, at map[string]bool) {
		t.Helper()
		for host, is := range at {
			for deadline := time.Now().Add(10 * time.Second); answers(host) != is; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%s: %s answers: %t; it listens on %v", what, host, !is, g.Listening())
				}
			}
		}
	}
	change := func(f func(v *View)) {
		v := view.Load()
		f(&v)
		view.Store(v)
	}
	want("at first", map[string]bool{"127.0.0.1": true, "127.0.0.2": false})
	change(func(v *View) { v.Gateway.Open = true })
	want("open", map[string]bool{"127.0.0.1": true, "127.0.0.2": true})
	held, err := net.Dial("tcp", fmt.Sprintf("127.0.0.2:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	moved.Store(netip.MustParseAddr("127.0.0.3"))
	want("moved", map[string]bool{"127.0.0.1": true, "127.0.0.2": false, "127.0.0.3": true})
	held.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := held.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("a connection to an address that was left is served: %d %v", n, err)
	}
	change(func(v *View) {
		v.Gateway.Open, v.Gateway.Keys = false, map[string]rendezvous.GatewayKey{"k": keyOf("k")}
	})
	want("closed, with a key", map[string]bool{"127.0.0.1": true, "127.0.0.3": true})
	change(func(v *View) { v.Gateway.Keys = nil })
	want("closed", map[string]bool{"127.0.0.1": true, "127.0.0.3": false})
	taken, err := net.Listen("tcp", fmt.Sprintf("127.0.0.3:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	change(func(v *View) { v.Gateway.Open = true })
	for g.Listening().Err == nil {
		time.Sleep(time.Millisecond)
	}
	wantHas(t, "port in use", g.Listening().Err.Error(), "listen on 127.0.0.3", "address already in use")
	taken.Close()
	want("free again", map[string]bool{"127.0.0.3": true})
}
