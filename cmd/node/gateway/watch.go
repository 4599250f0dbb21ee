package gateway

import (
	"bytes"
	"context"
	"io"
	"strconv"
	"time"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

const (
	tailSize = 4 << 10 // of an answer's end, where its usage stands
	headSize = 4 << 10 // of an answer's beginning, where its id stands, and what an Anthropic stream has of its prompt
)

// errBroken ends an answer that is not complete: ReverseProxy aborts the client's connection by any error, and logs all
// but this one. It does not know which engine broke off, nor whether the client did.
var errBroken = context.Canceled

// watched is an engine's answer on its way to the client.
type watched struct {
	io.ReadCloser
	ctx context.Context // the client's
	// events: it is a stream, of which only whole events are passed on, so that after a break one can follow that
	// clients understand.
	events bool
	broken func(error) []byte // the last event; what is no stream has none
	first  func()             // is called with the first byte

	held []byte // the beginning of an event
	end  error  // what follows held
	tail *tail  // nil: it says no usage
	head []byte
	keep bool // head is wanted
}

// Read gives the next piece.
func (w *watched) Read(p []byte) (int, error) {
	for {
		n := 0
		switch {
		case w.end != nil && len(w.held) == 0:
			return 0, w.end
		case len(w.held) > 0 && (w.end != nil || len(w.held) >= len(p)):
			n = copy(p, w.held)
			w.held = w.held[n:]
			return n, nil //nolint:nilerr // the end is told once all is passed on
		case len(w.held) > 0:
			n = copy(p, w.held)
			w.held = w.held[:0]
		}
		got, err := w.ReadCloser.Read(p[n:])
		w.see(p[n : n+got])
		n += got
		if err != nil && err != io.EOF && w.events {
			whole := lastEvent(p[:n])
			w.end = errBroken
			w.held = nil
			if w.ctx.Err() == nil {
				w.held = w.broken(err)
			}
			if whole > 0 {
				return whole, nil //nolint:nilerr // the event that follows tells of it
			}
			continue
		}
		if err != nil && err != io.EOF {
			if w.ctx.Err() == nil {
				w.broken(err)
			}
			err = errBroken
		}
		if err != nil || !w.events {
			return n, err
		}
		whole := lastEvent(p[:n])
		if whole == 0 && n == len(p) {
			return n, nil // longer than a buffer: it is passed on as it comes
		}
		if whole < n {
			w.held = append(w.held[:0], p[whole:n]...)
		}
		if whole > 0 {
			return whole, nil
		}
	}
}

// lastEvent is where the last whole event ends: after an empty line.
func lastEvent(p []byte) int {
	for end := len(p); end > 1; {
		i := bytes.LastIndexByte(p[:end], '\n')
		if i < 1 {
			return 0
		}
		if p[i-1] == '\n' || i > 1 && p[i-1] == '\r' && p[i-2] == '\n' {
			return i + 1
		}
		end = i
	}
	return 0
}

// see takes note of what passes.
func (w *watched) see(p []byte) {
	if len(p) == 0 {
		return
	}
	if w.first != nil {
		w.first()
		w.first = nil
	}
	if w.tail != nil {
		w.tail.take(p)
	}
	if w.keep && len(w.head) < headSize {
		w.head = append(w.head, p[:min(len(p), headSize-len(w.head))]...)
	}
}

// tail keeps the last bytes of what it is given.
type tail struct {
	buf  [tailSize]byte
	at   int // where the next byte goes
	full bool
}

func (t *tail) take(p []byte) {
	if len(p) >= len(t.buf) {
		copy(t.buf[:], p[len(p)-len(t.buf):])
		t.at, t.full = 0, true
		return
	}
	n := copy(t.buf[t.at:], p)
	if n < len(p) {
		copy(t.buf[:], p[n:])
		t.full = true
	}
	if t.at += len(p); t.at >= len(t.buf) {
		t.at, t.full = t.at-len(t.buf), true
	}
}

func (t *tail) bytes() []byte {
	if !t.full {
		return t.buf[:t.at]
	}
	return append(append(make([]byte, 0, len(t.buf)), t.buf[t.at:]...), t.buf[:t.at]...)
}

// usage reads how many tokens an answer used, out of its end, or where that does not say how many its prompt had out of
// its beginning: llama.cpp tells them in an Anthropic stream's first event alone, as Anthropic does.
func usage(head, end []byte) (in, out int64) {
	if i := bytes.LastIndex(end, []byte(`"usage"`)); i >= 0 {
		in, out = prompt(end[i:]), number(end[i:], "completion_tokens", "output_tokens")
	}
	if i := bytes.Index(head, []byte(`"usage"`)); in == 0 && i >= 0 {
		in = prompt(head[i:])
	}
	return in, out
}

// prompt is how many tokens a prompt has. Anthropic's API counts those found in a cache apart.
func prompt(in []byte) int64 {
	return number(in, "prompt_tokens", "input_tokens") + number(in, "cache_read_input_tokens") +
		number(in, "cache_creation_input_tokens")
}

// number is the value of the first of these fields that there is.
func number(in []byte, names ...string) int64 {
	for _, name := range names {
		i := bytes.Index(in, []byte(`"`+name+`"`))
		if i < 0 {
			continue
		}
		rest := bytes.TrimLeft(in[i+len(name)+2:], ": \t\r\n")
		n := 0
		for n < len(rest) && rest[n] >= '0' && rest[n] <= '9' {
			n++
		}
		if v, err := strconv.ParseInt(string(rest[:n]), 10, 48); err == nil {
			return v
		}
	}
	return 0
}

var answerID = plain.Pattern(`"id"\s*:\s*"(resp[A-Za-z0-9_-]{1,200})"`)

// firstByteOf has a counter told when the answer begins.
func firstByteOf(c *counter, asked time.Time) func() {
	return func() { c.firstByte(time.Since(asked)) }
}
