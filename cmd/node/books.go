package node

import (
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// books count what each user has the agent hold: it is spared by the OOM killer, and
// its descriptors are raft's and the ranks' too.
type books struct {
	what     string // is counted, for people: calls
	maxOpen  int    // of these, at once
	maxBytes int64  // of requests that have not been answered

	mu    sync.Mutex
	open  map[string]int
	bytes map[string]int64
}

func newBooks(what string, maxOpen int) *books {
	return &books{what: what, maxOpen: maxOpen, maxBytes: heldBytes, open: map[string]int{}, bytes: map[string]int64{}}
}

// heldBytes are what one user's requests may hold, on the socket, and of all clients.
const heldBytes = 256 << 20

// holder is whose page it is. Root has one too, without a bound.
type holder struct {
	name string
	root bool
}

// enter counts one more until leave.
func (b *books) enter(h holder) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !h.root && b.open[h.name] >= b.maxOpen {
		return fmt.Errorf("%w: %s has %d %s under way here: wait for their answers", wire.ErrDenied, h.name, b.maxOpen, b.what)
	}
	b.open[h.name]++
	return nil
}

func (b *books) leave(h holder) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open[h.name]--; b.open[h.name] == 0 {
		delete(b.open, h.name)
	}
}

// hold counts bytes; n below zero lets go of some.
func (b *books) hold(h holder, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	held := b.bytes[h.name] + n
	if n > 0 && !h.root && held > b.maxBytes {
		return fmt.Errorf("%s has %d bytes of requests under way: wait for their answers", h.name, b.bytes[h.name])
	}
	if b.bytes[h.name] = held; held == 0 {
		delete(b.bytes, h.name)
	}
	return nil
}

// meter counts what is read of a request until release, which is for its answer.
func (b *books) meter(h holder, r *http.Request) (release func()) {
	m := &metered{ReadCloser: r.Body, hold: func(n int64) error { return b.hold(h, n) }}
	r.Body = m
	return func() { _ = b.hold(h, -m.held) }
}

type metered struct {
	io.ReadCloser
	hold func(n int64) error
	held int64
}

func (m *metered) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	if over := m.hold(int64(n)); over != nil {
		return 0, over
	}
	m.held += int64(n)
	return n, err
}
