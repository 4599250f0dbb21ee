package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// engines sends requests whose bodies were read whole, which nearly all are, and reads the answers in the goroutine
// that asks: net/http's Transport has two goroutines a connection, and to wake them costs more than all else that is
// done here with a small request. What is longer goes by that Transport.
//
// It never sends again, and looks before it sends whether the engine has closed the connection.
type engines struct {
	long http.RoundTripper
	dial func(ctx context.Context, network, addr string) (net.Conn, error)

	mu    sync.Mutex
	idle  map[string][]*engineConn // by address, the latest last
	sweep *time.Timer              // closes those that are idle for long; nil: there are none
	shut  bool
}

// wholeBody marks a request for the short way.
type wholeBody struct{ bytes.Reader }

func newWholeBody(b []byte) *wholeBody {
	w := &wholeBody{}
	w.Reset(b)
	return w
}

// Close is for io.ReadCloser.
func (*wholeBody) Close() error { return nil }

const (
	headerMost  = 64 << 10 // of an engine's answer
	interimMost = 5        // answers of status 1xx before it
)

// engineConn is a connection to an engine.
type engineConn struct {
	net.Conn
	e     *engines
	addr  string
	in    *bufio.Reader
	left  int // bytes that a header may still have; negative: what comes is none
	since time.Time
}

// Read bounds headers.
func (c *engineConn) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, errors.New("its header is too long")
	}
	if c.left > 0 && len(p) > c.left {
		p = p[:c.left]
	}
	n, err := c.Conn.Read(p)
	if c.left > 0 {
		c.left -= n
	}
	return n, err
}

// RoundTrip asks an engine.
func (e *engines) RoundTrip(r *http.Request) (*http.Response, error) {
	body, ok := r.Body.(*wholeBody)
	if !ok {
		return e.long.RoundTrip(r)
	}
	ctx := r.Context()
	c, err := e.take(ctx, r.URL.Host)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.Conn.SetDeadline(time.Unix(1, 0)) }) //nolint:errcheck // it is closed
	res, err := c.ask(r, body)
	if err != nil {
		stop()
		c.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	res.Body = &engineBody{ReadCloser: res.Body, c: c, ctx: ctx, stop: stop, keep: !res.Close}
	return res, nil
}

// ask sends the request with one write, and reads the answer's header.
func (c *engineConn) ask(r *http.Request, body *wholeBody) (*http.Response, error) {
	uri := r.URL.RequestURI()
	for i := range len(uri) {
		if uri[i] <= ' ' || uri[i] == 0x7f {
			return nil, errors.New("the path has a character that no path has")
		}
	}
	out := sendBuffers.Get().(*bytes.Buffer)
	defer sendBuffers.Put(out)
	out.Reset()
	out.WriteString(r.Method + " " + uri + " HTTP/1.1\r\nHost: " + c.addr + "\r\nContent-Length: ")
	out.WriteString(strconv.Itoa(body.Len()))
	out.WriteString("\r\n")
	if v := r.Header["User-Agent"]; len(v) == 1 && v[0] == "" { // ReverseProxy's word to a Transport for none
		delete(r.Header, "User-Agent")
	}
	if err := r.Header.WriteSubset(out, notSent); err != nil {
		return nil, err
	}
	out.WriteString("\r\n")
	out.ReadFrom(body) //nolint:errcheck // from memory to memory
	_, failed := c.Write(out.Bytes())
	if out.Cap() > 2*headEnough {
		out.Truncate(0)
		*out = bytes.Buffer{}
	}
	// An engine that refuses may close before it has read all.
	for range interimMost {
		c.left = headerMost
		res, err := http.ReadResponse(c.in, r)
		switch {
		case err != nil && failed != nil:
			return nil, failed
		case err != nil:
			return nil, err
		case res.StatusCode == http.StatusSwitchingProtocols:
			return nil, errors.New("it switches protocols, unasked")
		case res.StatusCode >= http.StatusOK:
			c.left = -1
			res.Close = res.Close || failed != nil
			return res, nil
		}
	}
	return nil, fmt.Errorf("it sends more than %d answers of status 1xx", interimMost)
}

var (
	sendBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}
	// notSent is written apart, or is the transport's own.
	notSent = map[string]bool{"Host": true, "Content-Length": true, "Transfer-Encoding": true, "Trailer": true}
)

// take gives a connection that is idle, or a new one.
func (e *engines) take(ctx context.Context, addr string) (*engineConn, error) {
	for {
		e.mu.Lock()
		all := e.idle[addr]
		if len(all) == 0 {
			e.mu.Unlock()
			break
		}
		c := all[len(all)-1]
		e.idle[addr] = all[:len(all)-1]
		e.mu.Unlock()
		if time.Since(c.since) < idleFor && c.quiet() {
			return c, nil
		}
		c.Close()
	}
	conn, err := e.dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &engineConn{Conn: conn, e: e, addr: addr}
	c.in = bufio.NewReader(c)
	return c, nil
}

// quiet tells that the engine has neither closed nor said anything, unasked.
func (c *engineConn) quiet() bool {
	s, ok := c.Conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	quiet := false
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		quiet = err == syscall.EAGAIN
		return true
	})
	return err == nil && quiet
}

// idleMost bounds idle connections to an engine.
const idleMost = 4096

// give takes a connection back whose answer was read to its end.
func (e *engines) give(c *engineConn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.shut || c.in.Buffered() > 0 || len(e.idle[c.addr]) >= idleMost {
		c.Close()
		return
	}
	c.since = time.Now()
	e.idle[c.addr] = append(e.idle[c.addr], c)
	if e.sweep == nil {
		e.sweep = time.AfterFunc(idleFor, e.close)
	}
}

// close closes what has been idle for long.
func (e *engines) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sweep = nil
	for addr, all := range e.idle {
		old := 0
		for old < len(all) && (e.shut || time.Since(all[old].since) >= idleFor) {
			all[old].Close()
			old++
		}
		if all = append(all[:0:0], all[old:]...); len(all) == 0 {
			delete(e.idle, addr)
		} else {
			e.idle[addr] = all
		}
	}
	if len(e.idle) > 0 {
		e.sweep = time.AfterFunc(idleFor, e.close)
	}
}

// CloseIdleConnections ends all of them, for good.
func (e *engines) CloseIdleConnections() {
	e.mu.Lock()
	e.shut = true
	if e.sweep != nil {
		e.sweep.Stop()
	}
	e.mu.Unlock()
	e.close()
	if t, ok := e.long.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

// engineBody is an answer's body. Read to its end it gives the connection back; else it closes it.
type engineBody struct {
	io.ReadCloser
	c    *engineConn
	ctx  context.Context
	stop func() bool
	keep bool
	done bool
}

// Read gives the next piece.
func (b *engineBody) Read(p []byte) (int, error) {
	if b.done {
		return 0, io.EOF
	}
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == io.EOF:
		b.done = true
		if b.stop() && b.keep {
			b.c.e.give(b.c)
		} else {
			b.c.Close()
		}
	case err != nil && b.ctx.Err() != nil:
		err = b.ctx.Err()
	}
	return n, err
}

// Close closes the connection, unless the answer was read to its end.
func (b *engineBody) Close() error {
	if b.done {
		return nil
	}
	b.done = true
	b.stop()
	return b.c.Close() // not ReadCloser's, which would read on
}
