package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// ServerConfig of what answers calls.
type ServerConfig struct {
	// Leader has what goes to the leader. Nil: nothing is answered that does.
	Leader *ToLeader
	// Everyone is asked for what each node answers for itself. It is needed where such a row is served.
	Everyone Everyone
	// Audit, if not nil, records a user's call, or that it was refused.
	Audit func(what string, c Caller, on string, err error)
}

// Server answers the calls that it is given, and passes those on that go to the leader.
type Server struct {
	cfg  ServerConfig
	here map[*Row]Call
}

// NewServer answers by these calls. Those that go to the leader are ToLeader's; here they have Around at most.
func NewServer(cfg ServerConfig, calls ...Call) *Server {
	for _, c := range calls {
		if c.row.To == leader && c.answer != nil {
			panic(c.row.Path() + " is the leader's")
		}
	}
	if cfg.Leader == nil {
		cfg.Leader = NewToLeader(ToLeaderConfig{})
	}
	return &Server{cfg: cfg, here: byRow(calls)}
}

func byRow(calls []Call) map[*Row]Call {
	out := make(map[*Row]Call, len(calls))
	for _, c := range calls {
		if _, twice := out[c.row]; twice {
			panic("two answers to " + c.row.Path())
		}
		out[c.row] = c
	}
	return out
}

// As makes calls of c's here, in this process.
func (s *Server) As(c Caller) *Client { return &Client{local: s, on: &c} }

// Alone answers all these calls, those that go to the leader as well, for one caller in this process.
func Alone(c Caller, calls ...Call) *Client {
	var led, here []Call
	for _, call := range calls {
		if call.row.To == leader && call.answer != nil {
			led = append(led, call)
		} else {
			here = append(here, call)
		}
	}
	to := NewToLeader(ToLeaderConfig{})
	to.Lead(led...)
	return NewServer(ServerConfig{Leader: to}, here...).As(c)
}

// Answers tells whether there is an answer to a row here and now, this node's own or as the leader.
func (s *Server) Answers(row *Row) bool {
	if led := s.cfg.Leader.led.Load(); led != nil && row.To == leader {
		_, ok := led[row]
		return ok
	}
	_, ok := s.here[row]
	return ok
}

// knows tells whether a row is answered here or passed on.
func (s *Server) knows(row *Row) bool {
	_, here := s.here[row]
	return here || row.To == leader
}

// Users serves only the users' procedures, as on the socket.
func (s *Server) Users() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if row := Find(r.URL.Path); row != nil && !row.ForUsers() {
			noCall(w, r)
			return
		}
		s.ServeHTTP(w, r)
	})
}

// noCall answers a path that is no row's. This program's own clients take a bare 404 for ErrOlder.
func noCall(w http.ResponseWriter, r *http.Request) {
	if !facing(r) {
		http.NotFound(w, r)
		return
	}
	Refuse(w, fmt.Errorf("%s: %w: `sparkrun help api` lists the calls", r.URL.Path, ErrNoCall))
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	row := Find(r.URL.Path)
	if row == nil || !s.knows(row) {
		noCall(w, r)
		return
	}
	ctx := r.Context()
	c, err := callerOf(ctx, r.Header)
	if err == nil {
		err = row.Who.allows(c)
	}
	if err != nil { // before a byte of it is read
		ended(ctx, false, err)
		Refuse(w, err)
		return
	}
	out := &reply{w: w, streams: row.Streams, face: facing(r)}
	read := theCodec.Unmarshal
	if out.face {
		if status, err := faceRefuses(row, r); err != nil {
			refuseAs(w, status, err)
			return
		}
		read = fromFace
	}
	if control := s.here[row].control; control != nil {
		out.end(control(ctx, c, serverEnd{out, &frames{from: r.Body}, http.NewResponseController(w)}))
		return
	}
	req := row.newReq()
	limit := row.Limit
	if limit == 0 {
		limit = maxMessage
	}
	b, err := readBody(r.Body, limit)
	if err == nil {
		err = read(b, req)
	}
	if err == nil {
		err = s.answer(ctx, row, c, req, out.send)
		ended(ctx, true, err)
	}
	out.end(err)
}

// answerHere is for calls from this process.
func (s *Server) answerHere(ctx context.Context, row *Row, c Caller, req any, send sender) error {
	if !s.knows(row) {
		return &remoteError{text: ErrOlder.Error(), sentinel: ErrOlder}
	}
	if err := row.Who.allows(c); err != nil {
		return err
	}
	return s.answer(ctx, row, c, req, send)
}

func (s *Server) answer(ctx context.Context, row *Row, c Caller, req any, send sender) (err error) {
	if row.Audit != "" && s.cfg.Audit != nil {
		send, write := s.audited(row, c, req, send)
		defer func() { write(err) }()
		return s.route(ctx, row, c, req, send)
	}
	return s.route(ctx, row, c, req, send)
}

// audited records a call: a stream, which may last for days, when it has begun.
func (s *Server) audited(row *Row, c Caller, req any, send sender) (sends sender, write func(error)) {
	written := false
	write = func(err error) {
		if written {
			return
		}
		written = true
		on, does := "", true
		switch r := req.(type) {
		case aboutIt:
			on, does = r.about()
		case *rendezvous.GatewayChange:
			on = r.String()
		}
		if does || err != nil {
			s.cfg.Audit(row.Audit, c, on, err)
		}
	}
	if !row.Streams {
		return send, write
	}
	return func(m any) error {
		if w, ok := m.(interface{ waits() bool }); !ok || !w.waits() { // it may be refused yet
			write(nil)
		}
		return send(m)
	}, write
}

func (s *Server) route(ctx context.Context, row *Row, c Caller, req any, send sender) error {
	if c, ok := req.(checked); ok {
		if err := c.check(); err != nil {
			return err
		}
	}
	call := s.here[row]
	switch {
	case call.everywhere != nil:
		return call.everywhere(ctx, s.cfg.Everyone, c, req, send)
	case row.To == here:
		return call.answer(ctx, c, req, send)
	case call.around != nil && c.Node == "":
		return call.around(ctx, c, req, send, func(ctx context.Context, req any, send sender) error {
			return s.cfg.Leader.ask(ctx, row, c, req, send)
		})
	}
	return s.cfg.Leader.ask(ctx, row, c, req, send)
}

// ControlStream is the node's end of a control stream. Receive and Send may be
// called side by side, each from one goroutine.
type ControlStream interface {
	Receive() (Down, error)
	Send(Up) error
	// Close wakes a Receive that waits, and within a second a Send that does:
	// neither ends by itself while the other side only keeps silent.
	Close()
}

type serverEnd struct {
	out       *reply
	in        *frames
	deadlines *http.ResponseController
}

// Receive gives io.EOF where the leader has closed its side.
func (e serverEnd) Receive() (d Down, err error) {
	if err = e.in.next(&d); errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	return d, err
}

func (e serverEnd) Send(u Up) error { return e.out.send(&u) }

// Close leaves a second for what is being written: the handler's error is the last
// message on the stream and tells the leader why.
func (e serverEnd) Close() {
	_ = e.deadlines.SetReadDeadline(time.Unix(1, 0))
	_ = e.deadlines.SetWriteDeadline(time.Now().Add(time.Second))
}
