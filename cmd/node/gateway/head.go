package gateway

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"sync"
	"time"
)

// Bounds of what is kept of a body, in bytes.
const (
	// headEnough: a body that is no longer is read whole before an engine is asked; of a longer one no more than this,
	// if the model has been found by then.
	headEnough = 64 << 10
	// headMost is read of what may say with which earlier answer to go on, and of what waits.
	headMost = 1 << 20
	// modelMost: the model has to come by then. Anthropic's clients put it behind the messages, with their pictures.
	modelMost = 32 << 20
	// formMost: a form is read whole, as curl's users put the file first.
	formMost = 32 << 20
	// keptMost is what all requests of this member keep together, beyond headEnough of each.
	keptMost = 128 << 20
)

// bodyPatience is how long a client may take for the next piece of its body.
const bodyPatience = time.Minute

// incoming is a request's body as it comes from the client.
type incoming struct {
	body io.Reader
	rc   *http.ResponseController
	scan *scan // nil: a form

	mu   sync.Mutex
	over bool     // the request is: the connection is the next one's
	bad  *refusal // why it was not read to its end
}

// Read reads the next piece and scans it. What a scan refuses goes no further: an engine that gets half a body does
// nothing.
func (in *incoming) Read(p []byte) (int, error) {
	if !in.await(time.Now().Add(bodyPatience)) {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := in.body.Read(p)
	if err != nil {
		in.await(time.Time{}) // the server waits for the client's leaving by a read of its own
	}
	if in.scan != nil && n > 0 {
		if err := in.scan.take(p[:n]); err != nil {
			return 0, in.refuse(refuse(400, "", "read request: %s", err))
		}
	}
	switch {
	case err == io.EOF && in.scan != nil && !in.scan.ended():
		return 0, in.refuse(refuse(400, "", "read request: not JSON: the body ends before its object does"))
	case err == nil || err == io.EOF:
		return n, err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, in.refuse(refuse(408, "", "read request: nothing came for %s", bodyPatience))
	}
	return 0, in.refuse(refuse(400, "", "read request: the body breaks off: %s", err))
}

// await bounds the next read; errors are those of writers that have no deadlines.
func (in *incoming) await(until time.Time) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.over {
		return false
	}
	in.rc.SetReadDeadline(until) //nolint:errcheck
	return true
}

func (in *incoming) refuse(e *refusal) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.bad == nil {
		in.bad = e
	}
	return e
}

func (in *incoming) refused() *refusal {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.bad
}

// Bounds of drain.
const (
	drainMost = 64 << 20
	drainFor  = 5 * time.Second
)

// drain reads the rest of a body that is refused: most clients write all of theirs before they read an answer, and
// would see but a connection that broke.
func (in *incoming) drain() {
	if in.await(time.Now().Add(drainFor)) {
		io.CopyN(io.Discard, in.body, drainMost) //nolint:errcheck // it was of no use anyway
		in.await(time.Time{})
	}
}

// end has no read touch the connection any more.
func (in *incoming) end() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.over = true
}

// readHead reads as much of the body as tells where it goes.
func (g *Gateway) readHead(rq *request) *refusal {
	enough, most := headEnough, modelMost
	if rq.route.previous {
		enough = headMost // what it goes on with may stand anywhere
	}
	boundary, bad := rq.formBoundary()
	if bad != nil {
		return bad
	}
	if boundary != "" {
		enough, most = formMost, formMost
	} else {
		rq.in.scan = &rq.scan
	}
	size := 4 << 10
	if n := rq.r.ContentLength; n >= 0 && n <= headEnough {
		size = int(n)
	}
	if n := rq.r.ContentLength; n > int64(most) && boundary != "" {
		return refuse(413, "", "a form may have %d MiB, this one has %d: send a shorter recording", formMost>>20, n>>20)
	}
	buf := make([]byte, 0, max(size, 1))
	for len(buf) < enough || boundary == "" && !rq.scan.hasModel {
		if len(buf) == cap(buf) {
			if len(buf) >= most {
				break
			}
			bigger := min(2*cap(buf), most)
			if bad := g.keep(rq, int64(bigger)); bad != nil {
				return bad
			}
			buf = append(make([]byte, 0, bigger), buf...)
		}
		n, err := rq.in.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			rq.whole = true
			break
		}
		if bad := rq.in.refused(); bad != nil {
			return bad
		}
		if err != nil {
			return refuse(400, "", "read request: %s", err)
		}
	}
	rq.head = buf
	if boundary != "" {
		if !rq.whole {
			return refuse(413, "", "a form may have %d MiB, this one has more: send a shorter recording", formMost>>20)
		}
		return rq.readForm(boundary)
	}
	switch {
	case rq.scan.hasModel:
		rq.asked, rq.start, rq.end = rq.scan.model, rq.scan.start, rq.scan.end
		return nil
	case rq.whole:
		return refuse(400, "", `the request names no model: put "model" at the top level of its body; `+
			"GET /v1/models lists what there is")
	}
	return refuse(413, "", `"model" does not come within the first %d MiB of the body: put it first`, modelMost>>20)
}

// readOn reads more of a long body before its request waits: net/http sees that a client has gone only once the body
// is read (net/http/server.go, startBackgroundRead), and "stream" may stand behind the messages. Of a body that is
// longer than headMost the rest stays where it is.
func (g *Gateway) readOn(rq *request) *refusal {
	for !rq.whole && !rq.form && len(rq.head) < headMost {
		if len(rq.head) == cap(rq.head) {
			bigger := min(2*cap(rq.head), headMost)
			if bad := g.keep(rq, int64(bigger)); bad != nil {
				return bad
			}
			rq.head = append(make([]byte, 0, bigger), rq.head...)
		}
		n, err := rq.in.Read(rq.head[len(rq.head):cap(rq.head)])
		rq.head = rq.head[:len(rq.head)+n]
		if err == io.EOF {
			rq.whole = true
			break
		}
		if bad := rq.in.refused(); bad != nil {
			return bad
		}
		if err != nil {
			return refuse(400, "", "read request: %s", err)
		}
	}
	return nil
}

// keep accounts for what a request keeps beyond what each may.
func (g *Gateway) keep(rq *request, size int64) *refusal {
	more := size - headEnough - rq.kept
	if more <= 0 {
		return nil
	}
	if g.kept.Add(more) > keptMost {
		g.kept.Add(-more)
		return refuse(503, "", "this member has too many large requests under way: ask again later").after(5 * time.Second)
	}
	rq.kept += more
	return nil
}

// formBoundary is that of a multipart body; empty: it is to be JSON, whatever it is called.
func (rq *request) formBoundary() (string, *refusal) {
	h := rq.r.Header
	if enc := h.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return "", refuse(415, "", "the body is compressed (Content-Encoding: %.32s): send it as it is", enc)
	}
	if len(h["Content-Type"]) > 1 {
		return "", refuse(400, "", "the request has two Content-Type headers")
	}
	kind, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	if kind != "multipart/form-data" {
		return "", nil
	}
	if err != nil || params["boundary"] == "" {
		return "", refuse(400, "", "Content-Type %.100q: want a form's boundary", h.Get("Content-Type"))
	}
	return params["boundary"], nil
}
