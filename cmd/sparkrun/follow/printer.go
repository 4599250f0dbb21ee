package follow

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// MaxLine bounds how much of a line is kept while its end has not arrived, in bytes. A
// longer line is cut there and continues after a tag that says so.
const MaxLine = 1 << 20

// Printer merges the output of all ranks, whole lines at a time, and remembers how far
// each has got. It may be given the same bytes twice.
type Printer struct {
	out, err             io.Writer
	outColour, errColour bool
	json                 bool              // objects to out; err is not used
	raw                  bool              // bytes as they arrive
	files                *outputFiles      // to these files; nil: to out and err
	Times                bool              // print each line's time after its tag
	Grep                 *regexp.Regexp    // only lines that it matches; nil: all
	Note                 func(line string) // nodes' remarks; not used with json

	mu       sync.Mutex
	width    int // of the widest rank's number
	tails    map[TailKey]*tail
	open     *TailKey             // whose unfinished line was shown last
	timer    *time.Timer          // until an unfinished line is shown
	lastNote map[string]string    // by host
	away     map[string]bool      // hosts whose output is missing
	buf      []byte               // for one write
	failed   error                // sticky
	ended    *rendezvous.Progress // with json: the job's end, printed last

	taken atomic.Int64 // chunks completely taken: tells a stalled stream from a slow reader
	busy  atomic.Bool  // a write has not returned
}

// TailKey names one stream of one rank.
type TailKey struct {
	Rank   int
	Stream wire.Stream
}

// tail is the state of one stream of one rank.
type tail struct {
	host    string
	next    int64  // the next offset to take
	partial []byte // taken but not shown: it waits for the end of its line
	gapAt   int64  // where bytes were missing once, or -1

	job   launcher.JobID
	taken time.Time // when partial began to wait; zero: it does not wait
	when  time.Time // of the line's beginning, by its node's clock
	begun bool      // the line's beginning was shown, or cut off: this is the rest of it
}

// ErrOutput is wrapped by a printer's errors when its output cannot be written.
var ErrOutput = errors.New("write output")

// errGap asks for the output again, from the cursors on.
var errGap = errors.New("output arrived with bytes missing")

// NewPrinter prints whole lines, each with its rank in front.
func NewPrinter(out, err io.Writer) *Printer {
	return &Printer{
		out: out, err: err, Note: func(string) {},
		width: 1, tails: map[TailKey]*tail{}, lastNote: map[string]string{}, away: map[string]bool{},
	}
}

// World aligns the tags for that many ranks.
func (p *Printer) World(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.width = max(p.width, len(strconv.Itoa(max(n-1, 0))))
}

// cursors say where reading continues.
func (p *Printer) cursors() []wire.Cursor {
	p.mu.Lock()
	defer p.mu.Unlock()
	var cs []wire.Cursor
	for _, k := range p.keys() {
		cs = append(cs, wire.Cursor{Rank: k.Rank, Stream: k.Stream, Offset: p.tails[k].next})
	}
	return cs
}

func (p *Printer) keys() []TailKey {
	return slices.SortedStableFunc(maps.Keys(p.tails), func(a, b TailKey) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), -cmp.Compare(a.Stream, b.Stream)) // "out" before "err"
	})
}

// take prints the lines that a chunk completes. What was taken before is dropped. A chunk
// that skips bytes is refused once with errGap; if they are missing again they are gone,
// and a remark says so.
func (p *Printer) take(c wire.LogChunk) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed != nil {
		return p.failed
	}
	defer p.taken.Add(1)
	if c.Host != "" {
		if delete(p.away, c.Host); c.Away {
			p.away[c.Host] = true
		}
	}
	if len(c.Data) == 0 {
		if err := p.skip(c); err != nil {
			return err
		}
		return p.remark(c)
	}
	k, t := p.tail(c)
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
	if p.raw || p.files != nil {
		t.next += int64(len(data))
		return p.copy(k, data)
	}
	if len(t.partial) == 0 {
		t.when = c.Time
	}
	p.lines(k, t, data, c.Time)
	p.awaitEnd(t)
	return p.write(k.Stream)
}

// tail finds a chunk's stream, or adds it.
func (p *Printer) tail(c wire.LogChunk) (TailKey, *tail) {
	k := TailKey{c.Rank, c.Stream}
	t := p.tails[k]
	if t == nil {
		t = &tail{gapAt: -1}
		p.tails[k] = t
		p.width = max(p.width, len(strconv.Itoa(c.Rank)))
	}
	t.host, t.job = cmp.Or(c.Host, t.host), cmp.Or(c.Job, t.job)
	return k, t
}

// skip handles a chunk that says where a stream continues: at its last lines, or after
// bytes that are no longer kept. A line cut by that ends there.
func (p *Printer) skip(c wire.LogChunk) error {
	if c.Stream == "" {
		return nil
	}
	k, t := p.tail(c)
	if c.Offset <= t.next {
		return nil
	}
	if len(t.partial) > 0 {
		p.line(k, t, t.partial, t.next, true)
	}
	t.next = c.Offset
	return p.write(k.Stream)
}

// remark prints what a node says about the output; a repetition is dropped.
func (p *Printer) remark(c wire.LogChunk) error {
	if c.Note == "" || p.lastNote[c.Host] == c.Note {
		return nil
	}
	p.lastNote[c.Host] = c.Note
	if !p.json {
		err := p.closeLine()
		p.Note(c.Note)
		return err
	}
	p.object(noteLine{Type: "note", Host: c.Host, Text: c.Note})
	return p.write(wire.Stdout)
}

// event prints a step of the job's event log; only with json.
func (p *Printer) event(e rendezvous.Progress) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.json || p.failed != nil {
		return p.failed
	}
	if e.Step == rendezvous.StepEnded {
		p.ended = &e // printed last: output may still arrive
		return nil
	}
	return p.tell(e)
}

func (p *Printer) tell(e rendezvous.Progress) error {
	line := eventLine{Type: "event", Progress: e}
	if e.Service != nil && e.Service.Addr != "" {
		line.URL = "http://" + e.Service.Addr
	}
	p.object(line)
	return p.write(wire.Stdout)
}

// Flush prints the last unfinished lines, and then the end of the event log.
func (p *Printer) Flush() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endLines()
	if p.timer != nil {
		p.timer.Stop()
	}
	if p.files != nil && p.failed == nil {
		if err := p.files.close(); err != nil {
			p.failed = fmt.Errorf("%w: %w", ErrOutput, err)
		}
	}
	if e := p.ended; e != nil && p.failed == nil {
		p.ended = nil
		return p.tell(*e)
	}
	return p.failed
}

// restart resets the cursors, since the next generation writes new files. Unfinished
// lines are printed as they are.
func (p *Printer) restart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endLines()
	p.tails = map[TailKey]*tail{}
}

// Missing lists the hosts that did not answer.
func (p *Printer) Missing() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.away))
}

// write writes buf in one call, so that lines stay whole among other writers to the same
// terminal.
func (p *Printer) write(s wire.Stream) error {
	if len(p.buf) == 0 {
		return nil
	}
	to := p.out
	if s == wire.Stderr && !p.json {
		to = p.err
	}
	err := p.put(to, p.buf)
	p.buf = p.buf[:0]
	if cap(p.buf) > 2*MaxLine {
		p.buf = nil
	}
	return err
}

// copy writes bytes unchanged.
func (p *Printer) copy(k TailKey, data []byte) error {
	to := p.out
	switch {
	case p.files != nil:
		f, err := p.files.of(k)
		if err != nil {
			p.failed = fmt.Errorf("%w: %w", ErrOutput, err)
			return p.failed
		}
		to = f
	case k.Stream == wire.Stderr:
		to = p.err
	}
	return p.put(to, data)
}

func (p *Printer) put(to io.Writer, b []byte) error {
	if p.failed != nil {
		return p.failed
	}
	p.busy.Store(true)
	_, err := to.Write(b)
	p.busy.Store(false)
	if err != nil {
		if path, ok := errors.AsType[*fs.PathError](err); ok && p.files == nil {
			err = path.Err // its text would repeat "write"
		}
		p.failed = fmt.Errorf("%w: %w", ErrOutput, err)
	}
	return p.failed
}
