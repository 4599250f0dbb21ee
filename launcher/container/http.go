package container

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// The engine's API is HTTP over a unix socket: one request a connection, no TLS, no
// redirects. That much is here, for each rank in a container has a process that asks an
// engine, and with Docker's own client library it would take more than twice as long to start.

// The status codes that requests here distinguish.
const (
	statusOK           = 200
	statusRedirect     = 300 // and above: no success, except for statusNotModified
	statusNotModified  = 304 // started already
	statusUnauthorized = 401
	statusForbidden    = 403
	statusNotFound     = 404
	statusConflict     = 409
)

// maxComplaint bounds what is read of an error's text, in bytes.
const maxComplaint = 1 << 20

// refusal is an answer that is no success.
type refusal struct {
	code int
	text string
}

func (r *refusal) Error() string { return r.text }

// refusedWith reports whether the engine answered with one of these codes.
func refusedWith(err error, codes ...int) bool {
	var r *refusal
	if !errors.As(err, &r) {
		return false
	}
	for _, c := range codes {
		if r.code == c {
			return true
		}
	}
	return false
}

// request is one call of an engine's API.
type request struct {
	method, path string
	query        url.Values
	auth         string // X-Registry-Auth
	in           any    // sent as JSON; nil: nothing is
}

// response is a success: its body has to be closed.
type response struct {
	header textproto.MIMEHeader
	body   io.Reader
	conn   net.Conn
	stop   func() bool
}

// Close ends the connection, and with it the call.
func (r *response) Close() {
	r.stop()
	r.conn.Close()
}

// call sends a request and reads its answer into out; nil: the answer is dropped.
func (e *Engine) call(ctx context.Context, q request, out any) error {
	r, err := e.send(ctx, q)
	if err != nil {
		return err
	}
	defer r.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(r.body).Decode(out); err != nil {
		return fmt.Errorf("read the engine's answer: %w", cause(ctx, err))
	}
	return nil
}

// send sends a request and reads the head of its answer. ErrNoEngine: there is none. The
// end of ctx ends reading, too.
func (e *Engine) send(ctx context.Context, q request) (_ *response, err error) {
	text, err := q.text(e.version)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", e.socket)
	if err != nil {
		return nil, cause(ctx, errors.Join(ErrNoEngine, err))
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	r := &response{conn: conn, stop: stop}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	in := bufio.NewReader(conn)
	if _, err = conn.Write(text); err != nil {
		return nil, cause(ctx, errors.Join(ErrNoEngine, err))
	}
	code, err := r.head(in)
	if err != nil {
		return nil, cause(ctx, errors.Join(ErrNoEngine, err))
	}
	if code >= statusOK && code < statusRedirect || code == statusNotModified {
		return r, nil
	}
	return nil, cause(ctx, r.refusal(code))
}

// text is the request as it is sent.
func (q request) text(version string) ([]byte, error) {
	var body []byte
	if q.in != nil {
		var err error
		if body, err = json.Marshal(q.in); err != nil {
			return nil, err
		}
	}
	target := url.URL{Path: q.path, RawQuery: q.query.Encode()}
	if version != "" {
		target.Path = "/v" + version + q.path
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: docker\r\nUser-Agent: sparkrun\r\nConnection: close\r\n", q.method,
		target.RequestURI())
	if q.auth != "" {
		fmt.Fprintf(&b, "X-Registry-Auth: %s\r\n", q.auth)
	}
	if body != nil {
		b.WriteString("Content-Type: application/json\r\n")
	}
	fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n", len(body))
	b.Write(body)
	return b.Bytes(), nil
}

// head reads an answer up to its body.
func (r *response) head(in *bufio.Reader) (code int, err error) {
	text := textproto.NewReader(in)
	line, err := text.ReadLine()
	if err != nil {
		return 0, err
	}
	proto, rest, _ := strings.Cut(line, " ")
	number, _, _ := strings.Cut(rest, " ")
	if code, err = strconv.Atoi(number); err != nil || !strings.HasPrefix(proto, "HTTP/1.") {
		return 0, fmt.Errorf("%.80q is no answer in HTTP", line)
	}
	if r.header, err = text.ReadMIMEHeader(); err != nil {
		return 0, err
	}
	length := r.header.Get("Content-Length")
	switch {
	case strings.EqualFold(r.header.Get("Transfer-Encoding"), "chunked"):
		r.body = &chunked{in: in}
	case length != "":
		n, err := strconv.ParseInt(length, 10, 64)
		if err != nil || n < 0 {
			return 0, fmt.Errorf("an answer of %q bytes", length)
		}
		r.body = io.LimitReader(in, n)
	default:
		r.body = in
	}
	return code, nil
}

// refusal reads why a request was refused.
func (r *response) refusal(code int) error {
	text, err := io.ReadAll(io.LimitReader(r.body, maxComplaint))
	var m struct{ Message string }
	if json.Unmarshal(text, &m) == nil && m.Message != "" {
		text = []byte(m.Message)
	}
	said := strings.TrimSpace(string(text))
	if said == "" {
		said = fmt.Sprintf("the engine answers %d without a reason", code)
	}
	return errors.Join(&refusal{code, said}, err)
}

// chunked reads a body of the transfer coding chunked (RFC 9112, section 7.1).
type chunked struct {
	in   *bufio.Reader
	left int64 // of the chunk
	err  error
}

func (c *chunked) Read(p []byte) (n int, err error) {
	if c.left == 0 && c.err == nil {
		c.next()
	}
	if c.err != nil {
		return 0, c.err
	}
	n, err = c.in.Read(p[:min(int64(len(p)), c.left)])
	if c.left -= int64(n); c.left == 0 && err == nil {
		_, err = c.in.Discard(len("\r\n"))
	}
	c.err = early(err)
	return n, c.err
}

// next reads a chunk's size; one of 0 is the end.
func (c *chunked) next() {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		c.err = early(err)
		return
	}
	size, _, _ := strings.Cut(strings.TrimSpace(string(line)), ";")
	switch c.left, err = strconv.ParseInt(size, 16, 64); {
	case err != nil || c.left < 0:
		c.err = fmt.Errorf("a chunk of %.80q bytes", size)
	case c.left == 0:
		c.err = io.EOF
	}
}

// early: the connection ended before the body did.
func early(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
