package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/sparkrun/sparkrun/rendezvous/dial"
)

// A connection answers one request after the other; when the server
// ends, so does a handler that writes to a member that does not read.
func TestBulk(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	certified := httptest.NewTLSServer(nil)
	certified.Close()
	rawHere, rawThere := net.Pipe()
	here := tls.Server(rawHere, &tls.Config{Certificates: certified.TLS.Certificates, NextProtos: []string{dial.Bulk}})
	there := tls.Client(rawThere, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{dial.Bulk}})
	defer rawThere.Close()
	running := make(chan error, 1)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/small" {
			fmt.Fprint(w, "whole")
			return
		}
		var err error
		for err == nil {
			_, err = w.Write(make([]byte, 1<<20))
		}
		running <- err
	})
	over := make(chan struct{})
	go func() {
		if err := here.HandshakeContext(ctx); err != nil {
			t.Error(err)
		}
		serveBulk(ctx, here, h, log.New(io.Discard, "", 0))
		close(over)
	}()
	answers := bufio.NewReader(there)
	for range 2 {
		fmt.Fprint(there, "GET /small HTTP/1.1\r\nHost: x\r\n\r\n")
		resp, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		if b, _ := io.ReadAll(resp.Body); string(b) != "whole" {
			t.Errorf("answered %q", b)
		}
	}
	fmt.Fprint(there, "GET /much HTTP/1.1\r\nHost: x\r\n\r\n")
	if _, err := http.ReadResponse(answers, nil); err != nil {
		t.Fatal(err)
	}
	stop()
	<-over
	select {
	case err := <-running:
		if err == nil {
			t.Error("it has written all")
		}
	default:
		t.Error("a handler still runs")
	}
}
