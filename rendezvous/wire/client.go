package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/sparkrun/sparkrun/launcher"
)

// Client calls one node: the own agent, the leader, or any member.
type Client struct {
	http  *http.Client
	base  string
	on    *Caller // whose call is passed on; nil = our own
	local inProcess
}

// inProcess answers in this process, for on.
type inProcess interface {
	answerHere(ctx context.Context, row *Row, c Caller, req any, send sender) error
}

// NewClient makes calls through hc, which knows how to reach and verify the
// node. base is a URL whose host only hc interprets.
func NewClient(hc *http.Client, base string) *Client { return &Client{http: hc, base: base} }

// OnBehalfOf marks calls as passed on for a user of this node: the receiver
// will not pass them on again.
func (c *Client) OnBehalfOf(user Caller) *Client {
	fwd := *c
	fwd.on = &user
	return &fwd
}

// Close drops idle connections.
func (c *Client) Close() {
	if c.http != nil {
		c.http.CloseIdleConnections()
	}
}

// do makes a call and passes its replies to take, in the caller's own goroutine.
func (c *Client) do(ctx context.Context, row *Row, req any, take func(any) error) error {
	if c.local != nil {
		return c.local.answerHere(ctx, row, *c.on, req, take)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends a stream at the server when take fails
	b, err := theCodec.Marshal(req)
	if err != nil {
		return err
	}
	r, err := c.request(ctx, row, bytes.NewReader(b))
	if err != nil {
		return err
	}
	res, err := c.http.Do(r)
	if err != nil {
		return lost(ctx, err)
	}
	defer res.Body.Close()
	switch {
	case res.StatusCode != http.StatusOK:
		return c.failed(ctx, refusal(res))
	case !row.Streams:
		b, err := readBody(res.Body, max(maxMessage, row.Limit))
		switch {
		case errors.Is(err, launcher.ErrInvalid):
			return err
		case err != nil:
			return lost(ctx, err)
		}
		m := row.newRes()
		if err := theCodec.Unmarshal(b, m); err != nil {
			return err
		}
		return take(m)
	}
	from := frames{from: res.Body}
	for {
		m := row.newRes()
		switch err := from.next(m); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return c.failed(ctx, err)
		}
		if err := take(m); err != nil {
			return err
		}
	}
}

func (c *Client) request(ctx context.Context, row *Row, body io.Reader) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+row.Path(), body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", mimeCBOR)
	c.on.write(r.Header)
	return r, nil
}

// failed distinguishes the end of the caller's ctx, and a lost connection, from an error of the other side.
func (c *Client) failed(ctx context.Context, err error) error {
	if broken, ok := errors.AsType[cutError](err); ok {
		return lost(ctx, broken.error)
	}
	if ctx.Err() != nil && (errors.Is(err, ErrUnreachable) || errors.Is(err, context.DeadlineExceeded)) {
		return ctx.Err()
	}
	return err
}

// duplex is the row of control streams.
type duplex struct{ *Row }

// Serve has fn answer a leader's control stream.
func (d duplex) Serve(fn func(context.Context, Caller, ControlStream) error) Call {
	return Call{row: d.Row, control: fn}
}

// ControlLink is the leader's end of a control stream. Receive and Send may be called
// concurrently, each from one goroutine.
type ControlLink struct {
	ctx    context.Context // the stream's
	cancel context.CancelFunc
	client *Client
	out    *io.PipeWriter
	begun  sync.WaitGroup // of what follows
	from   frames
	body   io.Closer
	err    error
}

// Open opens a control stream, that ends with ctx or by Close.
func (d duplex) Open(ctx context.Context, c *Client) *ControlLink {
	ctx, cancel := context.WithCancel(ctx)
	in, out := io.Pipe()
	l := &ControlLink{ctx: ctx, cancel: cancel, client: c, out: out}
	l.begun.Go(func() { // the headers come with the other side's first message
		r, err := c.request(ctx, d.Row, in)
		var res *http.Response
		if err == nil {
			res, err = c.http.Do(r)
		}
		switch {
		case err != nil:
			l.err = lost(ctx, err)
		case res.StatusCode != http.StatusOK:
			l.err = c.failed(ctx, refusal(res))
			err = res.Body.Close()
		default:
			l.from, l.body = frames{from: res.Body}, res.Body
			return
		}
		in.CloseWithError(errors.Join(io.EOF, err)) // for a Send that waits
	})
	return l
}

// Send writes one message. io.EOF means that the other side closed the stream; Receive
// then says why.
func (l *ControlLink) Send(d Down) error {
	err := writeFrame(l.out, &d)
	switch {
	case err == nil:
		return nil
	case l.ctx.Err() != nil:
		return l.ctx.Err()
	}
	return io.EOF
}

// Receive waits for the node's next message.
func (l *ControlLink) Receive() (u Up, err error) {
	l.begun.Wait()
	if l.err != nil {
		return u, l.err
	}
	if err = l.from.next(&u); err == nil || errors.Is(err, io.EOF) {
		return u, err
	}
	return u, l.client.failed(l.ctx, err)
}

// Close ends the stream, and with it a Send or Receive that waits.
func (l *ControlLink) Close() {
	l.cancel() // first: the closes below would wait for a silent node
	l.out.CloseWithError(context.Canceled)
	l.begun.Wait()
	if l.body != nil {
		l.body.Close()
	}
}
