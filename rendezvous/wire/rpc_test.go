package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// echo checks that a request came whole and answers with a full response.
func echo[Req, Res any](t *testing.T) func(context.Context, Caller, Req) (Res, error) {
	return func(_ context.Context, _ Caller, r Req) (Res, error) {
		if d := diff(full[Req](), r); d != "" {
			t.Errorf("request changed on its way: %s", d)
		}
		return full[Res](), nil
	}
}

func echoStream[Req, Res any](t *testing.T) func(context.Context, Caller, Req, func(Res) error) error {
	return func(_ context.Context, _ Caller, r Req, send func(Res) error) error {
		if d := diff(full[Req](), r); d != "" {
			t.Errorf("request changed on its way: %s", d)
		}
		for range 3 {
			if err := send(full[Res]()); err != nil {
				return err
			}
		}
		return nil
	}
}

func same[Res any](t *testing.T, name string, res Res, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if d := diff(full[Res](), res); d != "" {
		t.Errorf("%s: response changed on its way: %s", name, d)
	}
}

func sameThrice[Res any](t *testing.T, name string, call func(func(Res) error) error) {
	t.Helper()
	n := 0
	err := call(func(r Res) error {
		n++
		same(t, name, r, nil)
		return nil
	})
	if err != nil || n != 3 {
		t.Errorf("%s: %d messages, %v", name, n, err)
	}
}

func TestEveryCallKeepsEveryField(t *testing.T) {
	none := func(context.Context, Caller, Empty) (Empty, error) { return Empty{}, nil }
	c := serve(t, Caller{Node: "id2", User: alice.User}, func(mux *http.ServeMux) {
		Cluster{
			Status: echo[StatusRequest, Status](t), Launch: echoStream[LaunchRequest, rendezvous.Progress](t),
			Watch: echoStream[JobRequest, rendezvous.Progress](t), Explain: echo[LaunchRequest, ExplainResponse](t),
			Stop: echo[StopRequest, StopResponse](t), Jobs: echo[Empty, JobsResponse](t), Logs: echoStream[LogsRequest, LogChunk](t),
			Token: echo[TokenRequest, TokenResponse](t), Leave: echo[LeaveRequest, Empty](t), RemoveNode: echo[RemoveNodeRequest, RemoveNodeResponse](t),
		}.Mount(mux)
		Node{
			NodeLogs: echoStream[NodeLogsRequest, LogChunk](t), Prepared: echo[NodePlanRequest, NodePlan](t), KeepCA: echo[CAKey, Empty](t),
			KeepTrusted: echo[Trusted, Trusted](t), AskTrusted: echo[Empty, Trusted](t), BeRemoved: none, DropCA: none,
		}.Mount(mux)
		Join(echo[JoinRequest, JoinResponse](t)).Mount(mux)
		RenewExpired(echo[RenewExpiredRequest, RenewResponse](t)).Mount(mux)
	})
	ctx := t.Context()
	status, err := c.Status(ctx, full[StatusRequest]())
	same(t, "Status", status, err)
	sameThrice(t, "Launch", func(fn func(rendezvous.Progress) error) error { return c.Launch(ctx, full[LaunchRequest](), fn) })
	sameThrice(t, "Watch", func(fn func(rendezvous.Progress) error) error { return c.Watch(ctx, full[JobRequest](), fn) })
	plan, err := c.Explain(ctx, full[LaunchRequest]())
	same(t, "Explain", plan, err)
	stop, err := c.Stop(ctx, full[StopRequest]())
	same(t, "Stop", stop, err)
	jobs, err := c.Jobs(ctx)
	same(t, "Jobs", jobs, err)
	sameThrice(t, "Logs", func(fn func(LogChunk) error) error { return c.Logs(ctx, full[LogsRequest](), fn) })
	token, err := c.Token(ctx, full[TokenRequest]())
	same(t, "Token", token, err)
	same(t, "Leave", Empty{}, c.Leave(ctx, full[LeaveRequest]()))
	removed, err := c.RemoveNode(ctx, full[RemoveNodeRequest]())
	same(t, "RemoveNode", removed, err)
	sameThrice(t, "NodeLogs", func(fn func(LogChunk) error) error { return c.NodeLogs(ctx, full[NodeLogsRequest](), fn) })
	prepared, err := c.Prepared(ctx, full[NodePlanRequest]())
	same(t, "Prepared", prepared, err)
	same(t, "KeepCA", Empty{}, c.KeepCA(ctx, full[CAKey]()))
	trusted, err := c.KeepTrusted(ctx, full[Trusted]())
	same(t, "KeepTrusted", trusted, err)
	trusted, err = c.AskTrusted(ctx)
	same(t, "AskTrusted", trusted, err)
	same(t, "BeRemoved", Empty{}, c.BeRemoved(ctx))
	same(t, "DropCA", Empty{}, c.DropCA(ctx))
	renewed, err := c.RenewExpired(ctx, full[RenewExpiredRequest]())
	same(t, "RenewExpired", renewed, err)
	join, err := c.Join(ctx, full[JoinRequest]())
	same(t, "Join", join, err)
}

func TestErrorsKeepTheirSentinels(t *testing.T) {
	var give error
	c := serve(t, alice, func(mux *http.ServeMux) {
		Cluster{
			Stop:  func(context.Context, Caller, StopRequest) (StopResponse, error) { return StopResponse{}, give },
			Watch: func(context.Context, Caller, JobRequest, func(rendezvous.Progress) error) error { return give },
		}.Mount(mux)
	})
	check := func(t *testing.T, want error, text string) {
		t.Helper()
		_, unary := c.Stop(t.Context(), StopRequest{})
		stream := c.Watch(t.Context(), JobRequest{}, nil)
		for _, err := range []error{unary, stream} {
			if !errors.Is(err, want) || err.Error() != text {
				t.Errorf("got %q (%T), want %q", err, err, text)
			}
			for _, c := range codes {
				if c.sentinel != want && errors.Is(err, c.sentinel) {
					t.Errorf("%q became %q too", want, c.sentinel)
				}
			}
		}
	}
	seen := map[string]bool{}
	for _, code := range codes {
		if seen[code.code] {
			t.Errorf("code %q is used twice", code.code)
		}
		seen[code.code] = true
		t.Run(code.code, func(t *testing.T) {
			give = code.sentinel
			check(t, code.sentinel, code.sentinel.Error())
			give = fmt.Errorf("stop job 'jjjj' on spärk2: %w: 50%% \"done\"\nand more", code.sentinel)
			check(t, code.sentinel, give.Error())
		})
	}
	t.Run("no sentinel", func(t *testing.T) {
		give = errors.New("disk on fire")
		_, err := c.Stop(t.Context(), StopRequest{})
		if err == nil || err.Error() != "disk on fire" || errors.Is(err, ErrUnreachable) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("the leader changed, told by a cancelled context", func(t *testing.T) {
		give = fmt.Errorf("%w: %w", ErrRetry, context.Canceled)
		check(t, ErrRetry, give.Error())
	})
	t.Run("handler out of time", func(t *testing.T) {
		give = fmt.Errorf("wait for nodes: %w", context.DeadlineExceeded)
		if _, err := c.Stop(t.Context(), StopRequest{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
}

func TestUnreachable(t *testing.T) {
	noAgent := errors.New("no agent runs here")
	c := NewClient(&http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return nil, fmt.Errorf("%w: %w", noAgent, os.ErrNotExist)
	}}}, "http://node")
	_, err := c.Jobs(t.Context())
	if !errors.Is(err, ErrUnreachable) || !errors.Is(err, noAgent) || !errors.Is(err, os.ErrNotExist) || strings.Contains(err.Error(), "http://") {
		t.Errorf("unary: %v", err)
	}
	if err := c.Watch(t.Context(), JobRequest{}, nil); !errors.Is(err, ErrUnreachable) || !errors.Is(err, noAgent) {
		t.Errorf("stream: %v", err)
	}
	link := c.Control(t.Context())
	link.Send(Down{Hello: &Hello{}})
	if _, err := link.Receive(); !errors.Is(err, ErrUnreachable) || !errors.Is(err, noAgent) {
		t.Errorf("control: %v", err)
	}
	link.Close()
}

func TestCallerGivesUp(t *testing.T) {
	begun, ended := make(chan struct{}, 1000), make(chan struct{}, 1000) // of Jobs
	handler := make(chan error, 1)
	c := serve(t, alice, func(mux *http.ServeMux) {
		Cluster{
			Jobs: func(ctx context.Context, _ Caller, _ Empty) (JobsResponse, error) {
				begun <- struct{}{}
				<-ctx.Done()
				ended <- struct{}{}
				return JobsResponse{}, ctx.Err()
			},
			Watch: func(ctx context.Context, _ Caller, _ JobRequest, send func(rendezvous.Progress) error) error {
				send(rendezvous.Progress{Step: rendezvous.StepPlanned})
				<-ctx.Done()
				handler <- ctx.Err()
				return ctx.Err()
			},
		}.Mount(mux)
	})
	within := func(what string) {
		t.Helper()
		select {
		case <-handler:
		case <-time.After(30 * time.Second):
			t.Fatalf("%s: the handler goes on", what)
		}
	}
	for heard := false; !heard; {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := c.Jobs(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUnreachable) {
			t.Fatalf("unary: %v", err)
		}
		select {
		case <-begun:
			heard = true
		default: // on a busy machine the call ends before it gets there
		}
	}
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Fatal("unary: the handler goes on")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := c.Watch(ctx, JobRequest{}, func(rendezvous.Progress) error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("stream: %v", err)
	}
	within("stream")
	// A follower that has heard enough: the call returns at once, and with its error.
	enough := errors.New("enough")
	if err := c.Watch(t.Context(), JobRequest{}, func(rendezvous.Progress) error { return enough }); err != enough {
		t.Errorf("follower: %v", err)
	}
	within("follower")
}

func TestServerGoesAway(t *testing.T) {
	stop := make(chan struct{})
	c := serve(t, alice, func(mux *http.ServeMux) {
		Cluster{Watch: func(ctx context.Context, _ Caller, _ JobRequest, send func(rendezvous.Progress) error) error {
			send(rendezvous.Progress{})
			close(stop)
			panic(http.ErrAbortHandler) // as if the process had died
		}}.Mount(mux)
	})
	err := c.Watch(t.Context(), JobRequest{}, func(rendezvous.Progress) error { <-stop; return nil })
	if err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("a story that broke off ended with %v", err)
	}
}

// Who calls is what the connection proves; what a header says of a user is
// believed of members alone.
func TestWhoCalls(t *testing.T) {
	book := Caller{User: &User{Name: "ada", UID: NoUID}, Client: &Laptop{ID: "c1", Host: "böok & co", Addr: "[fe80::1%eth0]:5"}}
	mallory := Caller{User: &User{Name: "root", UID: 0}}
	tests := map[string]struct {
		conn Caller
		on   *Caller
		want Caller
		err  bool // users' calls are refused
	}{
		"a local user":                     {conn: alice, want: alice},
		"a local user who claims a name":   {conn: alice, on: &mallory, want: alice},
		"a member for a user":              {conn: spark2, on: &alice, want: Caller{Node: "id2", Host: "spark2", User: alice.User}},
		"a client":                         {conn: book, want: book},
		"a client who claims a name":       {conn: book, on: &mallory, want: book},
		"a member for a client's user":     {conn: spark2, on: &book, want: Caller{Node: "id2", Host: "spark2", User: book.User, Client: book.Client}},
		"a local user who claims a client": {conn: alice, on: &book, want: alice},
		"a member for itself":              {conn: spark2, err: true},
		"a stranger":                       {conn: Caller{}, err: true},
		"a stranger who claims a name":     {conn: Caller{}, on: &mallory, err: true},
		"a member for a user without name": {conn: spark2, on: &Caller{User: &User{UID: 5}}, err: true},
		"a name with odd characters": {conn: spark2, on: &Caller{User: &User{Name: "DOM\\jürgen: k", UID: 1<<32 - 1}},
			want: Caller{Node: "id2", Host: "spark2", User: &User{Name: "DOM\\jürgen: k", UID: 1<<32 - 1}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got Caller
			var members, users int
			c := serve(t, tt.conn, func(mux *http.ServeMux) {
				Cluster{
					Jobs: func(_ context.Context, c Caller, _ Empty) (JobsResponse, error) {
						got = c
						users++
						return JobsResponse{}, nil
					},
					Watch: func(_ context.Context, c Caller, _ JobRequest, _ func(rendezvous.Progress) error) error {
						users++
						return nil
					},
				}.Mount(mux)
				Node{
					KeepCA:  func(context.Context, Caller, CAKey) (Empty, error) { members++; return Empty{}, nil },
					Control: func(_ context.Context, _ Caller, s ControlStream) error { members++; return nil },
				}.Mount(mux)
			})
			if tt.on != nil {
				c = c.OnBehalfOf(*tt.on)
			}
			_, err := c.Jobs(t.Context())
			streamErr := c.Watch(t.Context(), JobRequest{}, nil)
			if tt.err {
				if !errors.Is(err, ErrDenied) || !errors.Is(streamErr, ErrDenied) || users != 0 {
					t.Errorf("errors %v and %v, %d calls let through", err, streamErr, users)
				}
			} else if d := diff(tt.want, got); d != "" || err != nil || streamErr != nil {
				t.Error(d, err, streamErr)
			}
			if got.Forwarded() != (tt.want.Node != "") {
				t.Errorf("forwarded: %v", got.Forwarded())
			}
			// The members' calls are for members, whatever users they speak for.
			link := c.Control(t.Context())
			defer link.Close()
			link.Send(Down{})
			_, linkErr := link.Receive()
			keepErr := c.KeepCA(t.Context(), CAKey{})
			if tt.conn.Node == "" {
				if !errors.Is(keepErr, ErrDenied) || !errors.Is(linkErr, ErrDenied) || members != 0 {
					t.Errorf("errors %v and %v, %d calls let through", keepErr, linkErr, members)
				}
			} else if tt.on == nil && (keepErr != nil || !errors.Is(linkErr, io.EOF) || members != 2) {
				t.Errorf("a member's own calls: %v, %v, %d let through", keepErr, linkErr, members)
			}
		})
	}
}

func TestParseUser(t *testing.T) {
	for text, want := range map[string]User{"0:root": {Name: "root"}, "1000:a+b%3A": {Name: "a b:", UID: 1000}} {
		if u, err := parseUser(text); err != nil || u != want {
			t.Errorf("%q: %+v, %v", text, u, err)
		}
	}
	for _, text := range []string{"", ":", "root", ":root", "0:", "-1:root", "+0:root", "4294967296:root", "0x0:root", "0:%zz", "0 :root", "1_0:root"} {
		if u, err := parseUser(text); !errors.Is(err, ErrDenied) {
			t.Errorf("%q: %+v, %v", text, u, err)
		}
	}
}

func TestSecretsStayOutOfLogs(t *testing.T) {
	secret := []byte("hunter2")
	r := JoinRequest{Secret: secret, Host: "spark2"}
	key := GossipKey{Key: secret}
	known := Trusted{Ring: []GossipKey{key}}
	for _, v := range []any{r, &r, key, &key, known, &known, JoinResponse{Trusted: known}, CAKey{PEM: secret}} {
		for _, text := range []string{fmt.Sprint(v), fmt.Sprintf("%+v", v), fmt.Sprintf("%#v", v)} {
			if strings.Contains(text, "hunter2") || strings.Contains(text, "104 117 110") || strings.Contains(text, "0x68, 0x75") {
				t.Errorf("a secret in %q", text)
			}
		}
	}
}

func TestTooLargeARequest(t *testing.T) {
	c := serve(t, alice, func(mux *http.ServeMux) {
		Cluster{Stop: func(context.Context, Caller, StopRequest) (StopResponse, error) { return StopResponse{}, nil }}.Mount(mux)
	})
	if _, err := c.Stop(t.Context(), StopRequest{Job: strings.Repeat("x", maxMessage)}); err == nil {
		t.Error("a request over the limit was served")
	}
	if _, err := c.Stop(t.Context(), StopRequest{Job: strings.Repeat("x", maxMessage/2)}); err != nil {
		t.Error(err)
	}
}

// What is about the machine that is asked, or lets others in, is for users of members, passed on or not.
func TestCallsThatNoClientMayMake(t *testing.T) {
	book := Caller{User: &User{Name: "root"}, Client: &Laptop{ID: "c1", Host: "book"}}
	for name, tt := range map[string]struct {
		conn Caller
		on   *Caller
		ok   bool
	}{
		"a local user":            {alice, nil, true},
		"a client":                {book, nil, false},
		"a member for a client":   {spark2, &book, false},
		"a member for local user": {spark2, &alice, true},
	} {
		calls := 0
		c := serve(t, tt.conn, func(mux *http.ServeMux) {
			Cluster{
				Token: func(context.Context, Caller, TokenRequest) (TokenResponse, error) {
					calls++
					return TokenResponse{}, nil
				},
				Leave: func(context.Context, Caller, LeaveRequest) (Empty, error) { calls++; return Empty{}, nil },
				Takeover: func(context.Context, Caller, TakeoverRequest) (TakeoverResponse, error) {
					calls++
					return TakeoverResponse{}, nil
				},
				RaftBring: func(context.Context, Caller, RaftPiece) (Empty, error) { calls++; return Empty{}, nil },
				RaftRestore: func(context.Context, Caller, RaftRestoreRequest) (RaftRestoreResponse, error) {
					calls++
					return RaftRestoreResponse{}, nil
				},
				Refresh: func(context.Context, Caller, RefreshRequest) (RefreshResponse, error) { return RefreshResponse{}, nil },
			}.Mount(mux)
		})
		if tt.on != nil {
			c = c.OnBehalfOf(*tt.on)
		}
		_, tokenErr := c.Token(t.Context(), TokenRequest{})
		_, takeErr := c.Takeover(t.Context(), TakeoverRequest{})
		_, restoreErr := c.RaftRestore(t.Context(), RaftRestoreRequest{})
		for _, err := range []error{tokenErr, takeErr, restoreErr, c.Leave(t.Context(), LeaveRequest{}), c.RaftBring(t.Context(), RaftPiece{})} {
			if tt.ok != (err == nil) || !tt.ok && !errors.Is(err, ErrDenied) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if tt.ok != (calls == 5) {
			t.Errorf("%s: %d calls were let through", name, calls)
		}
		// A client's word about itself comes from it alone.
		if _, err := c.Refresh(t.Context(), RefreshRequest{}); (err == nil) != (tt.conn.Client != nil) {
			t.Errorf("%s: refresh: %v", name, err)
		}
	}
}
