package server

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Quota bounds what one user may have the agent hold at once: on the socket, or by
// clients.
type Quota struct {
	Open  int   // of the things counted
	Bytes int64 // of requests that have not been answered; 0 means 256 MiB
}

// or replaces zero fields by the defaults.
func (q Quota) or(open int) Quota {
	q.Open, q.Bytes = cmp.Or(q.Open, open), cmp.Or(q.Bytes, 256<<20)
	return q
}

// quotas count what the agent holds for each user. The agent is exempt from the OOM
// killer, and its descriptors also serve raft and the ranks.
type quotas struct {
	what string // what is counted, for messages: calls
	max  Quota

	mu    sync.Mutex
	open  map[string]int
	bytes map[string]int64
}

func newQuotas(what string, max Quota) *quotas {
	return &quotas{what: what, max: max, open: map[string]int{}, bytes: map[string]int64{}}
}

// holder is whose quota it is. Root's use is counted too, but not bounded.
type holder struct {
	name string
	root bool
}

// enter counts one more until leave is called.
func (q *quotas) enter(h holder) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !h.root && q.open[h.name] >= q.max.Open {
		return fmt.Errorf("%w: %s has %d %s under way here: wait for their answers", wire.ErrDenied, h.name,
			q.max.Open, q.what)
	}
	q.open[h.name]++
	return nil
}

func (q *quotas) leave(h holder) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open[h.name]--; q.open[h.name] == 0 {
		delete(q.open, h.name)
	}
}

// hold counts n bytes; a negative n releases them.
func (q *quotas) hold(h holder, n int64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	held := q.bytes[h.name] + n
	if n > 0 && !h.root && held > q.max.Bytes {
		return fmt.Errorf("%s has %d bytes of requests under way: wait for their answers", h.name, q.bytes[h.name])
	}
	if q.bytes[h.name] = held; held == 0 {
		delete(q.bytes, h.name)
	}
	return nil
}

// meter counts the bytes read of a request until release, to be called before its answer.
func (q *quotas) meter(h holder, r *http.Request) (release func()) {
	m := &metered{ReadCloser: r.Body, hold: func(n int64) error { return q.hold(h, n) }}
	r.Body = m
	return func() { _ = q.hold(h, -m.held) }
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
