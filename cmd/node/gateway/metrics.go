package gateway

import (
	"net"
	"net/http"
	"strings"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Told is what a gateway knows that metrics tell.
type Told struct {
	View
	// Counts are what was asked for at this member, by model and key.
	Counts func() []wire.GatewayCount
	// Admits: members listen on more than loopback, Secured: by TLS there.
	Admits, Secured bool
}

// metrics answers GET /metrics and what is below it, to whom may read that. It asks no engine for an answer, and is
// counted nowhere.
func (g *Gateway) metrics(a *answer, r *http.Request, x *index, k *key) bool {
	if r.URL.Path != "/metrics" && !strings.HasPrefix(r.URL.Path, "/metrics/") || g.cfg.Metrics == nil {
		return false
	}
	var no *refusal
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		a.Header().Set("Allow", "GET, HEAD")
		no = refuse(405, "", "%.100s takes GET, not %.16q", r.URL.Path, r.Method)
	case k == nil && !onLoopback(r):
		no = refuse(403, "", "metrics are read with a key, or on the machine itself: make one with "+
			"`sudo sparkrun gateway key create prometheus --metrics`; from then on models ask for keys, too")
	case k != nil && len(k.Models) > 0:
		no = refuse(403, "", "key %s is limited to models and may not read metrics: make one with "+
			"`sudo sparkrun gateway key create prometheus --metrics`", k.name)
	}
	if no != nil {
		a.fail(no)
		return true
	}
	told := Told{View: x.View, Counts: g.Counts, Admits: x.admits(), Secured: g.shown() != nil}
	g.cfg.Metrics(a.ResponseWriter, r, told)
	return true
}

// onLoopback tells whether a request came by an address of loopback.
func onLoopback(r *http.Request) bool {
	at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && at.IP.IsLoopback()
}
