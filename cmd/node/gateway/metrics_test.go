package gateway

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// Who reads metrics: everybody on the machine itself while there are no keys; else a key that is not limited to models,
// and one for metrics alone, which asks no model. A gateway that is open to all does not tell who asks for what.
func TestWhoReadsMetrics(t *testing.T) {
	v := viewOf(engine(t, "a", named("answer"), "m"))
	w := newWorld(t, v)
	w.g.cfg.Metrics = func(w http.ResponseWriter, _ *http.Request, told Told) {
		if len(told.Backends) == 1 && told.Counts != nil {
			io.WriteString(w, "figures")
		}
	}
	tell := func(v View) {
		w.view.Store(v)
		for {
			x, changed := w.g.index.Watch()
			if x.Gateway.Open == v.Gateway.Open && len(x.keys) == len(v.Gateway.Keys) {
				return
			}
			<-changed
		}
	}
	at := func(local, path string) *http.Request {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		addr := net.Addr(&net.TCPAddr{IP: net.ParseIP(local), Port: 7942})
		return r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, addr))
	}
	serve := func(r *http.Request) (int, string) {
		rec := httptest.NewRecorder()
		w.g.ServeHTTP(rec, r)
		return rec.Code, rec.Body.String()
	}
	off := func(path string, key ...string) (int, string) {
		r := at("10.0.0.1", path)
		for _, k := range key {
			r.Header.Set("Authorization", "Bearer "+k)
		}
		return serve(r)
	}
	if got := w.ask("GET", "/metrics", ""); got.status != 200 || got.body != "figures" {
		t.Errorf("on loopback: %d %s", got.status, got.body)
	}
	if got := w.ask("POST", "/metrics", "{}"); got.status != 405 {
		t.Errorf("POST: %d %s", got.status, got.body)
	}
	rebinds := at("127.0.0.1", "/metrics")
	rebinds.Host = "evil.example"
	rebinds.Header.Set("Sec-Fetch-Site", "same-origin")
	if status, body := serve(rebinds); status != 403 {
		t.Errorf("a page whose name leads here by DNS: %d %s", status, body)
	}
	v.Gateway.Open = true
	tell(v)
	status, body := off("/metrics/services/a")
	if status != 403 {
		t.Errorf("open, off loopback: %d", status)
	}
	wantHas(t, "open", body, "gateway key create prometheus --metrics")

	only := keyOf("only")
	only.Metrics = true
	v.Gateway.Keys = map[string]rendezvous.GatewayKey{"all": keyOf("all"), "one": keyOf("one", "m"), "only": only}
	tell(v)
	for _, tt := range []struct {
		key    []string
		status int
		want   string
	}{
		{nil, 401, "a key is needed"},
		{[]string{"wrong"}, 401, "revoked"},
		{[]string{"one"}, 403, "key one is limited to models"},
		{[]string{"all"}, 200, "figures"},
		{[]string{"only"}, 200, "figures"},
	} {
		for _, path := range []string{"/metrics", "/metrics/targets", "/metrics/services/a"} {
			if status, body := off(path, tt.key...); status != tt.status {
				t.Errorf("%s with %v: %d %s, want %d", path, tt.key, status, body, tt.status)
			} else {
				wantHas(t, path, body, tt.want)
			}
		}
	}
	if got := w.ask("GET", "/metrics", ""); got.status != 401 {
		t.Errorf("keys, on loopback: %d", got.status)
	}
	if got := w.chat(`{"model":"m"}`, "x-api-key: only"); got.status != 403 {
		t.Errorf("a key for metrics asks a model: %d %s", got.status, got.body)
	}
	if got := w.ask("GET", "/v1/models", "", "x-api-key: only"); got.status != 200 || len(got.body) > 100 {
		t.Errorf("its models: %d %s", got.status, got.body)
	}
	for _, c := range w.g.Counts() {
		if c.Key == "only" && c.Errors != c.Requests {
			t.Errorf("reading metrics was counted: %+v", c)
		}
	}
}
