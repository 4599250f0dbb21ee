package gossip

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// A listener that is slow loses nothing but what has been overtaken, and holds
// up nobody.
func TestSlowListener(t *testing.T) {
	tb := newTable(Meta{ID: nodeID(1), Host: "spark1"}, nil)
	entered, release, got := make(chan struct{}, 100), make(chan struct{}), make(chan Event, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { // joined by done
		done <- tb.deliver(ctx, slog.New(slog.DiscardHandler), func(e Event) { entered <- struct{}{}; <-release; got <- e })
	}()
	p := Peer{ID: nodeID(2), Host: "spark2"}
	tb.set(p, true)
	<-entered
	for i := range 10000 {
		p.Meta.Epoch = uint64(i)
		tb.set(p, i%2 == 0)
	}
	tb.mu.Lock()
	if len(tb.dirty) > 1 {
		t.Errorf("%d entries wait for one node", len(tb.dirty))
	}
	tb.mu.Unlock()
	close(release)
	for {
		e := <-got
		if e.Kind == Dead && e.Peer.Meta.Epoch == 9999 {
			break
		}
		if len(got) > 3 {
			t.Fatalf("%d more events", len(got))
		}
	}
	cancel()
	<-done
}

func TestTargets(t *testing.T) {
	n := newNetwork(t)
	n.known = append(n.known, netip.MustParseAddrPort("[fe80::1%eth0]:1"), netip.AddrPort{},
		netip.MustParseAddrPort("127.0.9.2:0"))
	g, err := Open(n.config(1))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	g.table.set(Peer{ID: nodeID(2), Addr: addr(2), Port: n.port}, true)
	g.table.set(Peer{ID: nodeID(3), Addr: addr(3), Port: n.port}, false)
	if got := g.targets(false); len(got) != 6 { // 3 to 8
		t.Errorf("%v", got)
	}
	if got := g.targets(true); len(got) != 7 {
		t.Errorf("%v", got)
	}
	for i := range 40 {
		n.known = append(n.known, netip.AddrPortFrom(addr(100+i), n.port))
	}
	if got := g.targets(true); len(got) != joinsAPass {
		t.Errorf("%d targets in one pass", len(got))
	}
}

func TestParseLine(t *testing.T) {
	for line, want := range map[string]struct {
		level slog.Level
		words string
	}{
		"[WARN] memberlist: Refuting a suspect message (from: x)\n": {slog.LevelWarn, "Refuting a suspect message (from: x)"},
		"[ERR] memberlist: Push/Pull with a failed: EOF":            {slog.LevelWarn, "Push/Pull with a failed: EOF"},
		"[INFO] memberlist: Marking x as failed":                    {slog.LevelInfo, "Marking x as failed"},
		"[DEBUG] memberlist: Stream connection from=1":              {slog.LevelDebug, "Stream connection from=1"},
		"something else": {slog.LevelWarn, "something else"},
	} {
		if l, w := parseLine(line); l != want.level || w != want.words {
			t.Errorf("%q: %v %q", line, l, w)
		}
	}
	var buf bytes.Buffer
	w := slogWriter{rendezvous.NewSparing(slog.New(slog.NewTextHandler(&buf, nil)), quietFor)}
	for i := range 100 {
		fmt.Fprintf(w, "[ERR] memberlist: Failed to send gossip to 10.0.0.1: try %d", i)
		fmt.Fprintf(w, "[DEBUG] memberlist: noise %d", i)
	}
	if n := strings.Count(buf.String(), "\n"); n != 1 {
		t.Errorf("%d lines for one repeated complaint:\n%s", n, buf.String())
	}
}
