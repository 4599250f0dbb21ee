package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// localBench is the agent's socket, whose next caller has the uid that is told.
type localBench struct {
	t    *testing.T
	path string
	ls   *locals
	uid  atomic.Uint32
	log  lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(strings.Lines(l.b.String()))
}

func newLocalBench(t *testing.T, h http.HandlerFunc) *localBench {
	t.Helper()
	dir, err := os.MkdirTemp("", "sparkrun-local-") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b := &localBench{t: t, path: filepath.Join(dir, "agent.sock")}
	l, err := listenLocal(b.path)
	if err != nil {
		t.Fatal(err)
	}
	b.ls = newLocals(l, slog.New(slog.NewTextHandler(&b.log, nil)))
	b.ls.uid = func(net.Conn) (uint32, error) { return b.uid.Load(), nil }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- serve(ctx, b.ls.server(h), b.ls) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("serve: %v", err)
		}
	})
	return b
}

// client speaks for a uid: that is whose the next connection is.
func (b *localBench) client(uid uint32) *http.Client {
	b.uid.Store(uid)
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", b.path)
	}}
	b.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute}
}

// A command from before the agent's upgrade speaks HTTP/2 alone, and goes on following its job.
func TestOlderCommandsAreServed(t *testing.T) {
	b := newLocalBench(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "served") })
	c := b.client(1000)
	tr := c.Transport.(*http.Transport)
	tr.Protocols = new(http.Protocols)
	tr.Protocols.SetUnencryptedHTTP2(true)
	b.ls.name = func(context.Context, uint32) (string, error) { return "alice", nil }
	res, err := c.Get("http://agent/")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, err := io.ReadAll(res.Body); err != nil || string(text) != "served" {
		t.Errorf("%q, %v", text, err)
	}
}

// One user's connections leave room for others', and those of root are not counted.
func TestLocalConnectionsOfOneUser(t *testing.T) {
	b := newLocalBench(t, func(http.ResponseWriter, *http.Request) {})
	dial := func(uid uint32) net.Conn {
		t.Helper()
		b.uid.Store(uid)
		c, err := net.Dial("unix", b.path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	// refused: the agent hangs up. Else it answers.
	refused := func(c net.Conn) bool {
		t.Helper()
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, _ = c.Write([]byte("GET / HTTP/1.1\r\nHost: agent\r\n\r\n"))
		_, err := c.Read(make([]byte, 1))
		return err != nil
	}
	var held []net.Conn
	for i := range localConns {
		held = append(held, dial(1000))
		if refused(held[i]) {
			t.Fatalf("connection %d of %d is refused", i+1, localConns)
		}
	}
	if !refused(dial(1000)) {
		t.Error("one more than allowed is taken")
	}
	if refused(dial(1001)) {
		t.Error("another user is refused")
	}
	if refused(dial(0)) {
		t.Error("root is refused")
	}
	held[0].Close()
	for end := time.Now().Add(time.Minute); refused(dial(1000)); {
		if time.Now().After(end) {
			t.Fatal("none is taken in place of one that was closed")
		}
	}
}

// However often a user is refused, the log gets a line of it.
func TestLocalComplaintsAreBounded(t *testing.T) {
	b := newLocalBench(t, func(http.ResponseWriter, *http.Request) {})
	b.ls.name = func(_ context.Context, uid uint32) (string, error) { return "", errors.New("no such user") }
	begun := time.Now()
	for _, uid := range []uint32{1000, 1001} {
		client := b.client(uid)
		for range 50 {
			if res, err := client.Get("http://agent/"); err == nil {
				res.Body.Close()
			}
		}
	}
	most := 1 + int(time.Since(begun)/quietFor)
	for _, kind := range []string{"uid=1000", "uid=1001"} {
		n := 0
		for _, line := range b.log.lines() {
			if strings.Contains(line, kind) {
				n++
			}
		}
		if n == 0 || n > most {
			t.Errorf("%d lines with %s, want 1 to %d:\n%s", n, kind, most, strings.Join(b.log.lines(), ""))
		}
	}
}

// A directory server that hangs keeps out those alone whom it is asked about.
func TestLocalNameThatHangs(t *testing.T) {
	asked, answer := make(chan struct{}, 1), make(chan struct{})
	b := newLocalBench(t, func(http.ResponseWriter, *http.Request) {})
	b.ls.name = func(_ context.Context, uid uint32) (string, error) {
		if uid == 1000 {
			asked <- struct{}{}
			<-answer
		}
		return "somebody", nil
	}
	ask := func(c *http.Client) error {
		res, err := c.Get("http://agent/")
		if err == nil {
			err = res.Body.Close()
		}
		return err
	}
	slow := make(chan error)
	ldap := b.client(1000)
	go func() { slow <- ask(ldap) }()
	<-asked
	if err := ask(b.client(0)); err != nil {
		t.Errorf("root: %v", err)
	}
	close(answer)
	if err := <-slow; err != nil {
		t.Error(err)
	}
}

// What a user sends and is not answered is bounded.
func TestLocalBytesOfOneUser(t *testing.T) {
	hold := make(chan struct{})
	read := make(chan struct{}, 8)
	b := newLocalBench(t, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		read <- struct{}{}
		if r.URL.Path == "/hold" {
			<-hold
		}
	})
	b.ls.quotas.max.Bytes = 1 << 20
	post := func(c *http.Client, path string, size int) int {
		res, err := c.Post("http://agent"+path, "text/plain", bytes.NewReader(make([]byte, size)))
		if err != nil {
			t.Error(err)
			return 0
		}
		defer res.Body.Close()
		return res.StatusCode
	}
	first := make(chan int)
	ada := b.client(1000)
	go func() { first <- post(ada, "/hold", 700<<10) }()
	<-read
	if got := post(ada, "/", 700<<10); got != http.StatusTooManyRequests {
		t.Errorf("too much: status %d", got)
	}
	if got := post(ada, "/", 100<<10); got != http.StatusOK {
		t.Errorf("what there is room for: status %d", got)
	}
	if got := post(b.client(1001), "/", 700<<10); got != http.StatusOK {
		t.Errorf("another user: status %d", got)
	}
	close(hold)
	if got := <-first; got != http.StatusOK {
		t.Errorf("the first: status %d", got)
	}
	if got := post(ada, "/", 700<<10); got != http.StatusOK {
		t.Errorf("after its answer: status %d", got)
	}
}
