package gateway

import (
	"bufio"
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// BenchmarkSmall has small requests pass, 64 at once, by raw connections on both sides.
func BenchmarkSmall(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	answer := []byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 220\r\n\r\n" +
		strings.Repeat("x", 220))
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 8192)
				for {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					if bytes.HasSuffix(buf[:n], []byte("]}")) { // a request's end
						c.Write(answer)
					}
				}
			}()
		}
	}()
	view := &rendezvous.Latest[View]{}
	view.Store(viewOf(at("a", l.Addr().String(), "m")))
	g, err := Open(Config{Host: "spark1", Map: view, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	defer g.Close()
	srv := g.server(b.Context())
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go srv.Serve(front)
	defer srv.Close()
	body := `{"model":"m","max_tokens":8,"messages":[{"role":"user","content":"` + strings.Repeat("x", 200) + `"}]}`
	request := []byte("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" +
		"Content-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
	b.ReportAllocs()
	b.SetParallelism(64)
	b.RunParallel(func(pb *testing.PB) {
		c, err := net.Dial("tcp", front.Addr().String())
		if err != nil {
			b.Error(err)
			return
		}
		defer c.Close()
		in := bufio.NewReader(c)
		for pb.Next() {
			c.Write(request)
			res, err := http.ReadResponse(in, nil)
			if err != nil || res.StatusCode != 200 {
				b.Error(err)
				return
			}
			io.Copy(io.Discard, res.Body)
		}
	})
}
