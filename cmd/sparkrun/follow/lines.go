package follow

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// endWait is how long the end of a line is waited for. After that what there is
// of it is shown: a question, or a row of dots.
const endWait = time.Second

// lines moves whole lines into buf and keeps the rest.
func (p *Printer) lines(k TailKey, t *tail, data []byte, when time.Time) {
	for len(data) > 0 {
		room := MaxLine - len(t.partial)
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
		t.when = when
	}
}

// line renders one line. next is the offset after it.
func (p *Printer) line(k TailKey, t *tail, text []byte, next int64, partial bool) {
	switch {
	case p.Grep != nil && !p.Grep.Match(text):
	case p.json:
		begin := next - int64(len(text))
		if !partial {
			begin-- // the newline
		}
		p.object(newOutputLine(k, t, begin, text, partial))
	case t.shown && len(text) == 0 && !p.isOpen(k): // it was ended when another came between
	default:
		p.begin(k, t.when)
		p.buf = append(append(p.buf, text...), '\n')
		p.open = nil
	}
	t.next, t.partial, t.shown, t.taken = next, t.partial[:0], false, time.Time{}
	if cap(t.partial) > MaxLine/8 {
		t.partial = nil // one long line must not hold its memory for ever
	}
}

// begin puts a stream's tag at the begin of a line, unless its own is open.
func (p *Printer) begin(k TailKey, when time.Time) {
	if p.isOpen(k) {
		return
	}
	if p.open != nil && p.open.Stream == k.Stream {
		p.buf, p.open = append(p.buf, '\n'), nil
	}
	_ = p.closeLine() // sticky: the next write tells
	p.tag(k)
	switch {
	case p.Times && when.IsZero(): // its node does not know
		p.buf = fmt.Appendf(p.buf, "%-*s ", len(lineTime), "-")
	case p.Times:
		p.buf = append(when.UTC().AppendFormat(p.buf, lineTime), ' ')
	}
}

// lineTime has one width, so that lines can be sorted by it.
const lineTime = "2006-01-02T15:04:05.000Z"

func (p *Printer) isOpen(k TailKey) bool { return p.open != nil && *p.open == k }

// closeLine ends the line that was shown without its end. Only then may another
// begin, or a remark.
func (p *Printer) closeLine() error {
	if p.open == nil {
		return p.failed
	}
	to := p.out
	if p.open.Stream == wire.Stderr {
		to = p.err
	}
	p.open = nil
	return p.put(to, []byte{'\n'})
}

// endLines shows all that waits for the end of its line.
func (p *Printer) endLines() {
	for _, k := range p.keys() {
		if t := p.tails[k]; len(t.partial) > 0 && p.failed == nil {
			p.line(k, t, t.partial, t.next, true)
			_ = p.write(k.Stream) // sticky: p.failed
		}
	}
	_ = p.closeLine()
}

// awaitEnd sets the clock for a line that has no end yet. Whoever looks for
// something wants whole lines.
func (p *Printer) awaitEnd(t *tail) {
	if len(t.partial) == 0 || p.Grep != nil {
		return
	}
	if t.taken.IsZero() {
		t.taken = time.Now()
	}
	if p.timer == nil {
		p.timer = time.AfterFunc(endWait, p.showOpen)
	}
}

// showOpen shows lines whose ends have not come for a while.
func (p *Printer) showOpen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = nil
	var next time.Duration
	for _, k := range p.keys() {
		t := p.tails[k]
		if len(t.partial) == 0 || p.failed != nil {
			continue
		}
		if left := endWait - time.Since(t.taken); left > 0 {
			if next == 0 || left < next {
				next = left
			}
			continue
		}
		if p.json {
			p.line(k, t, t.partial, t.next, true)
		} else {
			p.begin(k, t.when)
			p.buf = append(p.buf, t.partial...)
			p.open, t.partial, t.shown, t.taken = &k, t.partial[:0], true, time.Time{}
		}
		_ = p.write(k.Stream) // sticky: the next take tells
	}
	if next > 0 {
		p.timer = time.AfterFunc(next, p.showOpen)
	}
}

// palette are the colours of ranks, by SGR number; red is left to errors.
var palette = []int{36, 33, 32, 35, 34, 96, 93, 92, 95, 94}

func (p *Printer) tag(k TailKey) {
	colour := p.outColour
	if k.Stream == wire.Stderr {
		colour = p.errColour
	}
	if colour {
		p.buf = fmt.Appendf(p.buf, "\x1b[%dm[%d]\x1b[0m", palette[k.Rank%len(palette)], k.Rank)
	} else {
		p.buf = fmt.Appendf(p.buf, "[%d]", k.Rank)
	}
	for range p.width - len(strconv.Itoa(k.Rank)) + 1 {
		p.buf = append(p.buf, ' ')
	}
}
