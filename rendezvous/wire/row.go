package wire

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// Row is one procedure, apart from the types of its messages.
type Row struct {
	Name string
	Does string // what it is for, for help texts
	Who  Who
	To   To
	// Streams: any number of replies, one after the other.
	Streams bool
	// Audit is its name in the audit log; empty: no line is written here. The request
	// says what the line is about: see aboutIt.
	Audit string
	// Own: its handler writes the audit line itself, or it is part of a call that has one.
	Own bool
	// Asks: an empty request changes nothing, so the JSON face accepts a GET.
	Asks bool
	// Limit bounds a request in bytes, and, where it is over maxMessage, a reply; 0 means maxMessage.
	Limit int

	newReq, newRes func() any // pointers to empty messages
}

// Who may call a procedure.
type Who int

const (
	users     Who = iota + 1 // on a member's socket, from a client, or passed on by a member
	usersHere                // of members: no clients
	clients                  // each about itself, to the member that it dialled
	members
	newcomers // who have shown no certificate, and members that pass them on
)

func (w Who) String() string {
	return [...]string{users: "users", usersHere: "users of members", clients: "clients", members: "members",
		newcomers: "newcomers"}[w]
}

// To is where a procedure is answered.
type To int

const (
	here   To = iota // by the node that is called
	leader           // by the leader: another node passes it on, once
)

// allows refuses callers for whom a procedure is not meant.
func (w Who) allows(c Caller) error {
	switch {
	case (w == users || w == usersHere) && c.User == nil:
		return fmt.Errorf("%w: this call is for users", ErrDenied)
	case w == usersHere && c.Client != nil:
		return fmt.Errorf("%w from a client: it is done on a machine of the cluster", ErrDenied)
	case w == clients && (c.Client == nil || c.Node != ""):
		return fmt.Errorf("%w: this call is for clients", ErrDenied)
	case w == members && c.Node == "":
		return fmt.Errorf("%w: this call is for members of the cluster", ErrDenied)
	}
	return nil
}

// ForUsers tells whether users may call it, on a member or from a client.
func (r *Row) ForUsers() bool { return r.Who == users || r.Who == usersHere || r.Who == clients }

// ForNewcomers tells whether it needs no certificate.
func (r *Row) ForNewcomers() bool { return r.Who == newcomers }

// Path is its path on every node; for users' procedures it is a promise.
func (r *Row) Path() string {
	switch {
	case r.ForUsers():
		return "/v1/" + r.Name
	case r.ForNewcomers():
		return "/newcomers/" + r.Name
	}
	return "/members/" + r.Name
}

// rows are all rows, by path.
var rows map[string]*Row

// Rows are all, by name; users' come first.
func Rows() []*Row {
	return slices.SortedFunc(maps.Values(rows), func(a, b *Row) int {
		return cmp.Or(cmp.Compare(a.group(), b.group()), cmp.Compare(a.Name, b.Name))
	})
}

func (r *Row) group() string {
	if r.ForUsers() {
		return ""
	}
	return r.Who.String()
}

// Request and Reply are the types of its messages.
func (r *Row) Request() reflect.Type { return reflect.TypeOf(r.newReq()).Elem() }

// Reply is the type of one reply, as the JSON face gives it.
func (r *Row) Reply() reflect.Type {
	m := r.newRes()
	if other, ok := m.(facer); ok {
		return reflect.TypeOf(other.face())
	}
	return reflect.TypeOf(m).Elem()
}

// Find gives the row at a path; nil if there is none.
func Find(path string) *Row { return rows[path] }

func enter[Req, Res any](r Row) *Row {
	if rows == nil {
		rows = map[string]*Row{}
	}
	r.newReq, r.newRes = func() any { return new(Req) }, func() any { return new(Res) }
	if rows[r.Path()] != nil {
		panic("two procedures are called " + r.Name)
	}
	rows[r.Path()] = &r
	return &r
}

// Unary is a procedure with one reply.
type Unary[Req, Res any] struct{ *Row }

// Streamed is a procedure with any number of replies.
type Streamed[Req, Res any] struct{ *Row }

func unary[Req, Res any](r Row) Unary[Req, Res] { return Unary[Req, Res]{enter[Req, Res](r)} }

func stream[Req, Res any](r Row) Streamed[Req, Res] {
	r.Streams = true
	return Streamed[Req, Res]{enter[Req, Res](r)}
}

// Order is a procedure whose reply says only that it was done.
type Order[Req any] struct{ *Row }

func order[Req any](r Row) Order[Req] { return Order[Req]{enter[Req, Empty](r)} }

// Call asks and waits for the reply.
func (u Unary[Req, Res]) Call(ctx context.Context, c *Client, req Req) (res Res, err error) {
	err = c.do(ctx, u.Row, &req, func(m any) error {
		res = *m.(*Res)
		return nil
	})
	return res, err
}

// Call asks and waits until it is done.
func (o Order[Req]) Call(ctx context.Context, c *Client, req Req) error {
	return c.do(ctx, o.Row, &req, func(any) error { return nil })
}

// Call asks and passes the replies to fn as they come, until there are no more, fn fails, or ctx ends.
func (s Streamed[Req, Res]) Call(ctx context.Context, c *Client, req Req, fn func(Res) error) error {
	return c.do(ctx, s.Row, &req, func(m any) error { return fn(*m.(*Res)) })
}

// Call is a procedure with what answers it.
type Call struct {
	row     *Row
	answer  answer
	around  func(ctx context.Context, c Caller, req any, send sender, ask answerTo) error
	control func(context.Context, Caller, ControlStream) error
	// everywhere answers with the parts of all nodes: see Everywhere.
	everywhere func(ctx context.Context, everyone Everyone, c Caller, req any, send sender) error
}

// answer gives the replies to a request. Messages are pointers.
type answer func(ctx context.Context, c Caller, req any, send sender) error

// answerTo is an answer for one caller.
type answerTo func(ctx context.Context, req any, send sender) error

// sender takes a reply.
type sender = func(any) error

// Serve has fn answer: on the leader alone where the row goes there.
func (u Unary[Req, Res]) Serve(fn func(context.Context, Caller, Req) (Res, error)) Call {
	return Call{row: u.Row, answer: func(ctx context.Context, c Caller, req any, send sender) error {
		res, err := fn(ctx, c, *req.(*Req))
		if err != nil {
			return err
		}
		return send(&res)
	}}
}

// Serve has fn answer: on the leader alone where the row goes there.
func (o Order[Req]) Serve(fn func(context.Context, Caller, Req) (Empty, error)) Call {
	return Unary[Req, Empty](o).Serve(fn)
}

// Serve has fn answer: on the leader alone where the row goes there.
func (s Streamed[Req, Res]) Serve(fn func(ctx context.Context, c Caller, req Req, send func(Res) error) error) Call {
	return Call{row: s.Row, answer: func(ctx context.Context, c Caller, req any, send sender) error {
		return fn(ctx, c, *req.(*Req), func(m Res) error { return send(&m) })
	}}
}

// Ask makes the leader answer, whichever node that is.
type Ask[Req, Res any] func(context.Context, Req) (Res, error)

// AskAll is Ask for a stream.
type AskAll[Req, Res any] func(context.Context, Req, func(Res) error) error

// Around adds the part of the caller's own node to a row that goes to the leader: a check before it, a change of
// the answer after it, or the answer if there is no leader.
func (u Unary[Req, Res]) Around(fn func(context.Context, Caller, Req, Ask[Req, Res]) (Res, error)) Call {
	return Call{row: u.Row, around: func(ctx context.Context, c Caller, req any, send sender, ask answerTo) error {
		res, err := fn(ctx, c, *req.(*Req), func(ctx context.Context, r Req) (res Res, err error) {
			err = ask(ctx, &r, func(m any) error {
				res = *m.(*Res)
				return nil
			})
			return res, err
		})
		if err != nil {
			return err
		}
		return send(&res)
	}}
}

// Around is the same for a stream.
func (s Streamed[Req, Res]) Around(
	fn func(ctx context.Context, c Caller, req Req, send func(Res) error, ask AskAll[Req, Res]) error) Call {
	return Call{row: s.Row, around: func(ctx context.Context, c Caller, req any, send sender, ask answerTo) error {
		all := func(ctx context.Context, r Req, tell func(Res) error) error {
			return ask(ctx, &r, func(m any) error { return tell(*m.(*Res)) })
		}
		return fn(ctx, c, *req.(*Req), func(m Res) error { return send(&m) }, all)
	}}
}

// checked are requests with limits of their own, by whatever way they come.
type checked interface{ check() error }

func (r StopRequest) check() error {
	if r.Grace != nil {
		return notNegative("grace", *r.Grace)
	}
	return nil
}

func (r NetplanApplyRequest) check() error { return notNegative("grace", r.Grace) }

func (r ExecRequest) check() error {
	if len(r.Argv) == 0 || r.Argv[0] == "" {
		return fmt.Errorf("argv: %w: want a command", launcher.ErrInvalid)
	}
	return validSession(r.Session)
}

func (r ExecReachRequest) check() error { return validSession(r.Session) }

func notNegative(field string, d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("%s %s: %w: want 0 or more", field, d, launcher.ErrInvalid)
	}
	return nil
}

// maxSession bounds the name of an exec session in bytes; it is the shim's limit.
const maxSession = 64

func validSession(name string) error {
	if name == "" || len(name) > maxSession {
		return fmt.Errorf("session: %w: want the caller's name for the command, of 1 to %d bytes", launcher.ErrInvalid,
			maxSession)
	}
	return nil
}

// aboutIt are requests that say what their line in the audit log is about; false: it only
// asks and gets no line.
type aboutIt interface{ about() (on string, does bool) }

func (r StopRequest) about() (string, bool)          { return r.Job, true }
func (r ServiceRequest) about() (string, bool)       { return r.Job, true }
func (r InputAtRequest) about() (string, bool)       { return r.Job, true }
func (r SignalRequest) about() (string, bool)        { return r.Job, true }
func (r LaunchRequest) about() (string, bool)        { return string(r.Spec.ID), true }
func (r LeaveRequest) about() (string, bool)         { return "", true }
func (r RemoveNodeRequest) about() (string, bool)    { return r.Host, true }
func (r MarkDeadRequest) about() (string, bool)      { return r.Host, true }
func (r TakeoverRequest) about() (string, bool)      { return strings.Join(r.Dead, " "), !r.Check }
func (r RaftRestoreRequest) about() (string, bool)   { return r.Sum, !r.Check }
func (r RemoveClientsRequest) about() (string, bool) { return cmp.Or(r.Client, r.User), true }
