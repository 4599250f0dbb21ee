package exo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// fakeExo answers what the gateway asks; it serves nothing.
type fakeExo struct {
	mu      sync.Mutex
	nodes   int    // that have found each other
	refuses string // the body of a 400
	placed  bool
	runner  string // the state of the one part
	asked   url.Values
	posts   int
}

func (f *fakeExo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	instance := `{"MlxRingInstance":{"instanceId":"x","shardAssignments":{"modelId":"org/m","runnerToShard":{"r":{"PipelineShardMetadata":{"deviceRank":0}}},"nodeToRunner":{"N0":"r"}},"hostsByNode":{"N0":[{"ip":"0.0.0.0","port":7}]}}}`
	switch r.URL.Path {
	case "/state":
		var nodes, memory []string
		for i := range f.nodes {
			nodes, memory = append(nodes, fmt.Sprintf("%q", fmt.Sprint("N", i))), append(memory, fmt.Sprintf(`"N%d":{}`, i))
		}
		instances := ""
		if f.placed {
			instances = `"sparkrun":` + instance
		}
		fmt.Fprintf(w, `{"topology":{"nodes":[%s]},"nodeMemory":{%s},"instances":{%s},"runners":{"r":{%q:{}}}}`, strings.Join(nodes, ","), strings.Join(memory, ","), instances, f.runner)
	case "/instance/placement":
		if f.asked = r.URL.Query(); f.refuses != "" {
			http.Error(w, f.refuses, http.StatusBadRequest)
			return
		}
		fmt.Fprint(w, instance)
	case "/instance":
		var body struct {
			Instance map[string]struct{ InstanceID string }
		}
		f.placed = json.NewDecoder(r.Body).Decode(&body) == nil && body.Instance["MlxRingInstance"].InstanceID == "sparkrun"
		f.posts++
	case "/dies":
		panic(http.ErrAbortHandler)
	default:
		fmt.Fprint(w, "exo's own answer at "+r.URL.Path)
	}
}

func (f *fakeExo) change(how func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	how()
}

// before runs a gateway before a fake; ended gives its error.
func before(t *testing.T, f *fakeExo, model string) (base string, ended <-chan error) {
	t.Helper()
	type conn struct{}
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Context().Value(conn{}).(*atomic.Int32).Add(1) > 1 { // as exo closes a connection that was idle for 5 s
			panic(http.ErrAbortHandler)
		}
		f.ServeHTTP(w, r)
	}))
	api.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, conn{}, new(atomic.Int32))
	}
	api.Start()
	t.Cleanup(api.Close)
	at, err := url.Parse(api.URL)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{api: *at, nodes: 1, sharding: Tensor, model: model, client: http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, out: io.Discard, every: time.Millisecond, slow: time.Millisecond}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	finished := make(chan struct{})
	go func() { done <- g.run(ctx, l); close(finished) }()
	t.Cleanup(func() { stop(); <-finished })
	return "http://" + l.Addr().String(), done
}

// until asks for a path until what comes back pleases.
func until(t *testing.T, url string, pleases func(status int, body string) bool) {
	t.Helper()
	var status int
	var body string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		res, err := http.Get(url)
		if err != nil {
			continue
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if status, body = res.StatusCode, string(b); pleases(status, body) {
			return
		}
	}
	t.Fatalf("%s: still %d: %s", url, status, body)
}

func TestGatewayPlaces(t *testing.T) {
	f := &fakeExo{runner: "RunnerLoading"}
	base, _ := before(t, f, "org/m")
	waits := func(want string) func(int, string) bool {
		return func(status int, body string) bool {
			return status == http.StatusServiceUnavailable && strings.Contains(body, want)
		}
	}
	well := func(status int, _ string) bool { return status == http.StatusOK }
	until(t, base+"/health", waits("0 of 1 machines have found each other"))
	f.change(func() { f.nodes = 1 })
	until(t, base+"/health", waits("N0: loads the model"))
	f.change(func() {
		if want := "instance_meta=MlxRing&min_nodes=1&model_id=org%2Fm&sharding=Tensor"; f.asked.Encode() != want || f.posts != 1 {
			t.Errorf("placed %d times, asked for %s, want %s", f.posts, f.asked.Encode(), want)
		}
		f.runner = "RunnerReady"
	})
	until(t, base+"/health", well)
	until(t, base+"/v1/models", func(_ int, body string) bool { return body == "exo's own answer at /v1/models" })

	// exo takes the model away, and will not have it for a while: nothing ends.
	f.change(func() { f.placed, f.refuses = false, `{"error":{"message":"no memory"}}` })
	until(t, base+"/health", waits("exo does not take the model org/m: no memory"))
	for range 2 * maxRefusals {
		f.change(func() { f.asked = nil })
		until(t, base+"/health", func(int, string) bool { f.mu.Lock(); defer f.mu.Unlock(); return f.asked != nil })
	}
	f.change(func() { f.refuses = "" })
	until(t, base+"/health", well)
}

func TestGatewayIsRefused(t *testing.T) {
	_, ended := before(t, &fakeExo{nodes: 1, refuses: `{"error":{"message":"No cycles found with sufficient memory"}}`}, "org/m")
	if err := <-ended; err == nil || err.Error() != "exo does not take the model org/m: No cycles found with sufficient memory" {
		t.Error(err)
	}
}

// A part that fails again and again has exo take the model away: that is no reason to place it for ever, nor once it
// was ready. What failed before it was ready again counts no more.
func TestGatewayIsGivenUp(t *testing.T) {
	for name, states := range map[string][]string{"at once": {"RunnerFailed"}, "later": {"RunnerReady", "RunnerFailed"}, "once more": {"RunnerReady", "RunnerFailed", "RunnerReady", "", "RunnerReady", "RunnerFailed"}} {
		t.Run(name, func(t *testing.T) {
			f := &fakeExo{nodes: 1}
			base, ended := before(t, f, "org/m")
			posts := 1
			for _, s := range states {
				if s == "" { // a machine was silent for a while
					posts++
					f.change(func() { f.placed = false })
					until(t, base+"/health", func(int, string) bool { f.mu.Lock(); defer f.mu.Unlock(); return f.placed })
					continue
				}
				f.change(func() { f.runner = s })
				until(t, base+"/health", func(status int, body string) bool {
					return s == "RunnerReady" && status == http.StatusOK || s == "RunnerFailed" && strings.Contains(body, "N0: failed")
				})
			}
			f.change(func() { f.placed = false })
			select {
			case err := <-ended:
				if f.change(func() {}); err == nil || err.Error() != "exo has given the model org/m up: N0: failed: " || f.posts != posts {
					t.Errorf("placed %d times, want %d: %v", f.posts, posts, err)
				}
			case <-time.After(time.Minute):
				t.Error("it goes on")
			}
		})
	}
}

func TestGatewayWithoutModel(t *testing.T) {
	f := &fakeExo{nodes: 1}
	base, _ := before(t, f, "")
	until(t, base+"/health", func(status int, _ string) bool { return status == http.StatusOK })
	if f.change(func() {}); f.posts != 0 {
		t.Error("it places what nobody named")
	}
}

// A request does not meet the end of an earlier one's connection; what does not answer is told in a form that clients read.
func TestGatewayHandsOn(t *testing.T) {
	f := &fakeExo{nodes: 1}
	base, _ := before(t, f, "")
	post := func(path string) (status int, kind, body string) {
		t.Helper()
		res, err := http.Post(base+path, "application/json", strings.NewReader(`{"stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, res.Header.Get("Content-Type"), string(b)
	}
	for range 5 {
		if status, _, body := post("/v1/chat/completions"); status != http.StatusOK || body != "exo's own answer at /v1/chat/completions" {
			t.Fatalf("%d: %s", status, body)
		}
	}
	if status, kind, body := post("/dies"); status != http.StatusBadGateway || kind != "application/json" || body != `{"error":"exo's API does not answer"}`+"\n" {
		t.Errorf("%d, %s: %s", status, kind, body)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	w := httptest.NewRecorder()
	if unanswered(w, httptest.NewRequestWithContext(gone, http.MethodPost, "/", nil), gone.Err()); w.Body.Len() > 0 || w.Code != http.StatusOK {
		t.Errorf("a client that has gone: %d, %s", w.Code, w.Body)
	}
}
