package gateway

import (
	"context"
	"crypto/sha256"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const chatPath = "/v1/chat/completions"

// world is a gateway with a map that tests write, and where clients reach it.
type world struct {
	t    *testing.T
	g    *Gateway
	uses rendezvous.Latest[wire.UseServicesRequest] // the last that the leader was told
	// asleep is what the leader says of services that are to start.
	asleep map[launcher.JobID]string
	view   *rendezvous.Latest[View]
	url    string
	// reached: services that are avoided take a connection again.
	reached atomic.Bool
	log     lockedText
}

// lockedText is what several write to.
type lockedText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// view makes a map of these services, heard of just now.
func viewOf(backends ...rendezvous.Backend) View {
	return View{GatewayMap: rendezvous.GatewayMap{Backends: backends}, Since: time.Now()}
}

// newGateway has no listener: requests are given to it by hand.
func newGateway(t *testing.T, v View) *world {
	t.Helper()
	w := &world{t: t, view: &rendezvous.Latest[View]{}}
	w.view.Store(v)
	g, err := Open(Config{Host: "spark1", Map: w.view, Use: w.used, Logger: slog.New(slog.NewTextHandler(&w.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	g.dial = func(context.Context, string) error {
		if w.reached.Load() {
			return nil
		}
		return syscall.ECONNREFUSED
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		g.Close()
	})
	w.g = g
	return w
}

func (w *world) used(_ context.Context, r wire.UseServicesRequest) (wire.UseServicesResponse, error) {
	w.uses.Store(r)
	return wire.UseServicesResponse{Asleep: w.asleep}, nil
}

// newWorld has a listener, too.
func newWorld(t *testing.T, v View) *world {
	t.Helper()
	w := newGateway(t, v)
	srv := httptest.NewUnstartedServer(w.g)
	srv.Config = w.g.server(t.Context())
	srv.Start()
	t.Cleanup(srv.Close)
	w.url = srv.URL
	return w
}

// engine is a service of these models at a handler.
func engine(t *testing.T, job string, h http.HandlerFunc, models ...string) rendezvous.Backend {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return at(job, srv.Listener.Addr().String(), models...)
}

func at(job, addr string, models ...string) rendezvous.Backend {
	return rendezvous.Backend{
		Job: launcher.JobID(job), Name: job, Workload: "vllm", Models: models, State: "ready", Ready: true,
		Addr: netip.MustParseAddrPort(addr), Generation: 1, Host: "spark2",
	}
}

// echo answers with what it was sent.
func echo(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Job", r.Header.Get("X-Job"))
	w.Write(b)
}

// named answers with a word.
func named(word string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, word)
	}
}

type got struct {
	status int
	header http.Header
	body   string
}

// ask sends a request; headers are "Name: value".
func (w *world) ask(method, path, body string, headers ...string) got {
	w.t.Helper()
	res, err := w.do(w.t.Context(), method, path, strings.NewReader(body), headers...)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatalf("%s %s: read answer: %v (%s)", method, path, err, b)
	}
	return got{res.StatusCode, res.Header, string(b)}
}

func (w *world) do(
	ctx context.Context, method, path string, body io.Reader, headers ...string,
) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, w.url+path, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return c.Do(r)
}

func (w *world) chat(body string, headers ...string) got {
	w.t.Helper()
	return w.ask("POST", chatPath, body, headers...)
}

func keyOf(word string, models ...string) rendezvous.GatewayKey {
	return rendezvous.GatewayKey{Hash: sha256.Sum256([]byte(word)), Models: models}
}

func wantHas(t *testing.T, what, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%s: %q lacks %q", what, text, p)
		}
	}
}
