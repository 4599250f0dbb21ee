package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestStreamsPassAtOnce: each event is with the client before the engine says the next.
func TestStreamsPassAtOnce(t *testing.T) {
	next := make(chan struct{})
	w := newWorld(t, viewOf(engine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 5 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
			<-next
		}
		io.WriteString(w, `data: {"usage":{"prompt_tokens":3,"completion_tokens":40}}`+"\n\n")
	}, "m")))
	res, err := w.do(t.Context(), "POST", chatPath, strings.NewReader(`{"model":"m","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	in := bufio.NewReader(res.Body)
	for i := range 5 {
		line, err := in.ReadString('\n')
		if want := fmt.Sprintf("data: %d\n", i); line != want || err != nil {
			t.Fatalf("%q %v, want %q", line, err, want)
		}
		in.ReadString('\n')
		next <- struct{}{}
	}
	io.Copy(io.Discard, in)
	w.until("counted", func() bool {
		c := w.g.Counts()[0]
		return c.TokensIn == 3 && c.TokensOut == 40 && c.Requests == 1 && c.UnderWay == 0 && c.Errors == 0 &&
			c.FirstByte.Count == 1
	})
}

// until waits for what another goroutine does.
func (w *world) until(what string, is func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !is(); {
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: not within 10 s: %+v", what, w.g.Counts())
		}
		time.Sleep(time.Millisecond)
	}
}

// TestEngineDies: what had begun ends with an error that clients raise, after whole events only, and is not complete.
func TestEngineDies(t *testing.T) {
	for _, tt := range []struct {
		path, kind, says, want string
	}{
		{chatPath, "text/event-stream", "data: 1\n\ndata: {\"half",
			"data: 1\n\ndata: {\"error\":{\"message\":\"the engine of model m broke off"},
		{chatPath, "text/event-stream", "", "data: {\"error\":"},
		{"/v1/messages", "text/event-stream", "event: a\r\ndata: 1\r\n\r\nevent",
			"event: a\r\ndata: 1\r\n\r\nevent: error\ndata: {\"type\":\"error\""},
		{chatPath, "application/json", `{"half":`, `{"half":`},
	} {
		w := newWorld(t, viewOf(engine(t, "a", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", tt.kind)
			io.WriteString(w, tt.says)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, "m")))
		res, err := w.do(t.Context(), "POST", tt.path, strings.NewReader(`{"model":"m","stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if !strings.HasPrefix(string(b), tt.want) || err == nil {
			t.Errorf("%s: %q, %v; want %q and a broken connection", tt.path, b, err, tt.want)
		}
		w.until("counted", func() bool {
			c := w.g.Counts()[0]
			return c.UnderWay == 0 && c.Errors == 1
		})
		log := w.log.String()
		if wantHas(t, "log", log, `level=WARN msg="engine broke off" job=a `); strings.Contains(log, "ReverseProxy") {
			t.Errorf("it is told twice: %s", log)
		}
	}
}

// TestClientGoes: its engine learns it at once, streaming or not.
func TestClientGoes(t *testing.T) {
	for _, kind := range []string{"text/event-stream", "application/json"} {
		begun, gone := make(chan struct{}), make(chan struct{})
		w := newWorld(t, viewOf(engine(t, "a", func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			if kind == "text/event-stream" {
				w.Header().Set("Content-Type", kind)
				w.(http.Flusher).Flush()
			}
			close(begun)
			<-r.Context().Done()
			close(gone)
		}, "m")))
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-begun
			cancel()
		}()
		if res, err := w.do(ctx, "POST", "/v1/completions", strings.NewReader(`{"model":"m"}`)); err == nil {
			io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		select {
		case <-gone:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: the engine works on", kind)
		}
		w.until("counted", func() bool { c := w.g.Counts()[0]; return c.UnderWay == 0 && c.Errors == 0 })
		if log := w.log.String(); strings.Contains(log, "broke") || strings.Contains(log, "ReverseProxy") {
			t.Errorf("%s: the engine is blamed: %s", kind, log)
		}
	}
}

// TestPathsThatAnEngineLacks: of those engines say so little that a client would look for a mistake of its own; what
// else they answer with 404 passes as it is.
func TestPathsThatAnEngineLacks(t *testing.T) {
	const ours = "the engine of model m (job a on spark2) does not take POST "
	for _, tt := range []struct {
		path   string
		status int
		says   string
		want   string
	}{
		{"/v1/embeddings", 404, `{"detail":"Not Found"}`, `{"error":{"message":"` + ours + "/v1/embeddings: "},
		{"/v1/messages", 404, `{"error":{"message":"File Not Found","type":"not_found_error","code":404}}`,
			`{"type":"error","error":{"type":"not_found_error","message":"` + ours + "/v1/messages: "},
		{"/v1/rerank", 405, `{"detail":"Method Not Allowed"}`, ours},
		{"/v1/score", 404, "404 page not found\n", ours},
		{"/v1/score", 404, "", ours},
		{chatPath, 404, `{"error":{"message":"The model x does not exist.","code":404}}`, `{"error":{"message":"The model`},
		{chatPath, 501, `{"error":{"message":"Not Found"}}`, `{"error":{"message":"Not Found"}}`},
	} {
		w := newWorld(t, viewOf(engine(t, "a", func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(tt.status)
			io.WriteString(w, tt.says)
		}, "m")))
		if got := w.ask("POST", tt.path, `{"model":"m"}`); got.status != tt.status || !strings.Contains(got.body, tt.want) {
			t.Errorf("%s, %s: %d %s; want %d and %q", tt.path, tt.says, got.status, got.body, tt.status, tt.want)
		}
		w.until("counted", func() bool { c := w.g.Counts()[0]; return c.UnderWay == 0 && c.Errors == 1 })
	}
}

// TestEnginesThatLie: whatever comes of a socket, the client is told of it, and the gateway goes on.
func TestEnginesThatLie(t *testing.T) {
	for _, tt := range []struct {
		says   string
		status int // 0: the connection breaks
		want   string
	}{
		{"", 502, "gave no answer"},
		{"SSH-2.0-OpenSSH\r\n", 502, "gave no answer"},
		{"HTTP/1.1 200 OK\r\n" + strings.Repeat("X: "+strings.Repeat("y", 1000)+"\r\n", 100) + "\r\n", 502,
			"gave no answer"},
		{"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", 502, "gave no answer"},
		{"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}", 0, ""},
		{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n\r\n", 200, "{}"},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 0, ""},
		{"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", 502, "gave no answer"},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					io.Copy(io.Discard, r.Body)
				}
				io.WriteString(c, tt.says)
				c.Close()
			}
		}()
		w := newWorld(t, viewOf(at("a", l.Addr().String(), "m")))
		res, err := w.do(t.Context(), "POST", chatPath, strings.NewReader(`{"model":"m"}`))
		if err == nil {
			var b []byte
			b, err = io.ReadAll(res.Body)
			res.Body.Close()
			if tt.status != 0 && (res.StatusCode != tt.status || err != nil || !strings.Contains(string(b), tt.want)) {
				t.Errorf("%.40q: %d %s %v, want %d %s", tt.says, res.StatusCode, b, err, tt.status, tt.want)
			}
		}
		if (err != nil) != (tt.status == 0) {
			t.Errorf("%.40q: %v", tt.says, err)
		}
		l.Close()
		<-done
	}
}

func TestReplicasShare(t *testing.T) {
	hold := make(chan struct{})
	slow := func(word string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if b, _ := io.ReadAll(r.Body); strings.Contains(string(b), "hold") {
				<-hold
			}
			io.WriteString(w, word)
		}
	}
	w := newWorld(t, viewOf(engine(t, "a", slow("A"), "m"), engine(t, "b", slow("B"), "m"),
		engine(t, "c", slow("C"), "m")))
	held := make(chan got, 2)
	for i := range 2 { // on two of them, one at a time
		go func() { held <- w.chat(`{"model":"m","p":"hold"}`) }()
		w.until("under way", func() bool { c := w.g.Counts(); return len(c) > 0 && c[0].UnderWay == int64(i+1) })
		w.until("sent", func() bool {
			n := int64(0)
			for _, b := range w.g.index.Load().models["m"] {
				n += b.load.underWay.Load()
			}
			return n == int64(i+1)
		})
	}
	free := w.chat(`{"model":"m"}`).body
	for range 5 {
		if got := w.chat(`{"model":"m"}`).body; got != free {
			t.Errorf("sent to %s, while only %s has nothing under way", got, free)
		}
	}
	close(hold)
	busy := []string{(<-held).body, (<-held).body, free}
	if slices.Sort(busy); !slices.Equal(busy, []string{"A", "B", "C"}) {
		t.Errorf("went to %v", busy)
	}
}

// TestSessionsStay: a conversation stays with an engine, few move when another goes, and none waits for a busy one.
func TestSessionsStay(t *testing.T) {
	v := viewOf(engine(t, "a", named("A"), "m"), engine(t, "b", named("B"), "m"), engine(t, "c", named("C"), "m"))
	w := newWorld(t, v)
	place, all := map[string]string{}, map[string]int{}
	for i := range 30 {
		user := fmt.Sprint("user", i)
		for _, body := range []string{
			fmt.Sprintf(`{"model":"m","user":%q}`, user), fmt.Sprintf(`{"user":"x","model":"m","prompt_cache_key":%q}`, user),
		} {
			got := w.chat(body).body
			if place[user] == "" {
				place[user] = got
				all[got]++
			}
			if place[user] != got {
				t.Errorf("%s went from %s to %s", user, place[user], got)
			}
		}
		if got := w.chat(`{"model":"m"}`, "X-Session-Id: "+user).body; got != place[user] {
			t.Errorf("%s by its header went from %s to %s", user, place[user], got)
		}
	}
	if len(all) != 3 {
		t.Errorf("sessions are at %v", all)
	}
	w.becomes(func(v *View) { v.Backends = v.Backends[:2] })
	w.until("map", func() bool { return len(w.g.index.Load().Backends) == 2 })
	for user, was := range place {
		if got := w.chat(fmt.Sprintf(`{"model":"m","user":%q}`, user)).body; got != was && was != "C" {
			t.Errorf("%s went from %s to %s, as C ended", user, was, got)
		}
	}
	w.g.index.Load().models["m"][0].load.underWay.Add(100)
	for user := range place {
		if got := w.chat(fmt.Sprintf(`{"model":"m","user":%q}`, user)).body; got != "B" {
			t.Errorf("%s went to the busy one", user)
		}
	}
}

func TestEarlierAnswers(t *testing.T) {
	give := func(job, form string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			switch {
			case r.Method != "POST":
				fmt.Fprint(w, job, r.Method, r.URL.Path)
			case form == "stream":
				w.Header().Set("Content-Type", "text/event-stream")
				fmt.Fprintf(w, "event: response.created\ndata: {\"response\":{\"id\":\"resp_%s\"}}\n\n", job)
			default:
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"id": "resp_%s", "job":%q}`, job, job)
			}
		}
	}
	w := newWorld(t, viewOf(engine(t, "a", give("a", "stream"), "m"), engine(t, "b", give("b", ""), "m")))
	for range 4 {
		w.ask("POST", "/v1/responses", `{"model":"m"}`)
	}
	w.until("noted", func() bool { return w.g.pins.find("resp_a") != nil && w.g.pins.find("resp_b") != nil })
	for range 4 {
		for _, job := range []string{"a", "b"} {
			got := w.ask("POST", "/v1/responses",
				fmt.Sprintf(`{"input":"x","model":"m","previous_response_id":"resp_%s"}`, job))
			wantHas(t, job, got.body, "resp_"+job)
			if got := w.ask("GET", "/v1/responses/resp_"+job, ""); got.body != job+"GET/v1/responses/resp_"+job {
				t.Errorf("get %s: %s", job, got.body)
			}
		}
	}
	if got := w.ask("POST", "/v1/responses", `{"model":"m","previous_response_id":"resp_x"}`); got.status != 404 {
		t.Errorf("not known: %d %s", got.status, got.body)
	} else {
		wantHas(t, "not known", got.body, "resp_x", "without previous_response_id")
	}
	if got := w.ask("GET", "/v1/responses/resp_x", ""); got.status != 404 {
		t.Errorf("get of what is not known: %d %s", got.status, got.body)
	}
	w.becomes(func(v *View) { v.Backends[0].Generation = 2 })
	w.until("map", func() bool { return w.g.index.Load().Backends[0].Generation == 2 })
	if got := w.ask("GET", "/v1/responses/resp_a", ""); got.status != 404 || !strings.Contains(got.body, "started anew") {
		t.Errorf("of an engine that was started anew: %d %s", got.status, got.body)
	}
}
