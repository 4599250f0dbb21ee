package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// ServerConfig of what answers calls.
type ServerConfig struct {
	Host string // this node's name, for people
	// Leader gives who leads, or the error that says why there is none. Nil: nothing is passed on.
	Leader func() (Leader, error)
	// Over says of an error of a leader's answer that it means the end of its leadership, by ErrRetry. Nil: none does.
	Over func(error) error
	// Audit writes down a user's call, or that it was refused. Nil: nobody wants to know.
	Audit func(what string, c Caller, on string, err error)
}

// Leader is another node that leads.
type Leader struct {
	Host   string
	Client *Client
	// Gone returns when another is known to lead, or with ctx: that may be before a dead one's connection breaks.
	Gone func(ctx context.Context)
}

// Server answers the calls that it is given, and passes those on that go to the leader.
type Server struct {
	cfg  ServerConfig
	here map[*Row]Call
	led  atomic.Pointer[map[*Row]Call] // nil while this node does not lead
}

// NewServer answers by these calls. Those that go to the leader are given to Lead; here they have Around at most.
func NewServer(cfg ServerConfig, calls ...Call) *Server {
	for _, c := range calls {
		if c.row.To == leader && c.answer != nil {
			panic(c.row.Path() + " is the leader's")
		}
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

// Lead has this node answer what goes to the leader, until end.
func (s *Server) Lead(calls ...Call) (end func()) {
	m := byRow(calls)
	for row := range m {
		if row.To != leader {
			panic(row.Path() + " is not the leader's")
		}
	}
	s.led.Store(&m)
	return func() { s.led.CompareAndSwap(&m, nil) }
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
	s := NewServer(ServerConfig{}, here...)
	s.Lead(led...)
	return s.As(c)
}

// Answers tells whether there is an answer to a row here and now, this node's own or as the leader.
func (s *Server) Answers(row *Row) bool {
	if led := s.led.Load(); led != nil && row.To == leader {
		_, ok := (*led)[row]
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

// Users serves what is for users alone, as on the socket.
func (s *Server) Users() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if row := Find(r.URL.Path); row != nil && !row.ForUsers() {
			http.NotFound(w, r)
			return
		}
		s.ServeHTTP(w, r)
	})
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	row := Find(r.URL.Path)
	if row == nil || !s.knows(row) {
		http.NotFound(w, r)
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
	out := &reply{w: w, streams: row.Streams, face: r.Header.Get("Content-Type") != mimeCBOR}
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

// audited has a call written down: a stream, which may last for days, when it has begun.
func (s *Server) audited(row *Row, c Caller, req any, send sender) (sends sender, write func(error)) {
	written := false
	write = func(err error) {
		if written {
			return
		}
		written = true
		on, does := "", true
		if about, ok := req.(aboutIt); ok {
			on, does = about.about()
		}
		if does || err != nil {
			s.cfg.Audit(row.Audit, c, on, err)
		}
	}
	if !row.Streams {
		return send, write
	}
	return func(m any) error {
		write(nil)
		return send(m)
	}, write
}

func (s *Server) route(ctx context.Context, row *Row, c Caller, req any, send sender) error {
	call := s.here[row]
	switch {
	case row.To == here:
		return call.answer(ctx, c, req, send)
	case call.around != nil && c.Node == "":
		return call.around(ctx, c, req, send, func(ctx context.Context, req any, send sender) error {
			return s.ask(ctx, row, c, req, send)
		})
	}
	return s.ask(ctx, row, c, req, send)
}

// ask has the leader answer: this node, or another.
func (s *Server) ask(ctx context.Context, row *Row, c Caller, req any, send sender) error {
	if led := s.led.Load(); led != nil {
		call, ok := (*led)[row]
		if !ok {
			return &remoteError{text: ErrOlder.Error(), sentinel: ErrOlder}
		}
		err := call.answer(ctx, c, req, send)
		if err != nil && s.cfg.Over != nil {
			err = s.cfg.Over(err)
		}
		return err
	}
	return s.Forward(ctx, c, func(ctx context.Context, to *Client) error { return to.do(ctx, row, req, send) })
}

// Forward has ask call another node that leads, on behalf of c. What was passed on already is refused. That the leader
// is lost on the way becomes ErrRetry: the caller asks again with the same id, and finds the next one.
func (s *Server) Forward(ctx context.Context, c Caller, ask func(ctx context.Context, leader *Client) error) error {
	if c.Node != "" || s.cfg.Leader == nil {
		return fmt.Errorf("%s does not lead: %w", s.cfg.Host, ErrRetry)
	}
	to, err := s.cfg.Leader()
	if err != nil {
		return err
	}
	way, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with way
		to.Gone(way)
		cancel()
	}()
	switch err := ask(way, to.Client.OnBehalfOf(c)); {
	case err == nil:
		return nil
	case way.Err() != nil && ctx.Err() == nil:
		return fmt.Errorf("%s no longer leads: %w", to.Host, ErrRetry)
	case errors.Is(err, ErrUnreachable):
		return fmt.Errorf("the leader %s %w: %w", to.Host, ErrUnreachable, ErrRetry)
	default:
		return err
	}
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

// Close leaves a second for what is being written: the handler's error is the
// last word on the stream, and tells the leader why.
func (e serverEnd) Close() {
	_ = e.deadlines.SetReadDeadline(time.Unix(1, 0))
	_ = e.deadlines.SetWriteDeadline(time.Now().Add(time.Second))
}
