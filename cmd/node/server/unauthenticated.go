package server

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// unauthenticatedCalls is how many calls a connection without a certificate may have in
// progress. A newcomer makes one.
const unauthenticatedCalls = 4

type unauthenticatedKey struct{}

// countUnauthenticated is for a server's ConnContext.
func countUnauthenticated(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, unauthenticatedKey{}, new(atomic.Int32))
}

// forUnauthenticated serves a peer that has shown no certificate; few of its calls are
// read at once.
func forUnauthenticated(calls http.Handler, w http.ResponseWriter, r *http.Request) {
	if row := wire.Find(r.URL.Path); row == nil || !row.ForNewcomers() {
		http.Error(w, "show a certificate of this cluster", http.StatusForbidden)
		return
	}
	underWay := r.Context().Value(unauthenticatedKey{}).(*atomic.Int32)
	defer underWay.Add(-1)
	if underWay.Add(1) > unauthenticatedCalls {
		http.Error(w, "too many calls at once", http.StatusTooManyRequests)
		return
	}
	calls.ServeHTTP(w, r)
}
