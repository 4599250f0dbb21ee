package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// fullOf is full for a row's message.
func fullOf(empty any) any {
	n := 0
	fill(reflect.ValueOf(empty).Elem(), &n)
	return empty
}

func TestEveryCallKeepsEveryField(t *testing.T) {
	for path, row := range rows {
		if row == Control.Row {
			continue
		}
		caller := Caller{Node: "id2", User: alice.User}
		if row.Who == clients {
			caller = Caller{User: alice.User, Client: &RemoteClient{ID: "c1"}}
		}
		replies := 1
		if row.Streams {
			replies = 3
		}
		c := serve(t, caller, Call{row: row, answer: func(_ context.Context, _ Caller, req any, send func(any) error) error {
			if d := diff(fullOf(row.newReq()), req); d != "" {
				t.Errorf("%s: request changed on its way: %s", path, d)
			}
			for range replies {
				if err := send(fullOf(row.newRes())); err != nil {
					return err
				}
			}
			return nil
		}})
		got := 0
		err := c.do(t.Context(), row, fullOf(row.newReq()), func(m any) error {
			got++
			if d := diff(fullOf(row.newRes()), m); d != "" {
				t.Errorf("%s: reply changed on its way: %s", path, d)
			}
			return nil
		})
		if err != nil || got != replies {
			t.Errorf("%s: %d replies, %v", path, got, err)
		}
	}
}

func TestErrorsKeepTheirSentinels(t *testing.T) {
	var give error
	c := serve(t, alice,
		Stop.Serve(func(context.Context, Caller, StopRequest) (StopResponse, error) { return StopResponse{}, give }),
		Watch.Serve(func(context.Context, Caller, JobRequest, func(rendezvous.Progress) error) error { return give }))
	check := func(t *testing.T, want error, text string) {
		t.Helper()
		_, unary := Stop.Call(t.Context(), c, StopRequest{})
		stream := Watch.Call(t.Context(), c, JobRequest{}, nil)
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
		_, err := Stop.Call(t.Context(), c, StopRequest{})
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
		if _, err := Stop.Call(t.Context(), c, StopRequest{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
}

func TestUnreachable(t *testing.T) {
	noAgent := errors.New("no agent runs here")
	c := NewClient(&http.Client{Transport: &http.Transport{DialContext: func(context.Context, string,
		string) (net.Conn, error) {
		return nil, fmt.Errorf("%w: %w", noAgent, os.ErrNotExist)
	}}}, "http://node")
	_, err := Jobs.Call(t.Context(), c, JobsRequest{})
	if !errors.Is(err, ErrUnreachable) || !errors.Is(err, noAgent) || !errors.Is(err, os.ErrNotExist) ||
		strings.Contains(err.Error(), "http://") {
		t.Errorf("unary: %v", err)
	}
	if err := Watch.Call(t.Context(), c, JobRequest{}, nil); !errors.Is(err, ErrUnreachable) || !errors.Is(err, noAgent) {
		t.Errorf("stream: %v", err)
	}
	link := Control.Open(t.Context(), c)
	link.Send(Down{Hello: &Hello{}})
	if _, err := link.Receive(); !errors.Is(err, ErrUnreachable) || !errors.Is(err, noAgent) {
		t.Errorf("control: %v", err)
	}
	link.Close()
}

func TestCallerGivesUp(t *testing.T) {
	begun, ended := make(chan struct{}, 1000), make(chan struct{}, 1000) // of Jobs
	handler := make(chan error, 1)
	c := serve(t, alice,
		Jobs.Serve(func(ctx context.Context, _ Caller, _ JobsRequest) (JobsResponse, error) {
			begun <- struct{}{}
			<-ctx.Done()
			ended <- struct{}{}
			return JobsResponse{}, ctx.Err()
		}),
		Watch.Serve(func(ctx context.Context, _ Caller, _ JobRequest, send func(rendezvous.Progress) error) error {
			send(rendezvous.Progress{Step: rendezvous.StepPlanned})
			<-ctx.Done()
			handler <- ctx.Err()
			return ctx.Err()
		}))
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
		_, err := Jobs.Call(ctx, c, JobsRequest{})
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
	if err := Watch.Call(ctx, c, JobRequest{},
		func(rendezvous.Progress) error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("stream: %v", err)
	}
	within("stream")
	// A follower that has heard enough: the call returns at once, and with its error.
	enough := errors.New("enough")
	if err := Watch.Call(t.Context(), c, JobRequest{}, func(rendezvous.Progress) error { return enough }); err != enough {
		t.Errorf("follower: %v", err)
	}
	within("follower")
}

func TestServerGoesAway(t *testing.T) {
	stop := make(chan struct{})
	c := serve(t, alice, Watch.Serve(func(ctx context.Context, _ Caller, _ JobRequest,
		send func(rendezvous.Progress) error) error {
		send(rendezvous.Progress{})
		close(stop)
		panic(http.ErrAbortHandler) // as if the process had died
	}))
	err := Watch.Call(t.Context(), c, JobRequest{}, func(rendezvous.Progress) error { <-stop; return nil })
	if !errors.Is(err, ErrUnreachable) || errors.Is(err, context.Canceled) {
		t.Errorf("a stream that broke off ended with %v", err)
	}
}

// Who calls is what the connection proves; what a header says of a user is
// believed of members alone.
func TestWhoCalls(t *testing.T) {
	book := Caller{User: &User{Name: "ada", UID: NoUID},
		Client: &RemoteClient{ID: "c1", Host: "böok & co", Addr: "[fe80::1%eth0]:5"}}
	mallory := Caller{User: &User{Name: "root", UID: 0}}
	tests := map[string]struct {
		conn Caller
		on   *Caller
		want Caller
		err  bool // users' calls are refused
	}{
		"a local user":                   {conn: alice, want: alice},
		"a local user who claims a name": {conn: alice, on: &mallory, want: alice},
		"a member for a user": {conn: spark2, on: &alice,
			want: Caller{Node: "id2", Host: "spark2", User: alice.User}},
		"a client":                   {conn: book, want: book},
		"a client who claims a name": {conn: book, on: &mallory, want: book},
		"a member for a client's user": {conn: spark2, on: &book,
			want: Caller{Node: "id2", Host: "spark2", User: book.User, Client: book.Client}},
		"a local user who claims a client": {conn: alice, on: &book, want: alice},
		"a member for itself":              {conn: spark2, err: true},
		"unauthenticated":                  {conn: Caller{}, err: true},
		"unauthenticated, with a name":     {conn: Caller{}, on: &mallory, err: true},
		"a member for a user without name": {conn: spark2, on: &Caller{User: &User{UID: 5}}, err: true},
		"a name with odd characters": {conn: spark2, on: &Caller{User: &User{Name: "DOM\\jürgen: k", UID: 1<<32 - 1}},
			want: Caller{Node: "id2", Host: "spark2", User: &User{Name: "DOM\\jürgen: k", UID: 1<<32 - 1}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got Caller
			var members, users int
			c := serve(t, tt.conn,
				Jobs.Serve(func(_ context.Context, c Caller, _ JobsRequest) (JobsResponse, error) {
					got = c
					users++
					return JobsResponse{}, nil
				}),
				Watch.Serve(func(_ context.Context, c Caller, _ JobRequest, _ func(rendezvous.Progress) error) error {
					users++
					return nil
				}),
				KeepCA.Serve(func(context.Context, Caller, CAKey) (Empty, error) { members++; return Empty{}, nil }),
				Control.Serve(func(_ context.Context, _ Caller, s ControlStream) error { members++; return nil }))
			if tt.on != nil {
				c = c.OnBehalfOf(*tt.on)
			}
			_, err := Jobs.Call(t.Context(), c, JobsRequest{})
			streamErr := Watch.Call(t.Context(), c, JobRequest{}, nil)
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
			link := Control.Open(t.Context(), c)
			defer link.Close()
			link.Send(Down{})
			_, linkErr := link.Receive()
			keepErr := KeepCA.Call(t.Context(), c, CAKey{})
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
	for _, text := range []string{"", ":", "root", ":root", "0:", "-1:root", "+0:root", "4294967296:root", "0x0:root",
		"0:%zz", "0 :root", "1_0:root"} {
		if u, err := parseUser(text); !errors.Is(err, ErrDenied) {
			t.Errorf("%q: %+v, %v", text, u, err)
		}
	}
}

func TestSecretsStayOutOfLogs(t *testing.T) {
	secret := []byte("hunter2")
	r := JoinRequest{Secret: secret, Host: "spark2"}
	key := GossipKey{Key: secret}
	known := Trusted{Keyring: []GossipKey{key}}
	for _, v := range []any{r, &r, key, &key, known, &known, JoinResponse{Trusted: known}, CAKey{PEM: secret}} {
		for _, text := range []string{fmt.Sprint(v), fmt.Sprintf("%+v", v), fmt.Sprintf("%#v", v)} {
			if strings.Contains(text, "hunter2") || strings.Contains(text, "104 117 110") ||
				strings.Contains(text, "0x68, 0x75") {
				t.Errorf("a secret in %q", text)
			}
		}
	}
}

func TestTooLargeARequest(t *testing.T) {
	c := serve(t, alice, Stop.Serve(func(context.Context, Caller, StopRequest) (StopResponse,
		error) {
		return StopResponse{}, nil
	}))
	if _, err := Stop.Call(t.Context(), c, StopRequest{Job: strings.Repeat("x", maxMessage)}); err == nil {
		t.Error("a request over the limit was served")
	}
	if _, err := Stop.Call(t.Context(), c, StopRequest{Job: strings.Repeat("x", maxMessage/2)}); err != nil {
		t.Error(err)
	}
}

// Who may call what, of all rows: before a byte of the request is read.
func TestWhoMayCallWhat(t *testing.T) {
	book := Caller{User: &User{Name: "root"}, Client: &RemoteClient{ID: "c1", Host: "book"}}
	callers := []struct {
		name string
		conn Caller
		on   *Caller
		may  []Who
	}{
		{"a local user", alice, nil, []Who{users, usersHere, newcomers}},
		{"a client", book, nil, []Who{users, clients, newcomers}},
		{"a member for itself", spark2, nil, []Who{members, newcomers}},
		{"a member for a local user", spark2, &alice, []Who{users, usersHere, members, newcomers}},
		{"a member for a client", spark2, &book, []Who{users, members, newcomers}},
		{"a newcomer", Caller{Addr: "10.0.0.9:5"}, nil, []Who{newcomers}},
		{"a newcomer who claims a name", Caller{}, &alice, []Who{newcomers}},
	}
	for _, caller := range callers {
		reached := ""
		var all []Call
		for _, row := range rows {
			call := Call{row: row, answer: func(_ context.Context, _ Caller, _ any, send func(any) error) error {
				reached = row.Path()
				return send(row.newRes())
			}}
			if row == Control.Row {
				call = Control.Serve(func(context.Context, Caller, ControlStream) error { reached = row.Path(); return nil })
			}
			all = append(all, call)
		}
		c := serve(t, caller.conn, all...)
		if caller.on != nil {
			c = c.OnBehalfOf(*caller.on)
		}
		for path, row := range rows {
			reached = ""
			err := c.do(t.Context(), row, fullOf(row.newReq()), func(any) error { return nil })
			if may := slices.Contains(caller.may, row.Who); may && (err != nil || reached != path) {
				t.Errorf("%s: %s: %v", caller.name, path, err)
			} else if !may && (!errors.Is(err, ErrDenied) || reached != "") {
				t.Errorf("%s: %s: %v, reached %q", caller.name, path, err, reached)
			}
		}
	}
}
