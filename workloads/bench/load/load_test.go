package load

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/workloads/bench"
)

// pipe is a handler's client, without a network, so that its clock can be synctest's.
type pipe struct{ http.Handler }

func (p pipe) RoundTrip(r *http.Request) (*http.Response, error) {
	out, in := net.Pipe()
	w := &answering{Conn: in, header: http.Header{}, began: make(chan int, 1)}
	go func() {
		p.ServeHTTP(w, r)
		w.WriteHeader(200)
		in.Close()
	}()
	return &http.Response{StatusCode: <-w.began, Status: "status", Body: out, Header: w.header}, nil
}

type answering struct {
	net.Conn
	header http.Header
	began  chan int
	told   bool
}

func (a *answering) Header() http.Header { return a.header }
func (a *answering) WriteHeader(code int) {
	if !a.told {
		a.told = true
		a.began <- code
	}
}

func (a *answering) Write(b []byte) (int, error) {
	a.WriteHeader(200)
	return a.Conn.Write(b)
}

// The first token comes after 100 ms, and four more each 20 ms after the one before. Two at a time, ten requests take
// five times as long as one.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		var prompts sync.Map
		server := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			var asked map[string]any
			text, _ := io.ReadAll(r.Body)
			if json.Unmarshal(text, &asked) != nil || asked["ignore_eos"] != true || asked["max_tokens"] != 9.0 || r.URL.Path != "/v1/completions" {
				t.Errorf("%s: %s", r.URL.Path, text)
			}
			if _, again := prompts.LoadOrStore(strings.Join(strings.Fields(asked["prompt"].(string))[:2], " "), true); again {
				t.Errorf("two prompts begin alike: %s", text)
			}
			io.WriteString(w, ": ping\n\n")
			time.Sleep(100 * time.Millisecond)
			for i := range 5 {
				if i > 0 {
					time.Sleep(20 * time.Millisecond)
				}
				fmt.Fprintf(w, "data: {\"choices\": [{\"text\": \"word%d\"}]}\r\n\r\n", i)
			}
			// A chunk may have two tokens: the server's own count is what counts.
			io.WriteString(w, `data: {"choices": [], "usage": {"prompt_tokens": 30, "completion_tokens": 9}}`+"\n\ndata: [DONE]\n\n")
		})
		got, err := Run(t.Context(), Config{URL: "http://x", Load: bench.Load{Input: 30, Output: 9, Concurrency: 2, Prompts: 10}, Seed: "s",
			Client: &http.Client{Transport: pipe{server}}})
		if err != nil {
			t.Fatal(err)
		}
		want := bench.Outcome{Input: 300, Output: 90, Done: 10, Figures: bench.Served(map[string]float64{"output_throughput": 100,
			"request_throughput": 10 / .9, "total_token_throughput": 390 / .9, "ttft_p50": 100, "ttft_p90": 100, "ttft_p99": 100,
			"tpot_p50": 10, "tpot_p90": 10, "tpot_p99": 10, "itl_p50": 20, "itl_p90": 20, "itl_p99": 20})}
		near := cmp.Comparer(func(a, b float64) bool { return a-b < 1e-6 && b-a < 1e-6 })
		if diff := cmp.Diff(want, got, near); diff != "" {
			t.Error(diff)
		}
		if most.Load() != 2 {
			t.Errorf("%d at a time", most.Load())
		}
	})
}

// A request that fails is counted and told, and the others are measured.
func TestRunTellsOfErrors(t *testing.T) {
	const token = `data: {"choices": [{"delta": {"content": "a"}}]}` + "\n\n"
	for text, want := range map[string]string{
		"":            "the stream ended without a token",
		token:         "the stream broke off",
		"data: {\n\n": "read a chunk",
		"data: " + strings.Repeat("x", longestLine): "bufio.Scanner: token too long",
		`data: {"error": {"message": "x"}}` + "\n":  `the server says {"message": "x"}`,
		"503": "/v1/chat/completions answers status: overloaded",
	} {
		n := 0
		server := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch n++; {
			case n == 1 && text == "503":
				w.WriteHeader(503)
				io.WriteString(w, "overloaded")
			case n == 1:
				io.WriteString(w, text)
			default:
				io.WriteString(w, token+token+"data: [DONE]\n\n")
			}
		})
		got, err := Run(t.Context(), Config{URL: "http://x", Load: bench.Load{API: bench.Chat, Output: 2, Concurrency: 1, Prompts: 3},
			Client: &http.Client{Transport: pipe{server}}})
		if err != nil || got.Failed != 1 || got.Done != 2 || got.Output != 4 || !strings.HasPrefix(got.Problem, want) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

// A role alone is no token, whenever it comes; what a model thinks is, as one that has no text. A null is no error.
func TestFirstToken(t *testing.T) {
	for _, c := range []struct {
		deltas []string
		first  time.Duration
		gaps   int
	}{
		{[]string{`{"role": "assistant", "content": "", "refusal": null, "tool_calls": []}`, `{"content": "a"}`, `{"content": ""}`}, 2, 1},
		{[]string{`{"role": "assistant", "reasoning_content": "hm"}`, `{"content": "a"}`}, 1, 1},
		{[]string{`{"role": "assistant"}`, `{"role": "assistant", "tool_calls": [{}]}`}, 2, 0},
		{[]string{`{"content": ""}`, `{"content": ""}`}, 1, 1},
	} {
		a := answer{}
		for i, d := range c.deltas {
			if err := a.chunk([]byte(`{"error": null, "choices": [{"delta": `+d+`}], "usage": null}`), time.Duration(i+1)); err != nil {
				t.Error(err)
			}
		}
		if a.first != c.first || len(a.between) != c.gaps {
			t.Errorf("%v: first %d, %v", c.deltas, a.first, a.between)
		}
	}
}
