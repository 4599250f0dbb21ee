package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
)

// bufferSize is of what a stream is copied with.
const bufferSize = 8 << 10

type buffers struct{ pool sync.Pool }

// Get gives a buffer to copy with.
func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return p[:]
	}
	return make([]byte, bufferSize)
}

// Put takes it back.
func (b *buffers) Put(p []byte) { b.pool.Put((*[bufferSize]byte)(p)) }

// outgoing is a long body on its way to an engine: what was read of it, then the rest.
type outgoing struct {
	head []byte
	rest io.Reader

	mu     sync.Mutex
	closed bool
}

// Read gives the next piece.
func (o *outgoing) Read(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return 0, http.ErrBodyReadAfterClose
	case len(o.head) > 0:
		n := copy(p, o.head)
		o.head = o.head[n:]
		return n, nil
	}
	return o.rest.Read(p)
}

// Close lets what was read go.
func (o *outgoing) Close() error {
	if o.mu.TryLock() { // else a read is under way, whose connection ends with the request
		o.closed, o.head = true, nil
		o.mu.Unlock()
	}
	return nil
}

// rename puts the engine's own name for the model where the client put an alias.
func (rq *request) rename() {
	if rq.asked == rq.model || rq.end <= rq.start {
		return
	}
	name := []byte(rq.model)
	if !rq.form {
		b, err := json.Marshal(rq.model)
		if err != nil { // of a string: it cannot
			panic(err)
		}
		name = b
	}
	head := make([]byte, 0, len(rq.head)+len(name)-(rq.end-rq.start))
	head = append(append(append(head, rq.head[:rq.start]...), name...), rq.head[rq.end:]...)
	if rq.length >= 0 {
		rq.length += int64(len(head) - len(rq.head))
	}
	rq.head = head
}

// forward has a service answer. An unreachedError: it has not seen the request. Any other: it may have.
func (g *Gateway) forward(rq *request, b *backend) error {
	defer g.uses.begins(b, rq.key)()
	rq.to = b
	rq.r.ContentLength = rq.length
	switch {
	case len(rq.head) == 0 && rq.whole:
		rq.r.Body, rq.r.ContentLength = http.NoBody, 0
	case rq.whole:
		rq.r.Body, rq.r.ContentLength, rq.r.TransferEncoding = http.NoBody, int64(len(rq.head)), nil // see direct
	default:
		rq.r.Body = &outgoing{head: rq.head, rest: rq.in}
	}
	var failed error
	p := httputil.ReverseProxy{
		Transport: g.transportOf(rq), BufferPool: &g.buffers, ErrorLog: g.errorLog,
		Rewrite:        func(pr *httputil.ProxyRequest) { rq.direct(pr, b) },
		ModifyResponse: func(res *http.Response) error { return g.watch(rq, b, res) },
		ErrorHandler:   func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
	}
	p.ServeHTTP(rq.answer, rq.r)
	return failed
}

// direct makes the request one to the engine: its path is one of ours, and of its headers what a client could have put
// there in another's name is gone, and what would have the transport send it twice.
func (rq *request) direct(pr *httputil.ProxyRequest, b *backend) {
	out := pr.Out
	out.URL = &url.URL{Scheme: "http", Host: b.addr, Path: rq.path, RawQuery: out.URL.RawQuery}
	out.Host = ""
	if rq.whole && len(rq.head) > 0 {
		// Of a reader that it knows the transport sends head and body with one write. By GetBody it may send them on
		// another connection if it has written nothing on the first (http.Transport, shouldRetryRequest).
		out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(rq.head)), nil }
		out.Body, _ = out.GetBody() //nolint:errcheck // of memory
	}
	for _, name := range []string{
		"X-Real-Ip", "X-Forwarded-Port", "X-Forwarded-Server", "X-Forwarded-Ssl", "X-Forwarded-Prefix", "X-Client-Ip",
		"True-Client-Ip", "Connection", "Upgrade", "Expect", "Accept-Encoding", "Idempotency-Key", "X-Idempotency-Key",
		"X-Original-Url", "X-Rewrite-Url", "X-Http-Method-Override",
	} {
		delete(out.Header, name)
	}
	if host, _, err := net.SplitHostPort(pr.In.RemoteAddr); err == nil {
		out.Header["X-Forwarded-For"] = []string{host}
	}
}

// watch looks at an engine's answer as it passes.
func (g *Gateway) watch(rq *request, b *backend, res *http.Response) error {
	b.load.unreached.Store(false)
	if err := absent(rq, b, res); err != nil {
		return err
	}
	kind := res.Header.Get("Content-Type")
	events := isStream(res.Header)
	w := &watched{
		ReadCloser: res.Body, ctx: rq.r.Context(), first: firstByteOf(rq.counter, rq.began), events: events,
		broken: func(err error) []byte {
			rq.broken = true
			if silent(err) {
				g.avoid(b)
			}
			g.sparing.Say(slog.LevelWarn, "engine broke off", string(b.Job), slog.String("job", string(b.Job)),
				slog.String("error", err.Error()))
			return rq.answer.form.event(refuse(502, "", "%s", brokeOff(rq, b, err)))
		},
		keep: rq.route.previous || events && rq.answer.form == anthropic,
	}
	if events || strings.HasPrefix(kind, "application/json") {
		w.tail = new(tail)
	}
	rq.watched = w
	res.Body = w
	return nil
}

// absentMost is the longest answer by which an engine says that it has no such path, in bytes.
const absentMost = 256

// absent is told where the engine does not have the path: of that it says no more than its library does (FastAPI:
// {"detail":"Not Found"}, llama.cpp: File Not Found), and its client would look for a mistake of its own.
func absent(rq *request, b *backend, res *http.Response) error {
	status := res.StatusCode
	if status != http.StatusNotFound && status != http.StatusMethodNotAllowed || res.ContentLength < 0 ||
		res.ContentLength > absentMost {
		return nil
	}
	said, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	res.Body.Close()
	res.Body = io.NopCloser(bytes.NewReader(said))
	switch strings.ToLower(errorText(said)) {
	case "", "not found", "file not found", "404 page not found", "method not allowed":
	default:
		return nil
	}
	return refuse(status, "", "the engine of model %s (job %s on %s) does not take %s %s: a model of another kind may, or "+
		"an engine that was started for it", rq.model, b.Job, b.Host, rq.r.Method, rq.path)
}

func brokeOff(rq *request, b *backend, err error) string {
	err = plainly(err, b)
	return fmt.Sprintf("the engine of model %s broke off (job %s on %s): %s; what it had begun is not sent to another: "+
		"ask again", rq.model, b.Job, b.Host, err)
}

// plainly is how a connection ended.
func plainly(err error, b *backend) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
		return errors.New("the connection closed")
	case silent(err):
		return fmt.Errorf("%s does not answer any more", b.Host)
	}
	return err
}

// noAnswer is what a client is told when an engine took its request and gave no answer.
func noAnswer(rq *request, b *backend, err error) *refusal {
	err = plainly(err, b)
	return refuse(502, "", "the engine of model %s gave no answer (job %s on %s): %s; it may have begun, so the "+
		"request is sent to no other: ask again", rq.model, b.Job, b.Host, strconv.Quote(err.Error()))
}
