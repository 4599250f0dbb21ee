package gossip

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// dialFrom opens a connection from a loopback address to another.
func dialFrom(t *testing.T, from netip.Addr, to netip.AddrPort) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from.AsSlice()}, Timeout: 30 * time.Second}
	c, err := d.DialContext(t.Context(), "tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Somebody without a key holds few connections, and none of a member's.
func TestUnauthenticatedHoldLittle(t *testing.T) {
	n := newNetwork(t)
	at := netip.AddrPortFrom(addr(1), n.port)
	b, err := newBounded(at.Addr(), at.Port(), log.New(io.Discard, "", 0))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Shutdown()
	take := func() net.Conn {
		t.Helper()
		select {
		case c := <-b.StreamCh():
			t.Cleanup(func() { c.Close() })
			return c
		case <-time.After(30 * time.Second):
			t.Fatal("no connection came")
		}
		return nil
	}
	member := dialFrom(t, addr(2), at)
	ofMember := take()
	var held []net.Conn // at the node, in their order
	for range maxStreamsPerAddr + 5 {
		dialFrom(t, addr(3), at)
		held = append(held, take())
	}
	for i, c := range held {
		err := c.SetReadDeadline(time.Now().Add(time.Minute))
		if gone := err != nil; gone != (i < 5) {
			t.Errorf("connection %d of %d: gone is %v", i, len(held), gone)
		}
	}
	for i := range maxStreams { // of as many addresses
		dialFrom(t, netip.AddrFrom4([4]byte{127, 0, 10, byte(i + 1)}), at)
		take()
	}
	b.mu.Lock()
	open := len(b.open)
	b.mu.Unlock()
	if open != maxStreams {
		t.Errorf("%d connections are open, want %d", open, maxStreams)
	}
	if ofMember.SetReadDeadline(time.Time{}) == nil {
		t.Error("the oldest is still there")
	}
	member.Close()

	// What it says is cut off long before 20 MiB.
	talker := dialFrom(t, addr(4), at)
	in := take()
	go func() { _, _ = talker.Write(make([]byte, 4*maxStreamBytes)) }() // ends with the connection
	if got, err := io.Copy(io.Discard, in); got != maxStreamBytes || err == nil {
		t.Errorf("%d bytes were read, %v", got, err)
	}
	in.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.open) != maxStreams-1 {
		t.Errorf("%d connections are open, want one less than %d", len(b.open), maxStreams)
	}
}

// An unauthenticated sender does not choose how many lines the log gets.
func TestUnauthenticatedWords(t *testing.T) {
	var buf bytes.Buffer
	w := slogWriter{rendezvous.NewSparing(slog.New(slog.NewTextHandler(&buf, nil)), quietFor)}
	for i := range 100 {
		fmt.Fprintf(w, "[ERR] memberlist: discarding packet with unacceptable label %q: from=10.0.0.1:7", fmt.Sprint("x", i))
	}
	if n := strings.Count(buf.String(), "\n"); n != 1 {
		t.Errorf("%d lines:\n%s", n, buf.String())
	}
}
