package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// cluster is the record that leaders share, what they see, and the webhook that they call.
type cluster struct {
	t      *testing.T
	record *rendezvous.Record
	index  uint64
	jobs   []rendezvous.JobStatus
	nodes  []wire.NodeStatus
	finds  []envgen.Finding
	sealer trust.Sealer

	mu      sync.Mutex
	changed chan struct{}
	got     []Message
	answers []int // of the webhook, one after the other, then 200; 0: it cannot be reached
	header  http.Header
	tried   []time.Duration // since began
	began   time.Time
	lost    bool // leaders cannot prove that they lead
}

func newCluster(t *testing.T) *cluster {
	sealer, err := trust.NewSealer(trust.Keyring{trust.NewGossipKey(0)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, record: rendezvous.NewRecord(), sealer: sealer, changed: make(chan struct{}), began: time.Now()}
	c.apply(rendezvous.Entry{Kind: rendezvous.KindFound, Found: &rendezvous.Found{Cluster: "c0ffee00-aaaa", Epoch: 1,
		First: rendezvous.Node{ID: "n1", Host: "spark1"}}})
	c.nodes = []wire.NodeStatus{{ID: "n1", Host: "spark1", State: "ready"}, {ID: "n2", Host: "spark2", State: "ready"}}
	return c
}

func (c *cluster) apply(e rendezvous.Entry) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.At = time.Now()
	b, err := e.Encode()
	if err != nil {
		c.t.Error(err)
	}
	c.index++
	err, _ = c.record.Apply(c.index, b).(error)
	return err
}

// Notify is the Recorder's.
func (c *cluster) Notify(_ context.Context, n rendezvous.NotifyChange) error {
	return c.apply(n.Entry())
}

// now changes what leaders see.
func (c *cluster) now(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	close(c.changed)
	c.changed = make(chan struct{})
}

// RoundTrip is the webhook.
func (c *cluster) RoundTrip(r *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(r.Body)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tried = append(c.tried, time.Since(c.began))
	c.header = r.Header
	code := http.StatusOK
	if len(c.answers) > 0 {
		code, c.answers = c.answers[0], c.answers[1:]
	}
	if code == 0 {
		return nil, errors.New("connection refused")
	}
	if code == http.StatusOK {
		var m Message
		if err := json.Unmarshal(body, &m); err != nil {
			c.t.Error(err)
		}
		c.got = append(c.got, m)
	}
	return &http.Response{StatusCode: code, Header: http.Header{"Location": {"http://elsewhere"}, "Retry-After": {"60"}},
		Body: io.NopCloser(strings.NewReader("no_text\nmore"))}, nil
}

// lead begins a leadership; the func ends it.
func (c *cluster) lead() (*Leader, func()) {
	ctx, cancel := context.WithCancel(c.t.Context())
	l := Lead(Config{Host: "spark1", Version: "test", Record: c.record, Recorder: c,
		Jobs: func() []rendezvous.JobStatus { c.mu.Lock(); defer c.mu.Unlock(); return c.jobs },
		Backends: func() ([]rendezvous.Backend, <-chan struct{}) {
			c.mu.Lock()
			defer c.mu.Unlock()
			return make([]rendezvous.Backend, len(c.jobs)), c.changed
		},
		Status: func() (wire.Status, <-chan struct{}) {
			c.mu.Lock()
			defer c.mu.Unlock()
			return wire.Status{Nodes: append([]wire.NodeStatus{}, c.nodes...)}, c.changed
		},
		Findings: func(wire.Status) []envgen.Finding { c.mu.Lock(); defer c.mu.Unlock(); return c.finds },
		Prove: func(context.Context) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.lost {
				return errors.New("no majority")
			}
			return nil
		},
		Sealer:   func() (trust.Sealer, error) { return c.sealer, nil },
		OnlyHere: func(context.Context) string { return "" }, Logger: slog.New(slog.DiscardHandler),
	})
	l.client.Transport = c
	over := make(chan struct{})
	go func() { defer close(over); _ = l.Run(ctx) }()
	return l, func() { cancel(); <-over }
}

var root = wire.Caller{User: &wire.User{Name: "root"}}

func (c *cluster) add(l *Leader, add wire.NotifyAdd) error {
	_, err := l.change(c.t.Context(), root, wire.NotifyChangeRequest{Add: &add})
	return err
}

var hook = wire.NotifyAdd{Name: "team", On: rendezvous.NotifyEvents(), URL: "https://hooks.example.com/services/s3cret",
	Headers: []string{"Authorization: Bearer t0ken"}}

// events are what the webhook got, and forgets it.
func (c *cluster) events() string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, m := range c.got {
		out = append(out, string(m.Event))
	}
	c.got = nil
	return strings.Join(out, " ")
}

func (c *cluster) sent() string {
	n, _ := c.record.Notify()
	return n.Targets["team"].Sent.Error
}

func (c *cluster) ends(id launcher.JobID, out rendezvous.Outcome) {
	job := rendezvous.Job{Spec: launcher.Spec{ID: id, Name: "train", User: "ada"}, Plan: rendezvous.Plan{Generation: 1}}
	if err := c.apply(job.Entry()); err != nil {
		c.t.Fatal(err)
	}
	out.At = time.Now()
	if err := c.apply(rendezvous.Entry{Kind: rendezvous.KindEnd,
		End: &rendezvous.JobEnd{Key: job.Key(), Outcome: out}}); err != nil {
		c.t.Fatal(err)
	}
}

var failure = rendezvous.Outcome{End: rendezvous.Failed, Cause: "rank 3 on spark2: exit 1", ExitCode: 1,
	Root: &launcher.RankExit{Rank: 3, Host: "spark2", Exit: launcher.Exit{Code: 1, Last: "hello\nboom <!channel> @here"}}}

// A failed job is told once, with its cause, though its leader dies before it could: the next one tells it, and no
// other tells it again.
func TestToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		l, end := c.lead()
		if err := c.add(l, hook); err != nil {
			t.Fatal(err)
		}
		c.answers = []int{0, 503}
		c.ends("jjjj", failure)
		time.Sleep(10 * time.Second)
		if got := c.events(); got != "" || len(c.tried) != 2 {
			t.Errorf("%q after %v", got, c.tried)
		}
		if res, _ := l.show(t.Context(), root, wire.Empty{}); res.Targets[0].Waiting != 1 ||
			res.Targets[0].Error != "https://hooks.example.com/… answers Service Unavailable: no_text" {
			t.Errorf("ls: %+v", res.Targets)
		}
		end()
		_, end = c.lead()
		synctest.Wait()
		got := c.got[0]
		text := "sparkrun: job train (jjjj, ada) has failed: rank 3 on spark2: exit 1 (its last line: boom ‹!channel› @\u200bhere)"
		rank := 3
		want := Message{ID: fmt.Sprintf("c0ffee00-%d-1", c.began.UnixNano()), Event: "job-failed", Cluster: "c0ffee00-aaaa", JobID: "jjjj", Name: "train", User: "ada",
			Host: "spark2", Rank: &rank, State: "failed", Time: got.Time, Text: text, Content: text,
			Cause: "rank 3 on spark2: exit 1 (its last line: boom <!channel> @here)"}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		if c.header.Get("Authorization") != "Bearer t0ken" || c.header.Get("Content-Type") != "application/json" {
			t.Errorf("headers %v", c.header)
		}
		end()
		_, end = c.lead()
		time.Sleep(time.Hour)
		end()
		if got := c.events(); got != "job-failed" || c.sent() != "" {
			t.Errorf("all told: %q; %s", got, c.sent())
		}
	})
}

// What cannot be brought is given up after five tries, or at once where another try makes no sense; others go on.
func TestGivenUp(t *testing.T) {
	for name, tt := range map[string]struct {
		answers []int
		tried   int
		sent    string
	}{
		"unreachable": {answers: []int{0, 0, 0, 0, 0}, tried: 5, sent: "https://hooks.example.com/…: connection refused"},
		"comes back":  {answers: []int{0, 0, 429}, tried: 4},
		"refused":     {answers: []int{403}, tried: 1, sent: "https://hooks.example.com/… answers Forbidden: no_text"},
		"redirected": {answers: []int{307}, tried: 1, sent: "https://hooks.example.com/… answers Temporary Redirect: " +
			"redirects are not followed: add the URL that it leads to"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				l, end := c.lead()
				defer end()
				if err := c.add(l, hook); err != nil {
					t.Fatal(err)
				}
				c.answers = tt.answers
				c.ends("jjjj", failure)
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if len(c.tried) != tt.tried || c.sent() != tt.sent {
					t.Errorf("tried at %v; %q", c.tried, c.sent())
				}
				c.events()
				c.ends("kkkk", rendezvous.Outcome{End: rendezvous.Completed})
				if got := c.events(); got != "job-ended" || c.sent() != "" {
					t.Errorf("then %q; %q", got, c.sent())
				}
			})
		})
	}
}

// A leader that cannot prove that it leads says nothing: another may have.
func TestNoLongerLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		l, end := c.lead()
		defer end()
		if err := c.add(l, hook); err != nil {
			t.Fatal(err)
		}
		c.now(func() { c.lost = true })
		c.ends("jjjj", failure)
		time.Sleep(time.Minute)
		if got := c.events(); got != "" {
			t.Error(got)
		}
	})
}

// What was so before anybody asked is no news.
func TestNothingOldIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.ends("jjjj", failure)
		c.nodes[1].State, c.nodes[1].Since = "away", time.Now()
		c.jobs = []rendezvous.JobStatus{{State: rendezvous.StateRuns,
			Job:     rendezvous.Job{Spec: launcher.Spec{ID: "ssss", Service: &launcher.Service{}}},
			Service: &launcher.ServiceSeen{State: launcher.ServiceReady, Since: time.Now()}}}
		time.Sleep(time.Hour)
		l, end := c.lead()
		defer end()
		if err := c.add(l, hook); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if got := c.events(); got != "" {
			t.Error(got)
		}
		c.now(func() { c.nodes[1].State, c.nodes[1].Since = "ready", time.Now() })
		time.Sleep(time.Minute)
		if got := c.events(); got != "node-back" {
			t.Error(got)
		}
	})
}

// What is refused, and that nothing secret is shown.
func TestChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		l, end := c.lead()
		defer end()
		if _, err := l.change(t.Context(), wire.Caller{User: &wire.User{Name: "ada", UID: 1000}},
			wire.NotifyChangeRequest{Remove: "team"}); !errors.Is(err, wire.ErrDenied) {
			t.Errorf("a user: %v", err)
		}
		for range 2 { // asked twice
			if err := c.add(l, hook); err != nil {
				t.Fatal(err)
			}
		}
		with := func(change func(*wire.NotifyAdd)) wire.NotifyAdd { a := hook; change(&a); return a }
		for name, tt := range map[string]struct {
			add  wire.NotifyAdd
			want error
		}{
			"its name again": {with(func(a *wire.NotifyAdd) { a.URL = "https://other" }), rendezvous.ErrNotifyExists},
			"no URL":         {wire.NotifyAdd{Name: "b", On: hook.On, URL: "hooks.example.com/s3cret"}, launcher.ErrInvalid},
			"a file":         {wire.NotifyAdd{Name: "b", On: hook.On, URL: "file:///etc/s3cret"}, launcher.ErrInvalid},
			"no header":      {wire.NotifyAdd{Name: "b", On: hook.On, URL: "https://a", Headers: []string{"s3cret"}}, launcher.ErrInvalid},
			"two in a line":  {wire.NotifyAdd{Name: "b", On: hook.On, URL: "https://a", Headers: []string{"A: b\r\nA: s3cret"}}, launcher.ErrInvalid},
			"no event":       {wire.NotifyAdd{Name: "b", URL: "https://a"}, launcher.ErrInvalid},
			"both":           {wire.NotifyAdd{Name: "b", On: hook.On, URL: "https://a", Command: []string{"true"}}, launcher.ErrInvalid},
			"too long":       {wire.NotifyAdd{Name: "b", On: hook.On, Command: []string{strings.Repeat("x", 5000)}}, launcher.ErrInvalid},
		} {
			err := c.add(l, tt.add)
			if !errors.Is(err, tt.want) || err != nil && strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := l.test(t.Context(), root, wire.NotifyTestRequest{Name: "team"}); err != nil || c.events() != "test" {
			t.Errorf("test: %v", err)
		}
		c.answers = []int{0}
		if _, err := l.test(t.Context(), root, wire.NotifyTestRequest{Name: "team"}); err == nil ||
			err.Error() != "notify team from spark1: https://hooks.example.com/…: connection refused" {
			t.Errorf("test: %v", err)
		}
		res, _ := l.show(t.Context(), root, wire.Empty{})
		snapshot, _ := c.record.Snapshot()
		for _, text := range []string{fmt.Sprintf("%+v %#v %s", res, hook, endpoint{URL: hook.URL}), string(snapshot)} {
			if strings.Contains(text, "s3cret") || strings.Contains(text, "t0ken") {
				t.Error(text)
			}
		}
		if _, err := l.change(t.Context(), root, wire.NotifyChangeRequest{Remove: "nobody"}); !errors.Is(err, rendezvous.ErrNoNotify) {
			t.Errorf("remove nobody: %v", err)
		}
		c.answers = []int{0}
		c.ends("jjjj", failure)
		synctest.Wait()
		if _, err := l.change(t.Context(), root, wire.NotifyChangeRequest{Remove: "team"}); err != nil || c.add(l, hook) != nil {
			t.Errorf("anew: %v", err)
		}
		synctest.Wait()
		if res, _ := l.show(t.Context(), root, wire.Empty{}); res.Targets[0].Error != "" {
			t.Errorf("it has the trouble of one of its name: %+v", res.Targets)
		}
	})
}

// What a server or a command says is shown, unless it repeats what is sealed.
func TestSaysNothingSealed(t *testing.T) {
	e := endpoint{URL: "https://ada:passw0rd@a.example/services/T0000/s3%20cret?key=q1w2&to=me",
		Headers: []string{"Authorization: token=t0ken"}}
	for line, want := range map[string]string{"no_text": "no_text", "Cannot POST /services/T0000/s3cret": "", "q1w2 is bad": "",
		"who is t0ken": "", "ada is not passw0rd": "", "no s3%20cret": "", "no cret": "", "no Authorization": "no Authorization",
		"\x1b[2J": "?[2J"} {
		if got := e.said(line); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
	if got := (endpoint{Command: []string{"mail", "--password=xyzt"}}).said("mail: is not xyzt"); got != "" {
		t.Error(got)
	}
}

// A server that does not speak HTTP may say what it was asked.
func TestShowsNoEcho(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		if conn, err := listener.Accept(); err == nil {
			_, _ = io.CopyN(conn, conn, 64)
			conn.Close()
		}
	}()
	l := &Leader{client: newClient()}
	err = l.send(t.Context(), endpoint{URL: "http://" + listener.Addr().String() + "/s3cret"}, Message{})
	if err == nil || strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "malformed HTTP") {
		t.Error(err)
	}
}

// A command has the event on its input and in variables; what it says when it fails is told, and it is ended with all
// that it began.
func TestCommand(t *testing.T) {
	l := &Leader{}
	out := filepath.Join(t.TempDir(), "out")
	sh := func(script string) error {
		return l.send(t.Context(), endpoint{Command: []string{"/bin/sh", "-c", script, "-", out}},
			Message{Event: "job-failed", JobID: "jjjj", Text: "a\x1b b"})
	}
	if err := sh(`echo "$SPARKRUN_EVENT $SPARKRUN_JOB_ID $SPARKRUN_TEXT ${SPARKRUN_NAME-unset}" > "$1"; cat >> "$1"`); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out)
	line, rest, _ := strings.Cut(string(b), "\n")
	var m Message
	if err != nil || line != "job-failed jjjj a? b unset" || json.Unmarshal([]byte(rest), &m) != nil || m.JobID != "jjjj" {
		t.Errorf("%q, %v", b, err)
	}
	if err := sh("echo first; echo no way >&2; exit 3"); err == nil || err.Error() != "sh: exit status 3: no way" {
		t.Error(err)
	}
	err = l.send(t.Context(), endpoint{Command: []string{"/no/such"}}, Message{})
	if f := new(failed); !errors.As(err, &f) || !f.final || !strings.Contains(err.Error(), "every machine that may lead") {
		t.Error(err)
	}
	f, err := os.OpenFile(out, os.O_RDWR, 0)
	if err != nil || f.Chmod(0o755) != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = l.send(t.Context(), endpoint{Command: []string{out}}, Message{}) // text file busy: it is being written
	if f := new(failed); !errors.As(err, &f) || f.final {
		t.Errorf("what can be run later: %v", err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, errors.New("time is over"))
	defer cancel()
	began := time.Now()
	err = runCommand(ctx, endpoint{Command: []string{"/bin/sh", "-c", "sleep 60 & sleep 60"}}, nil, nil)
	if err == nil || !strings.Contains(err.Error(), "time is over") || time.Since(began) > 10*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
}
