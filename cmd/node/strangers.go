package node

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// strangerCalls is how many calls a connection without a certificate may have under
// way. A newcomer makes one.
const strangerCalls = 4

type strangerKey struct{}

// countStrangers goes into a server's ConnContext.
func countStrangers(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, strangerKey{}, new(atomic.Int32))
}

// forStrangers serves somebody who has shown no certificate: of what is for them few are read at once.
func forStrangers(calls http.Handler, w http.ResponseWriter, r *http.Request) {
	if row := wire.Find(r.URL.Path); row == nil || !row.ForNewcomers() {
		http.Error(w, "show a certificate of this cluster", http.StatusForbidden)
		return
	}
	underWay := r.Context().Value(strangerKey{}).(*atomic.Int32)
	defer underWay.Add(-1)
	if underWay.Add(1) > strangerCalls {
		http.Error(w, "too many calls at once", http.StatusTooManyRequests)
		return
	}
	calls.ServeHTTP(w, r)
}
