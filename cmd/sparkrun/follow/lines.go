package follow

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// endWait is how long the end of a line is awaited. After that the part that has arrived
// is shown: a prompt, or a row of dots.
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
			data, t.begun = data[room:], true
		default:
			t.partial = append(t.partial, data...)
			t.next += int64(len(data))
			return
		}
		t.when = when
	}
}

// line prints one line. next is the offset after it.
func (p *Printer) line(k TailKey, t *tail, text []byte, next int64, partial bool) {
	switch {
	case p.Grep != nil && !p.Grep.Match(text):
	case p.json:
		begin := next - int64(len(text))
		if !partial {
			begin-- // the newline
		}
		p.object(newOutputLine(k, t, begin, text, partial))
	case t.begun && len(text) == 0 && !p.isOpen(k): // it was ended already when another line was printed
	default:
		p.begin(k, t)
		p.buf = append(append(p.buf, text...), '\n')
		p.open = nil
	}
	t.next, t.partial, t.begun, t.taken = next, t.partial[:0], false, time.Time{}
	if cap(t.partial) > MaxLine/8 {
		t.partial = nil // one long line must not hold its memory for ever
	}
}

// begin writes a stream's tag at the beginning of a line, unless the stream's own line is
// still open.
func (p *Printer) begin(k TailKey, t *tail) {
	if p.isOpen(k) {
		return
	}
	if p.open != nil && p.open.Stream == k.Stream {
		p.buf, p.open = append(p.buf, '\n'), nil
	}
	_ = p.closeLine() // sticky: the next write returns it
	p.tag(k, t.begun)
	switch {
	case p.Times && t.when.IsZero(): // its node does not know the time
		p.buf = fmt.Appendf(p.buf, "%-*s ", len(lineTime), "-")
	case p.Times:
		p.buf = append(t.when.UTC().AppendFormat(p.buf, lineTime), ' ')
	}
}

// lineTime has a fixed width, so that lines can be sorted by it.
const lineTime = "2006-01-02T15:04:05.000Z"

func (p *Printer) isOpen(k TailKey) bool { return p.open != nil && *p.open == k }

// closeLine ends a line that was shown without its end. Only then may another line or a
// remark begin.
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

// endLines prints all lines that wait for their end.
func (p *Printer) endLines() {
	for _, k := range p.keys() {
		if t := p.tails[k]; len(t.partial) > 0 && p.failed == nil {
			p.line(k, t, t.partial, t.next, true)
			_ = p.write(k.Stream) // sticky: p.failed
		}
	}
	_ = p.closeLine()
}

// awaitEnd starts the timer for a line that has no end yet. With Grep only whole lines
// are shown.
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

// showOpen prints lines whose ends have not arrived for a while.
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
			p.begin(k, t)
			p.buf = append(p.buf, t.partial...)
			p.open, t.partial, t.begun, t.taken = &k, t.partial[:0], true, time.Time{}
		}
		_ = p.write(k.Stream) // sticky: the next take returns it
	}
	if next > 0 {
		p.timer = time.AfterFunc(next, p.showOpen)
	}
}

// palette are the ranks' colours, by SGR number; red is kept for errors.
var palette = []int{36, 33, 32, 35, 34, 96, 93, 92, 95, 94}

// tag writes a rank's number; [0+] is the rest of a line, which no rank can write itself.
func (p *Printer) tag(k TailKey, rest bool) {
	colour, number := p.outColour, strconv.Itoa(k.Rank)
	if k.Stream == wire.Stderr {
		colour = p.errColour
	}
	if rest {
		number += "+"
	}
	if colour {
		p.buf = fmt.Appendf(p.buf, "\x1b[%dm[%s]\x1b[0m", palette[k.Rank%len(palette)], number)
	} else {
		p.buf = fmt.Appendf(p.buf, "[%s]", number)
	}
	for range max(p.width-len(number), 0) + 1 {
		p.buf = append(p.buf, ' ')
	}
}
