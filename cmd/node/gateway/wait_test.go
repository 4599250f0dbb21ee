package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// fake is a transport: engines in a bubble of synctest have no sockets.
type fake func(*http.Request) (*http.Response, error)

func (f fake) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := f(r)
	if r.Body != nil {
		r.Body.Close()
	}
	return res, err
}

func answers(status int, kind, body string) (*http.Response, error) {
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {kind}}, ContentLength: -1,
		Body: io.NopCloser(strings.NewReader(body)), ProtoMajor: 1, ProtoMinor: 1,
	}, nil
}

// begin gives a request by hand; what has come of the answer is in the recorder once it has ended.
func (w *world) begin(ctx context.Context, path, body string,
	headers ...string) (*httptest.ResponseRecorder, <-chan struct{}) {
	rec, done := httptest.NewRecorder(), make(chan struct{})
	r := httptest.NewRequestWithContext(ctx, "POST", path, strings.NewReader(body))
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil && p != http.ErrAbortHandler {
				panic(p)
			}
		}()
		w.g.ServeHTTP(rec, r)
	}()
	return rec, done
}

func coming(job string, models ...string) rendezvous.Backend {
	b := at(job, "10.0.0.1:8000", models...)
	b.Ready, b.Comes, b.State = false, true, "loading"
	return b
}

func (w *world) becomes(change func(v *View)) {
	v := w.view.Load()
	v.Backends = append([]rendezvous.Backend(nil), v.Backends...)
	change(&v)
	w.view.Store(v)
}

func ready(v *View) { v.Backends[0].Ready, v.Backends[0].Comes = true, false }

func TestWaitsForAServiceThatComes(t *testing.T) {
	for _, tt := range []struct {
		name, path, body string
		after            time.Duration // the service is ready; 0: never
		engine           fake
		took             time.Duration
		status           int
		want             []string
	}{
		{name: "short", path: chatPath, body: `{"model":"a","stream":true}`, after: 4 * time.Second,
			engine: func(*http.Request) (*http.Response, error) { return answers(429, "application/json", `{}`) },
			took:   4 * time.Second, status: 429, want: []string{"{}"}},
		{name: "stream", path: chatPath, body: `{"model":"a","stream":true}`, after: 12 * time.Second,
			engine: func(*http.Request) (*http.Response, error) { return answers(200, "text/event-stream", "data: 1\n\n") },
			took:   12 * time.Second, status: 200,
			want: []string{": waiting for a to start\n\n: waiting for a to start\n\ndata: 1\n\n"}},
		{name: "stream, the engine refuses", path: "/v1/messages", body: `{"model":"a","stream":true}`,
			after: 6 * time.Second,
			engine: func(*http.Request) (*http.Response, error) {
				return answers(400, "application/json", `{"error":{"message":"too long"}}`)
			},
			took: 6 * time.Second, status: 200, want: []string{"event: error\ndata: ", "invalid_request_error", "too long"}},
		{name: "no stream", path: chatPath, body: `{"model":"a"}`, after: 8 * time.Minute,
			engine: func(*http.Request) (*http.Response, error) { return answers(200, "application/json", "{}") },
			took:   8 * time.Minute, status: 200, want: []string{"{}"}},
		{name: "never", path: chatPath, body: `{"model":"a"}`, took: waitMost, status: 503,
			want: []string{"did not become ready"}},
		{name: "never, a stream", path: chatPath, body: `{"model":"a","stream":true}`, took: waitMost, status: 200,
			want: []string{"data: {\"error\"", "did not become ready"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newGateway(t, viewOf(coming("j", "a")))
				w.g.transport = tt.engine
				began := time.Now()
				rec, done := w.begin(t.Context(), tt.path, tt.body)
				if tt.after > 0 {
					time.Sleep(tt.after)
					w.becomes(ready)
				}
				<-done
				if took := time.Since(began); took != tt.took || rec.Code != tt.status {
					t.Errorf("%d after %s: %s; want %d after %s", rec.Code, took, rec.Body, tt.status, tt.took)
				}
				wantHas(t, "answer", rec.Body.String(), tt.want...)
			})
		})
	}
}

func TestWaitingEnds(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(v *View)
		after  time.Duration
		status int
		want   string
	}{
		{"failed", func(v *View) { v.Backends[0].Comes, v.Backends[0].State = false, "failed" }, 0, 503, "has failed"},
		{"stopped", func(v *View) { v.Backends = nil }, 0, 404, "no service serves"},
		{"cut off", func(v *View) { v.Cut, v.Since = true, time.Now() }, cutPatience, 503, "spark1 has been cut off"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newGateway(t, viewOf(coming("j", "a")))
				rec, done := w.begin(t.Context(), chatPath, `{"model":"a"}`)
				time.Sleep(time.Second)
				began := time.Now()
				w.becomes(tt.change)
				<-done
				if took := time.Since(began); rec.Code != tt.status || took != tt.after {
					t.Errorf("%d after %s: %s", rec.Code, took, rec.Body)
				}
				wantHas(t, tt.name, rec.Body.String(), tt.want)
				if c := w.g.Counts()[0]; c.Waiting != 0 || c.UnderWay != 0 || c.Errors != 1 || w.g.lines.all != 0 {
					t.Errorf("counted %+v", c)
				}
			})
		})
	}
	t.Run("client gone", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newGateway(t, viewOf(coming("j", "a")))
			ctx, cancel := context.WithCancel(t.Context())
			_, done := w.begin(ctx, chatPath, `{"model":"a"}`)
			synctest.Wait()
			if c := w.g.Counts()[0]; c.Waiting != 1 {
				t.Errorf("counted %+v", c)
			}
			cancel()
			<-done
			if c := w.g.Counts()[0]; c.Waiting != 0 || c.Errors != 0 {
				t.Errorf("counted %+v", c)
			}
		})
	})
}

func TestWaitingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []rendezvous.Backend
		for i := range 5 {
			all = append(all, coming(fmt.Sprint("j", i), fmt.Sprint("m", i)))
		}
		w := newGateway(t, viewOf(all...))
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		for i := range waitingMost {
			_, done := w.begin(ctx, chatPath, fmt.Sprintf(`{"model":"m%d"}`, i%4))
			group.Go(func() { <-done })
		}
		synctest.Wait()
		for model, want := range map[string]string{"m0": "256 requests wait for it", "m4": "1024 requests wait"} {
			rec, done := w.begin(t.Context(), chatPath, `{"model":"`+model+`"}`)
			<-done
			if rec.Code != 503 || rec.Header().Get("Retry-After") != "30" {
				t.Errorf("%s: %d %v", model, rec.Code, rec.Header())
			}
			wantHas(t, model, rec.Body.String(), want)
		}
		cancel()
		group.Wait()
	})
}

func TestAMemberThatDoesNotKnow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newGateway(t, View{})
		rec, done := w.begin(t.Context(), chatPath, `{"model":"a"}`)
		<-done
		if rec.Code != 503 || rec.Header().Get("Retry-After") != "2" {
			t.Errorf("no map: %d %s", rec.Code, rec.Body)
		}
	})
}

func refused(*http.Request) (*http.Response, error) {
	return nil, unreachedError{&net.OpError{Op: "dial", Err: errors.New("connection refused")}}
}

// TestUnreached: another takes what could not be sent; what none takes waits for the leader's word.
func TestUnreached(t *testing.T) {
	second := at("k", "10.0.0.2:8000", "a")
	for _, tt := range []struct {
		name     string
		backends []rendezvous.Backend
		engine   fake
		change   func(v *View)
		took     time.Duration
		status   int
		want     string
	}{
		{name: "another", backends: []rendezvous.Backend{at("j", "10.0.0.1:8000", "a"), second},
			engine: func(r *http.Request) (*http.Response, error) {
				if r.URL.Host == "10.0.0.1:8000" {
					return refused(r)
				}
				return echoes(r)
			}, status: 200, want: `{"model":"a"}`},
		{name: "none", backends: []rendezvous.Backend{at("j", "10.0.0.1:8000", "a")}, engine: refused,
			took: reachPatience, status: 503, want: "cannot be reached"},
		{name: "it is started anew", backends: []rendezvous.Backend{at("j", "10.0.0.1:8000", "a")},
			engine: func(r *http.Request) (*http.Response, error) {
				if r.URL.Host == "10.0.0.1:8000" {
					return refused(r)
				}
				return echoes(r)
			},
			change: func(v *View) {
				v.Backends[0].Addr, v.Backends[0].Generation = second.Addr, 2
			}, took: 500 * time.Millisecond, status: 200, want: `{"model":"a"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for range 4 { // whichever is asked first
					w := newGateway(t, viewOf(tt.backends...))
					w.g.transport = tt.engine
					w.g.turn.Add(1)
					began := time.Now()
					rec, done := w.begin(t.Context(), chatPath, `{"model":"a"}`)
					if tt.change != nil {
						time.Sleep(tt.took)
						w.becomes(tt.change)
					}
					<-done
					if took := time.Since(began); rec.Code != tt.status || took != tt.took {
						t.Errorf("%d after %s: %s", rec.Code, took, rec.Body)
					}
					wantHas(t, tt.name, rec.Body.String(), tt.want)
				}
			})
		})
	}
}

func echoes(r *http.Request) (*http.Response, error) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	return answers(200, "application/json", string(b))
}

// TestNothingIsSentTwice: whatever becomes of a connection that was made, no engine has a request a second time.
func TestNothingIsSentTwice(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	requests := 0
	var group sync.WaitGroup
	group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				defer c.Close()
				in := bufio.NewReader(c)
				for n := 0; ; n++ {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					io.Copy(io.Discard, r.Body)
					mu.Lock()
					requests++
					mu.Unlock()
					if n == 1 {
						return // as one that dies: each connection answers once
					}
					io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		group.Wait()
	})
	w := newWorld(t, viewOf(at("a", l.Addr().String(), "m"), at("b", l.Addr().String(), "m")))
	good, bad := 0, 0
	for range 10 {
		switch got := w.chat(`{"model":"m"}`, "Idempotency-Key: x"); got.status {
		case 200:
			good++
		case 502:
			bad++
			wantHas(t, "502", got.body, "is sent to no other")
		default:
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if requests != good+bad || bad == 0 {
		t.Errorf("%d answered, %d not, and engines had %d", good, bad, requests)
	}
}
