package wire

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// faceOf answers a request as the socket does.
func faceOf(s *Server, c Caller, method, path, body string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://sparkrun"+path, strings.NewReader(body))
	for _, fn := range change {
		fn(r)
	}
	w := httptest.NewRecorder()
	s.Users().ServeHTTP(w, r.WithContext(WithCaller(r.Context(), c)))
	return w
}

func TestFace(t *testing.T) {
	var stopped StopRequest
	s := serverOf(
		ShowStatus.Serve(func(_ context.Context, _ Caller, r StatusRequest) (Status, error) {
			return Status{Self: "spark1 & co", Nodes: []NodeStatus{{Host: "spark1"}}}, nil
		}),
		Stop.Serve(func(_ context.Context, c Caller, r StopRequest) (StopResponse, error) {
			stopped = r
			if r.Job == "other" {
				return StopResponse{}, rendezvous.ErrNoJob
			}
			return StopResponse{Job: launcher.JobID(r.Job)}, nil
		}),
		Watch.Serve(func(_ context.Context, _ Caller, r JobRequest, send func(rendezvous.Progress) error) error {
			if r.Job == "none" {
				return rendezvous.ErrNoJob
			}
			for range 2 {
				if err := send(rendezvous.Progress{Step: rendezvous.StepRunning}); err != nil {
					return err
				}
			}
			if r.Job == "lost" {
				return ErrRetry
			}
			return nil
		}),
		Jobs.Serve(func(context.Context, Caller, JobsRequest) (JobsResponse, error) {
			return JobsResponse{Jobs: make([]rendezvous.JobStatus, 1), Problem: "no leader"}, nil
		}),
		Launch.Serve(func(context.Context, Caller, LaunchRequest, func(rendezvous.Progress) error) error { return nil }),
		Exec.Serve(func(context.Context, Caller, ExecRequest, func(ExecChunk) error) error { return nil }),
		ExecReach.Serve(func(context.Context, Caller, ExecReachRequest) (Empty, error) { return Empty{}, nil }),
		Input.Serve(func(context.Context, Caller, InputRequest) (Empty, error) { return Empty{}, nil }),
		Signal.Serve(func(context.Context, Caller, SignalRequest) (Empty, error) { return Empty{}, nil }),
	)
	host := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	tests := map[string]struct {
		method, path, body string
		change             func(*http.Request)
		status             int
		want               string // in what is answered
	}{
		"a question without a request":  {"GET", "/v1/status", "", nil, 200, "\n  \"self\": \"spark1 & co\",\n"},
		"a POST of nothing":             {"POST", "/v1/status", "", nil, 200, "spark1"},
		"a request":                     {"POST", "/v1/stop", `{"job":"train","grace":"1m30s"}`, nil, 200, `"job": "train"`},
		"a duration without a unit":     {"POST", "/v1/stop", `{"job":"train","grace":3}`, nil, 400, `grace: want a duration like \"90s\"`},
		"an error":                      {"POST", "/v1/stop", `{"job":"other"}`, nil, 404, `"code":"no-job"`},
		"a GET of what does something":  {"GET", "/v1/stop", "", nil, 405, "POST"},
		"another method":                {"PUT", "/v1/status", "", nil, 405, "POST"},
		"an unknown field":              {"POST", "/v1/stop", `{"job":"train","grase":"1s"}`, nil, 400, `\"grase\"`},
		"a field in other letters":      {"POST", "/v1/stop", `{"Job":"train"}`, nil, 400, `\"Job\"`},
		"an unknown field further down": {"POST", "/v1/input", `{"job":"x","window":{"hight":3}}`, nil, 400, `\"window.hight\"`},
		"no duration":                   {"POST", "/v1/stop", `{"job":"train","grace":"soon"}`, nil, 400, "grace: want a duration"},
		"a number for text":             {"POST", "/v1/stop", `{"job":7}`, nil, 400, "job: want a string"},
		"a list for the request":        {"POST", "/v1/stop", `[]`, nil, 400, "request: want an object"},
		"text for a list":               {"POST", "/v1/launch", `{"spec":{"stages":[{"argv":["hostname"]}]}}`, nil, 400, "spec.stages[0].argv[0]: want a list"},
		"a fraction":                    {"POST", "/v1/launch", `{"spec":{"nodes":1.5}}`, nil, 400, "spec.nodes: want a whole number"},
		"text for a bool":               {"POST", "/v1/launch", `{"spec":{"wait":"yes"}}`, nil, 400, "spec.wait: want true or false"},
		"a bare port":                   {"POST", "/v1/launch", `{"spec":{"publish":[80]}}`, nil, 400, `spec.publish[0]: want a port or a range of ports, like \"8000\"`},
		"no time":                       {"POST", "/v1/launch", `{"spec":{"submitted":"now"}}`, nil, 400, "spec.submitted: want a time like"},
		"no base64":                     {"POST", "/v1/input", `{"job":"x","data":"?"}`, nil, 400, "data: want a string in base64"},
		"a null":                        {"POST", "/v1/watch", `{"job":null}`, nil, 200, "running"},
		"a query string":                {"GET", "/v1/status?wait_nodes=9", "", nil, 400, "a query string is not read"},
		"no JSON":                       {"POST", "/v1/stop", `{"job":`, nil, 400, "invalid"},
		"something behind":              {"POST", "/v1/stop", `{"job":"train"}{}`, nil, 400, "behind"},
		"no UTF-8":                      {"POST", "/v1/stop", "{\"job\":\"\xff\"}", nil, 400, "UTF-8"},
		"too long":                      {"POST", "/v1/stop", `{"job":"` + strings.Repeat("x", maxMessage) + `"}`, nil, 400, "more than"},
		"another host":                  {"GET", "/v1/status", "", host("localhost:8080"), 421, "http://sparkrun/v1/status"},
		"a stream":                      {"POST", "/v1/watch", `{"job":"train"}`, nil, 200, "{\"step\":\"running\",\"time\":\"0001-01-01T00:00:00Z\",\"job\":\"\"}\n"},
		"a stream that fails at once":   {"POST", "/v1/watch", `{"job":"none"}`, nil, 404, `"code":"no-job"`},
		"a stream that fails later":     {"POST", "/v1/watch", `{"job":"lost"}`, nil, 200, "\n{\"error\":{\"code\":\"retry\",\"message\":\"try again\"}}\n"},
		"a reply without content":       {"POST", "/v1/signal", `{"job":"train","signal":15}`, nil, 200, "{}"},
		"jobs, as ps --json":            {"GET", "/v1/jobs", "", nil, 200, "\n    \"no_leader\": true,\n"},
		"no such call":                  {"GET", "/v1/dance", "", nil, 404, "{\"code\":\"no-call\",\"message\":\"/v1/dance: no such call: `sparkrun help api` lists the calls\"}"},
		"a path below a call":           {"GET", "/v1/jobs/", "", nil, 404, `"code":"no-call"`},
		"a call of members":             {"POST", "/members/keep-ca", "{}", nil, 404, `"code":"no-call"`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			change := func(*http.Request) {}
			if tt.change != nil {
				change = tt.change
			}
			w := faceOf(s, alice, tt.method, tt.path, tt.body, change)
			if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.want) {
				t.Errorf("%d: %.300s", w.Code, w.Body)
			}
			if tt.path == "/v1/stop" && tt.status == 200 && (stopped.Grace == nil || *stopped.Grace != 90*time.Second) {
				t.Errorf("stopped with %+v", stopped)
			}
		})
	}
	// The commands come by the same check.
	below := -time.Second
	if _, err := Stop.Call(t.Context(), s.As(alice), StopRequest{Job: "train", Grace: &below}); !errors.Is(err, launcher.ErrInvalid) {
		t.Errorf("a command's grace below zero: %v", err)
	}
	// The same rights.
	if w := faceOf(s, Caller{}, "GET", "/v1/status", ""); w.Code != 403 || !strings.Contains(w.Body.String(), `"code":"denied"`) {
		t.Errorf("nobody: %d %s", w.Code, w.Body)
	}
	book := Caller{User: alice.User, Client: &RemoteClient{ID: "c1"}}
	if w := faceOf(s, book, "POST", "/v1/token", "{}"); w.Code != 403 {
		t.Errorf("a client's token: %d %s", w.Code, w.Body)
	}
	// Members' calls are not for curl, not even with a member's certificate.
	r := httptest.NewRequest(http.MethodPost, "http://sparkrun/members/keep-ca", strings.NewReader("{}"))
	w := httptest.NewRecorder()
	keep := NewServer(ServerConfig{}, KeepCA.Serve(func(context.Context, Caller, CAKey) (Empty, error) { return Empty{}, nil }))
	keep.ServeHTTP(w, r.WithContext(WithCaller(r.Context(), spark2)))
	if w.Code != http.StatusUnsupportedMediaType {
		t.Errorf("a member's call in JSON: %d %s", w.Code, w.Body)
	}
}

// Every request that users make can be written in JSON and read back.
func TestFaceKeepsEveryField(t *testing.T) {
	for path, row := range rows {
		if !row.ForUsers() {
			continue
		}
		want := fullOf(row.newReq())
		b, err := json.Marshal(spelled(t, reflect.ValueOf(want)))
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		got := row.newReq()
		if err := fromFace(b, got); err != nil {
			t.Errorf("%s: %v", path, err)
		} else if d := diff(want, got); d != "" {
			t.Errorf("%s: %s", path, d)
		}
	}
}

// spelled is a request as JSON has it, with durations as users write them.
func spelled(t *testing.T, v reflect.Value) any {
	t.Helper()
	if v.Kind() == reflect.Pointer {
		return spelled(t, v.Elem())
	}
	switch {
	case v.Type() == reflect.TypeFor[time.Duration]():
		return time.Duration(v.Int()).String()
	case readsItself(v.Type()), v.Type() == reflect.TypeFor[[]byte]():
	case v.Kind() == reflect.Struct:
		object := map[string]any{}
		for name, f := range FieldsOf(v.Type()) {
			object[name] = spelled(t, v.FieldByIndex(f.Index))
		}
		return object
	case v.Kind() == reflect.Slice:
		list := []any{}
		for _, x := range v.Seq2() {
			list = append(list, spelled(t, x))
		}
		return list
	}
	return v.Interface()
}

// Forwarding: once, on the caller's behalf; nobody's second hop; and the loss of the leader says: try again.
func TestForwardOnce(t *testing.T) {
	var asked []Caller
	var give error
	led := serverOf(Stop.Serve(func(_ context.Context, c Caller, r StopRequest) (StopResponse, error) {
		asked = append(asked, c)
		return StopResponse{Job: launcher.JobID(r.Job)}, give
	}), Watch.Serve(func(ctx context.Context, _ Caller, _ JobRequest, send func(rendezvous.Progress) error) error {
		if err := send(rendezvous.Progress{}); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}))
	moved := make(chan struct{})
	to := Leader{Host: "spark2", Client: serveBy(t, Caller{Node: "id1", Host: "spark1"}, led), Gone: func(ctx context.Context) {
		select {
		case <-moved:
		case <-ctx.Done():
		}
	}}
	var audits []string
	var noLeader error
	leads := NewToLeader(ToLeaderConfig{Host: "spark1", Leader: func() (Leader, error) { return to, noLeader }})
	s := NewServer(ServerConfig{Leader: leads,
		Audit: func(what string, c Caller, on string, err error) { audits = append(audits, what+" "+on) }})
	ask := func(c Caller) error {
		_, err := Stop.Call(t.Context(), s.As(c), StopRequest{Job: "train"})
		return err
	}
	if err := ask(alice); err != nil || len(asked) != 1 || !asked[0].Forwarded() || asked[0].User.Name != "alice" || asked[0].Host != "spark1" {
		t.Errorf("forwarded: %v, asked by %+v", err, asked)
	}
	if err := ask(Caller{Node: "id3", Host: "spark3", User: alice.User}); !errors.Is(err, ErrRetry) || len(asked) != 1 {
		t.Errorf("a second hop: %v, asked by %+v", err, asked)
	}
	give = rendezvous.ErrNoJob
	if err := ask(alice); !errors.Is(err, rendezvous.ErrNoJob) {
		t.Errorf("the leader's no: %v", err)
	}
	if d := diff([]string{"stop train", "stop train", "stop train"}, audits); d != "" {
		t.Error(d)
	}
	err := Watch.Call(t.Context(), s.As(alice), JobRequest{}, func(rendezvous.Progress) error { close(moved); return nil })
	if !errors.Is(err, ErrRetry) || !strings.Contains(err.Error(), "spark2 no longer leads") {
		t.Errorf("the leadership moved: %v", err)
	}
	to.Gone = func(ctx context.Context) { <-ctx.Done() }
	to.Client = NewClient(&http.Client{Transport: broken{}}, "http://node")
	if err := ask(alice); !errors.Is(err, ErrRetry) || !errors.Is(err, ErrUnreachable) {
		t.Errorf("the leader is gone: %v", err)
	}
	noLeader = ErrNoLeader
	if err := ask(alice); !errors.Is(err, ErrNoLeader) {
		t.Errorf("no leader: %v", err)
	}
	// A leadership answers itself, until it ends.
	end := leads.Lead(Stop.Serve(func(context.Context, Caller, StopRequest) (StopResponse, error) { return StopResponse{}, io.EOF }))
	if err := ask(alice); !errors.Is(err, io.EOF) {
		t.Errorf("this node leads: %v", err)
	}
	end()
	if err := ask(alice); !errors.Is(err, ErrNoLeader) {
		t.Errorf("it has led: %v", err)
	}
}

type broken struct{}

func (broken) RoundTrip(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }

// What the caller's own node has around the leader's answer is asked there alone.
func TestAround(t *testing.T) {
	around := 0
	leads := NewToLeader(ToLeaderConfig{Host: "spark1", Leader: func() (Leader, error) { return Leader{}, ErrNoLeader }})
	s := NewServer(ServerConfig{Leader: leads},
		Jobs.Around(func(ctx context.Context, _ Caller, r JobsRequest, ask Ask[JobsRequest, JobsResponse]) (JobsResponse, error) {
			around++
			res, err := ask(ctx, r)
			if errors.Is(err, ErrNoLeader) {
				return JobsResponse{Problem: err.Error()}, nil
			}
			return res, err
		}))
	if res, err := Jobs.Call(t.Context(), s.As(alice), JobsRequest{}); err != nil || res.Problem == "" || around != 1 {
		t.Errorf("without a leader: %+v, %v, %d", res, err, around)
	}
	passedOn := Caller{Node: "id3", User: alice.User}
	if _, err := Jobs.Call(t.Context(), s.As(passedOn), JobsRequest{}); !errors.Is(err, ErrRetry) || around != 1 {
		t.Errorf("passed on: %v, %d", err, around)
	}
	defer leads.Lead(Jobs.Serve(func(context.Context, Caller, JobsRequest) (JobsResponse, error) {
		return JobsResponse{Problem: "mine"}, nil
	}))()
	if res, err := Jobs.Call(t.Context(), s.As(passedOn), JobsRequest{}); err != nil || res.Problem != "mine" || around != 1 {
		t.Errorf("leading, passed on: %+v, %v, %d", res, err, around)
	}
	if res, err := Jobs.Call(t.Context(), s.As(alice), JobsRequest{}); err != nil || res.Problem != "mine" || around != 2 {
		t.Errorf("leading: %+v, %v, %d", res, err, around)
	}
}

// A stream that ends without a last word was cut, at whatever byte.
func TestCutStream(t *testing.T) {
	whole := httptest.NewRecorder()
	r := reply{w: whole, streams: true}
	for range 2 {
		if err := r.send(&LogChunk{Data: []byte("abc")}); err != nil {
			t.Fatal(err)
		}
	}
	r.end(nil)
	all := whole.Body.String()
	for n := range len(all) {
		from := frames{from: strings.NewReader(all[:n])}
		var err error
		for err == nil {
			err = from.next(new(LogChunk))
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut after %d of %d bytes: %v", n, len(all), err)
		}
	}
	from := frames{from: strings.NewReader(all)}
	var c LogChunk
	for i, want := range []error{nil, nil, io.EOF} {
		if err := from.next(&c); !errors.Is(err, want) {
			t.Errorf("frame %d of a whole stream: %v, want %v", i, err, want)
		}
	}
	huge := frames{from: strings.NewReader("m\xff\xff\xff\xff")}
	if err := huge.next(&c); err == nil || !strings.Contains(err.Error(), "are the most") {
		t.Errorf("a huge frame: %v", err)
	}
}

// A pull that was refused while the Hub was asked is recorded as refused; one that failed later, as begun.
func TestAuditOfPull(t *testing.T) {
	var audits []error
	first := ModelProgress{Asks: "hub"}
	s := NewServer(ServerConfig{Audit: func(_ string, _ Caller, _ string, err error) { audits = append(audits, err) }},
		ModelPull.Serve(func(_ context.Context, _ Caller, _ ModelPullRequest, send func(ModelProgress) error) error {
			return errors.Join(send(first), ErrDenied)
		}))
	for range 2 {
		err := ModelPull.Call(t.Context(), s.As(alice), ModelPullRequest{}, func(ModelProgress) error { return nil })
		if err == nil {
			t.Error("want the refusal")
		}
		first = ModelProgress{Plan: &ModelPlan{}}
	}
	if len(audits) != 2 || !errors.Is(audits[0], ErrDenied) || audits[1] != nil {
		t.Errorf("recorded: %v", audits)
	}
}
