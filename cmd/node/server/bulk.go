package server

import (
	"context"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// serveBulk answers HTTP/1.1 on one connection, whose other end is proven, until it is
// closed or ctx ends. Then no handler runs any more.
func serveBulk(ctx context.Context, c net.Conn, h http.Handler, complaints *log.Logger) {
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	one := &oneConn{conn: c, over: make(chan struct{})}
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second, // from a request's first byte on
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          complaints,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateClosed {
				close(one.over)
			}
		},
	}
	_ = srv.Serve(one) // it ends with the connection
}

// oneConn is a listener at which one connection is accepted; it ends when that does.
type oneConn struct {
	conn  net.Conn
	given sync.Once
	over  chan struct{}
}

func (l *oneConn) Accept() (c net.Conn, err error) {
	// Without its type: http.Server would look at the protocol that TLS has agreed on.
	l.given.Do(func() { c = struct{ net.Conn }{l.conn} })
	if c != nil {
		return c, nil
	}
	<-l.over
	return nil, net.ErrClosed
}

func (l *oneConn) Close() error   { return nil }
func (l *oneConn) Addr() net.Addr { return l.conn.LocalAddr() }
