package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// maxLine bounds what is kept of a line whose end has not come, in bytes. A
// longer one is cut there and goes on under a tag of its own.
const maxLine = 1 << 20

// printer merges the output of all ranks, whole lines at a time, and remembers
// how far each has come. It may be told the same bytes twice.
type printer struct {
	out, err             io.Writer
	outColour, errColour bool
	json                 bool              // objects to out, nothing to err
	note                 func(line string) // remarks of nodes; not used with json

	mu       sync.Mutex
	width    int // of the widest rank's number
	tails    map[tailKey]*tail
	lastNote map[string]string    // by host
	buf      []byte               // for one write
	failed   error                // sticky
	ended    *rendezvous.Progress // with json: the end of the story, told last

	taken atomic.Int64 // chunks taken in full: tells a stalled stream from a slow reader
	busy  atomic.Bool  // a write has not returned
}

type tailKey struct {
	rank   int
	stream wire.Stream
}

// tail is one output of one rank.
type tail struct {
	host    string
	next    int64  // the offset that has not been taken yet
	partial []byte // taken, and waiting for the end of its line
	gapAt   int64  // where bytes were missing once, or -1
}

// errOutput is wrapped by what a printer returns when nobody takes its output.
var errOutput = errors.New("write output")

// errGap asks for the output again from the cursors on.
var errGap = errors.New("output arrived with bytes missing")

func newPrinter(out, err io.Writer) *printer {
	return &printer{
		out: out, err: err, note: func(string) {},
		width: 1, tails: map[tailKey]*tail{}, lastNote: map[string]string{},
	}
}

// world aligns the tags for that many ranks.
func (p *printer) world(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.width = max(p.width, len(strconv.Itoa(max(n-1, 0))))
}

// cursors say where to go on reading.
func (p *printer) cursors() []wire.Cursor {
	p.mu.Lock()
	defer p.mu.Unlock()
	var cs []wire.Cursor
	for _, k := range p.keys() {
		cs = append(cs, wire.Cursor{Rank: k.rank, Stream: k.stream, Offset: p.tails[k].next})
	}
	return cs
}

func (p *printer) keys() []tailKey {
	return slices.SortedFunc(maps.Keys(p.tails), func(a, b tailKey) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), -cmp.Compare(a.stream, b.stream)) // "out" before "err"
	})
}

// take prints the lines that a chunk completes. What has been taken before is
// dropped. A chunk that leaves bytes out is refused once with errGap; if they
// are missing again they are gone, and that is said.
func (p *printer) take(c wire.LogChunk) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed != nil {
		return p.failed
	}
	defer p.taken.Add(1)
	k := tailKey{c.Rank, c.Stream}
	if len(c.Data) == 0 {
		if err := p.skip(k, c.Offset); err != nil {
			return err
		}
		return p.remark(c)
	}
	t := p.tails[k]
	if t == nil {
		t = &tail{gapAt: -1}
		p.tails[k] = t
		p.width = max(p.width, len(strconv.Itoa(c.Rank)))
	}
	t.host = cmp.Or(c.Host, t.host)
	data := c.Data
	switch skip := t.next - c.Offset; {
	case skip >= int64(len(data)):
		return nil
	case skip >= 0:
		data = data[skip:]
	case t.gapAt != t.next:
		t.gapAt = t.next
		return fmt.Errorf("rank %d: %w: have %d, got %d", c.Rank, errGap, t.next, c.Offset)
	default:
		if err := p.remark(wire.LogChunk{Rank: c.Rank, Host: t.host,
			Note: fmt.Sprintf("rank %d: %d bytes of its output are lost", c.Rank, -skip)}); err != nil {
			return err
		}
		t.next = c.Offset
	}
	p.lines(k, t, data)
	return p.write(k.stream)
}

// skip follows a remark on bytes that are not kept: the output goes on behind
// them, and a line that they cut ends there.
func (p *printer) skip(k tailKey, to int64) error {
	t := p.tails[k]
	if t == nil || to <= t.next {
		return nil
	}
	if len(t.partial) > 0 {
		p.line(k, t, t.partial, t.next, true)
	}
	t.next = to
	return p.write(k.stream)
}

// lines moves whole lines into buf and keeps the rest.
func (p *printer) lines(k tailKey, t *tail, data []byte) {
	for len(data) > 0 {
		room := maxLine - len(t.partial)
		end := bytes.IndexByte(data[:min(len(data), room)], '\n')
		switch {
		case end >= 0:
			p.line(k, t, append(t.partial, data[:end]...), t.next+int64(end)+1, false)
			data = data[end+1:]
		case len(data) >= room:
			p.line(k, t, append(t.partial, data[:room]...), t.next+int64(room), true)
			data = data[room:]
		default:
			t.partial = append(t.partial, data...)
			t.next += int64(len(data))
			return
		}
	}
}

// line renders one line. next is the offset after it.
func (p *printer) line(k tailKey, t *tail, text []byte, next int64, partial bool) {
	if p.json {
		begin := next - int64(len(text))
		if !partial {
			begin-- // the newline
		}
		p.object(newOutputLine(k, t.host, begin, text, partial))
	} else {
		p.tag(k)
		p.buf = append(append(p.buf, text...), '\n')
	}
	t.next, t.partial = next, t.partial[:0]
	if cap(t.partial) > maxLine/8 {
		t.partial = nil // one long line must not hold its memory for ever
	}
}

// palette are the colours of ranks, by SGR number; red is left to errors.
var palette = []int{36, 33, 32, 35, 34, 96, 93, 92, 95, 94}

func (p *printer) tag(k tailKey) {
	colour := p.outColour
	if k.stream == wire.Stderr {
		colour = p.errColour
	}
	if colour {
		p.buf = fmt.Appendf(p.buf, "\x1b[%dm[%d]\x1b[0m", palette[k.rank%len(palette)], k.rank)
	} else {
		p.buf = fmt.Appendf(p.buf, "[%d]", k.rank)
	}
	for range p.width - len(strconv.Itoa(k.rank)) + 1 {
		p.buf = append(p.buf, ' ')
	}
}

// remark passes on what a node says beside the output, once in a row.
func (p *printer) remark(c wire.LogChunk) error {
	if c.Note == "" || p.lastNote[c.Host] == c.Note {
		return nil
	}
	p.lastNote[c.Host] = c.Note
	if !p.json {
		p.note(c.Note)
		return nil
	}
	p.object(noteLine{Type: "note", Host: c.Host, Text: c.Note})
	return p.write(wire.Stdout)
}

// event prints a step of the job's story, with json alone.
func (p *printer) event(e rendezvous.Progress) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.json || p.failed != nil {
		return p.failed
	}
	if e.Step == rendezvous.StepEnded {
		p.ended = &e // told last: output may still be on its way
		return nil
	}
	return p.tell(e)
}

func (p *printer) tell(e rendezvous.Progress) error {
	line := eventLine{Type: "event", Progress: e}
	if e.Step == rendezvous.StepExited {
		line.Rank = &e.Rank
	}
	p.object(line)
	return p.write(wire.Stdout)
}

// flush prints the last lines that have no end, and the end of the story.
func (p *printer) flush() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.keys() {
		if t := p.tails[k]; len(t.partial) > 0 && p.failed == nil {
			p.line(k, t, t.partial, t.next, true)
			if err := p.write(k.stream); err != nil {
				return err
			}
		}
	}
	if e := p.ended; e != nil && p.failed == nil {
		p.ended = nil
		return p.tell(*e)
	}
	return p.failed
}

// restart forgets how far each rank has come: the next generation writes files
// of its own. Lines without an end are printed as they are.
func (p *printer) restart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.keys() {
		if t := p.tails[k]; len(t.partial) > 0 && p.failed == nil {
			p.line(k, t, t.partial, t.next, true)
			_ = p.write(k.stream) // sticky: the next one tells
		}
	}
	p.tails = map[tailKey]*tail{}
}

// write sends buf on its way in one call, so that lines stay whole among other
// writers of the same terminal.
func (p *printer) write(s wire.Stream) error {
	if len(p.buf) == 0 {
		return nil
	}
	to := p.out
	if s == wire.Stderr && !p.json {
		to = p.err
	}
	p.busy.Store(true)
	_, err := to.Write(p.buf)
	p.busy.Store(false)
	p.buf = p.buf[:0]
	if cap(p.buf) > 2*maxLine {
		p.buf = nil
	}
	if err != nil {
		if path, ok := errors.AsType[*fs.PathError](err); ok {
			err = path.Err // "write /dev/stdout: " says it twice
		}
		p.failed = fmt.Errorf("%w: %w", errOutput, err)
	}
	return p.failed
}

// The objects of --json, one a line.
type (
	// outputLine is one line of a rank's output. What the rank wrote is Line or
	// the bytes of Base64, and a newline unless Partial.
	outputLine struct {
		Type    string      `json:"type"` // "output"
		Rank    int         `json:"rank"`
		Host    string      `json:"host,omitempty"`
		Stream  wire.Stream `json:"stream"`
		Offset  int64       `json:"offset"`
		Line    *string     `json:"line,omitempty"`
		Base64  []byte      `json:"base64,omitempty"` // in place of Line where it is no UTF-8
		Partial bool        `json:"partial,omitempty"`
	}
	eventLine struct {
		Type string `json:"type"` // "event"
		rendezvous.Progress
		Rank *int `json:"rank,omitempty"` // of "exited", in place of Progress's
	}
	noteLine struct {
		Type string `json:"type"` // "note"
		Host string `json:"host,omitempty"`
		Text string `json:"text"`
	}
)

func newOutputLine(k tailKey, host string, offset int64, text []byte, partial bool) outputLine {
	l := outputLine{Type: "output", Rank: k.rank, Host: host, Stream: k.stream, Offset: offset, Partial: partial}
	if utf8.Valid(text) {
		s := string(text)
		l.Line = &s
	} else {
		l.Base64 = bytes.Clone(text)
	}
	return l
}

func (p *printer) object(v any) {
	w := bytes.NewBuffer(p.buf)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // plain data of this file's types
	}
	p.buf = w.Bytes()
}
