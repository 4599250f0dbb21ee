package oci

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"time"
)

// Endpoint is a registry with one image, for the engine of this machine: distribution's half that pulls. It listens on
// loopback, where every user reaches it; so its names begin with a secret, which the engine alone is told.
type Endpoint struct {
	image  Image
	open   Opener
	secret string
	listen net.Listener
	server *http.Server
	done   chan struct{}
}

// Opener reads a part of a content. It may wait for bytes that are not yet there.
type Opener func(ctx context.Context, b Blob, off, n int64) (io.ReadCloser, error)

// name is the repository's, behind the secret.
const name = "image"

// Serve begins.
func Serve(im Image, open Opener) (*Endpoint, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the engine: %w", err)
	}
	secret := make([]byte, 16)
	_, _ = rand.Read(secret)
	e := &Endpoint{image: im, open: open, secret: hex.EncodeToString(secret), listen: l, done: make(chan struct{})}
	e.server = &http.Server{Handler: e, ReadHeaderTimeout: answerWithin, ErrorLog: log.New(io.Discard, "", 0)}
	go func() {
		defer close(e.done)
		_ = e.server.Serve(l) // until Close
	}()
	return e, nil
}

// Repository is its name for the engine.
func (e *Endpoint) Repository() string { return e.listen.Addr().String() + "/" + e.secret + "/" + name }

// Reference is the image's.
func (e *Endpoint) Reference() string { return e.Repository() + "@" + e.image.Root }

// Close ends it, with what is being read.
func (e *Endpoint) Close() {
	_ = e.server.Close()
	<-e.done
}

// ServeHTTP answers the engine.
func (e *Endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	if r.URL.Path == "/v2/" {
		return
	}
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/v2/"), "/")
	if len(parts) != 4 || subtle.ConstantTimeCompare([]byte(parts[0]), []byte(e.secret)) == 0 || parts[1] != name ||
		r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.NotFound(w, r)
		return
	}
	for _, b := range e.image.Blobs {
		if b.Digest() != parts[3] || (b.Type != "") != (parts[2] == "manifests") {
			continue
		}
		kind := b.Type
		if kind == "" {
			kind = "application/octet-stream"
		}
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Docker-Content-Digest", b.Digest())
		// The head goes out before the first byte is there, which may take a while.
		body := &seeker{ctx: r.Context(), blob: b, open: e.open, flush: http.NewResponseController(w).Flush}
		defer body.Close()
		http.ServeContent(w, r, "", time.Time{}, body)
		return
	}
	http.NotFound(w, r)
}

// seeker reads a content from any place. What breaks off is opened again from there: a file that was under way has
// become a whole one.
type seeker struct {
	ctx  context.Context //nolint:containedctx // of the request that reads
	blob Blob
	open Opener
	off  int64
	body io.ReadCloser

	flush   func() error
	flushed bool
}

const (
	openAgain  = 100 * time.Millisecond
	openWithin = 30 * time.Second
)

func (s *seeker) Read(p []byte) (int, error) {
	if s.off == s.blob.Size {
		return 0, io.EOF
	}
	if !s.flushed {
		s.flushed = true
		_ = s.flush() // a reader that has gone is seen below
	}
	for began := time.Now(); ; {
		var err error
		if s.body == nil {
			s.body, err = s.open(s.ctx, s.blob, s.off, s.blob.Size-s.off)
		}
		n := 0
		if err == nil {
			n, err = s.body.Read(p)
		}
		if s.off += int64(n); n > 0 {
			return n, nil
		}
		s.Close()
		if s.ctx.Err() != nil || time.Since(began) > openWithin {
			return 0, errors.Join(err, s.ctx.Err())
		}
		select {
		case <-time.After(openAgain):
		case <-s.ctx.Done():
		}
	}
}

func (s *seeker) Seek(off int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		off += s.off
	case io.SeekEnd:
		off += s.blob.Size
	}
	if off < 0 {
		return 0, errors.New("seek before the start")
	}
	if off != s.off {
		s.Close()
	}
	s.off = off
	return off, nil
}

func (s *seeker) Close() error {
	if s.body == nil {
		return nil
	}
	err := s.body.Close()
	s.body = nil
	return err
}
