package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// rawEngine gives each connection to a function, until the test ends.
func rawEngine(t *testing.T, serve func(c net.Conn, in *bufio.Reader)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serve(c, bufio.NewReader(c))
			c.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.Addr().String()
}

// TestClosedConnectionsAreNotUsed: an engine that closes after an answer without having said so loses no request.
func TestClosedConnectionsAreNotUsed(t *testing.T) {
	var requests atomic.Int64
	closed := make(chan struct{}, 1)
	addr := rawEngine(t, func(c net.Conn, in *bufio.Reader) {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		io.Copy(io.Discard, r.Body)
		requests.Add(1)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
		c.Close()
		closed <- struct{}{}
	})
	w := newWorld(t, viewOf(at("a", addr, "m")))
	for i := range 20 {
		if got := w.chat(`{"model":"m"}`); got.status != 200 {
			t.Fatalf("request %d: %d %s", i, got.status, got.body)
		}
		<-closed
	}
	if n := requests.Load(); n != 20 {
		t.Errorf("the engine had %d requests of 20", n)
	}
}

// TestConnectionsAreKept: one after the other they go over one connection, also after an error and without a body.
func TestConnectionsAreKept(t *testing.T) {
	var connections atomic.Int64
	answers := []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 204 No Content\r\n\r\n",
		"HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
	}
	addr := rawEngine(t, func(c net.Conn, in *bufio.Reader) {
		connections.Add(1)
		for i := 0; ; i++ {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			io.Copy(io.Discard, r.Body)
			io.WriteString(c, answers[i%len(answers)])
		}
	})
	w := newWorld(t, viewOf(at("a", addr, "m")))
	for i := range 8 {
		want := []int{200, 204, 400, 200}[i%4]
		if got := w.chat(`{"model":"m"}`); got.status != want {
			t.Errorf("request %d: %d %s, want %d", i, got.status, got.body, want)
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
	w.g.Close() // else the engine here waits for more
}

// TestIdleConnectionsEnd: before an engine closes them.
func TestIdleConnectionsEnd(t *testing.T) {
	ended := make(chan time.Time, 1)
	addr := rawEngine(t, func(c net.Conn, in *bufio.Reader) {
		if r, err := http.ReadRequest(in); err == nil {
			io.Copy(io.Discard, r.Body)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
			in.Peek(1)
			ended <- time.Now()
		}
	})
	w := newWorld(t, viewOf(at("a", addr, "m")))
	w.chat(`{"model":"m"}`)
	began := time.Now()
	if took := (<-ended).Sub(began); took > 2*idleFor+time.Second {
		t.Errorf("it was idle for %s", took)
	}
}

// TestEngineAnswersEarly: one that refuses before it has read all is heard.
func TestEngineAnswersEarly(t *testing.T) {
	addr := rawEngine(t, func(c net.Conn, in *bufio.Reader) {
		if _, err := http.ReadRequest(in); err == nil {
			io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
			io.Copy(io.Discard, in)
		}
	})
	w := newWorld(t, viewOf(at("a", addr, "m")))
	for _, n := range []int{10, headEnough - 100, 3 * headEnough} {
		got := w.chat(fmt.Sprintf(`{"model":"m","p":%q}`, strings.Repeat("x", n)))
		if got.status != 413 || got.body != "big" {
			t.Errorf("with %d bytes: %d %s", n, got.status, got.body)
		}
	}
}

// TestNothingListens: a request of any length goes to another that does.
func TestNothingListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	w := newWorld(t, viewOf([]rendezvous.Backend{at("a", l.Addr().String(), "m"), engine(t, "b", echo, "m")}...))
	for _, n := range []int{10, 3 * headEnough, 3 * headMost} {
		for range 2 {
			for _, b := range w.g.index.Load().models["m"] {
				b.load.unreached.Store(0)
			}
			body := fmt.Sprintf(`{"model":"m","p":%q}`, strings.Repeat("x", n))
			if got := w.chat(body); got.status != 200 || got.body != body {
				t.Errorf("with %d bytes: %d %.100s of %d", n, got.status, got.body, len(got.body))
			}
		}
	}
}
