package web

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const (
	// tail is how many lines of each rank's output are shown at first, searched how many are looked through.
	tail, searched = 500, 100_000
	// pendingMost is how many bytes of lines may wait to be sent: the reader waits for the browser.
	pendingMost = 256 << 10
	lineMost    = 8 << 10 // bytes; what is longer is cut
	cursorsMost = 4 << 10 // bytes: a browser sends them in a header
	sendEach    = 100 * time.Millisecond
)

// output is the page of a job's output; its lines come by themselves, of each attempt once that has begun.
func (p *page) output() []part {
	j, ok := p.find()
	if !ok {
		return []part{draw("output", "none", struct{ ID, What string }{"output", "job"}), draw("lines", "lines", "")}
	}
	q := url.Values{"id": {string(j.Spec.ID)}}
	raw, lines := "raw?"+q.Encode(), ""
	for _, name := range []string{"rank", "q"} {
		if v := p.q.Get(name); v != "" {
			q.Set(name, v)
		}
	}
	if gen := j.Plan.Generation; gen > 0 {
		q.Set("attempt", fmt.Sprint(gen))
		lines = "lines?" + q.Encode()
	}
	return []part{
		draw("output", "output", struct {
			Row          jobRow
			World        int
			Rank, Q, Raw string
		}{p.jobOf(j), j.Plan.World, p.q.Get("rank"), p.q.Get("q"), raw}),
		draw("lines", "lines", lines),
	}
}

// ranksWanted reads the rank of a request; none: all.
func ranksWanted(q url.Values) []int {
	if n, err := strconv.Atoi(q.Get("rank")); err == nil {
		return []int{n}
	}
	return nil
}

// reader makes lines of output, and knows how far it is.
type reader struct {
	last  bool   // it begins with the last lines, which has not been said
	words string // searched for, in lower case; empty: all lines are wanted

	mu      sync.Mutex
	room    sync.Cond
	over    bool
	rest    map[launcher.Cursor][]byte // without its Offset: what has no line end yet
	at      map[launcher.Cursor]int64
	pending strings.Builder // of HTML
	news    chan struct{}   // there may be something
}

func newReader(words string) *reader {
	r := &reader{words: strings.ToLower(words), rest: map[launcher.Cursor][]byte{}, at: map[launcher.Cursor]int64{},
		news: make(chan struct{}, 1)}
	r.room.L = &r.mu
	return r
}

// take takes a chunk. It waits while too many lines are to be sent.
func (r *reader) take(c wire.LogChunk) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.pending.Len() >= pendingMost && !r.over {
		r.room.Wait()
	}
	defer r.tell()
	if c.Note != "" {
		r.pending.WriteString(`<li class="note">` + escaped(c.Note) + "</li>")
		return nil
	}
	of := launcher.Cursor{Rank: c.Rank, Stream: c.Stream}
	if _, known := r.at[of]; r.last && !known && c.Offset > 0 {
		r.last = false
		fmt.Fprintf(&r.pending, `<li class="note">of each rank the last %d lines: "Download all" has all</li>`, tail)
	}
	data := slices.Concat(r.rest[of], c.Data)
	for {
		line, rest, whole := bytes.Cut(data, []byte{'\n'})
		if !whole && len(line) <= lineMost {
			break
		}
		r.line(of, string(line))
		data = rest
	}
	r.rest[of] = bytes.Clone(data) // without the chunk around it
	r.at[of] = c.Offset + int64(len(c.Data)) - int64(len(data))
	return nil
}

func (r *reader) tell() {
	if r.pending.Len() == 0 {
		return
	}
	select {
	case r.news <- struct{}{}:
	default: // it is told already
	}
}

var escapes = plain.Pattern("\x1b\\[[0-9;?]*[ -/]*[@-~]|\x1b\\][^\x07\x1b]*(\x07|\x1b\\\\)")

// line keeps a line if it is one of those that are wanted.
func (r *reader) line(of launcher.Cursor, line string) {
	line = strings.TrimRight(line, "\r")
	line = line[strings.LastIndexByte(line, '\r')+1:] // the last state of a bar of progress
	if strings.ContainsRune(line, '\x1b') {
		line = escapes().ReplaceAllString(line, "")
	}
	line = plain.Strip(plain.Cut(strings.ToValidUTF8(line, "?"), lineMost))
	text := template.HTMLEscapeString(line)
	if r.words != "" {
		var found bool
		if text, found = marked(line, r.words); !found {
			return
		}
	}
	class := ""
	if of.Stream == launcher.Stderr {
		class = ` class="err"`
	}
	fmt.Fprintf(&r.pending, "<li%s><b>%d</b>%s</li>", class, of.Rank, text)
}

// marked is a line as HTML in which the words are marked.
func marked(line, words string) (html string, found bool) {
	lower := strings.ToLower(line)
	if len(lower) != len(line) { // places differ: a letter that is longer as a small one
		return template.HTMLEscapeString(line), strings.Contains(lower, words)
	}
	var b strings.Builder
	for {
		i := strings.Index(lower, words)
		if i < 0 {
			b.WriteString(template.HTMLEscapeString(line))
			return b.String(), found
		}
		found = true
		end := i + len(words)
		b.WriteString(template.HTMLEscapeString(line[:i]) + "<mark>" + template.HTMLEscapeString(line[i:end]) + "</mark>")
		line, lower = line[end:], lower[end:]
	}
}

func escaped(text string) string { return template.HTMLEscapeString(plain.Line(text)) }

// next takes what is to be sent, and says how far that is; empty: that is too long to be said.
func (r *reader) next() (lines, at string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines = r.pending.String()
	r.pending.Reset()
	r.room.Broadcast()
	var all []string
	for c, offset := range r.at {
		all = append(all, fmt.Sprintf("%d.%s.%d", c.Rank, c.Stream, offset))
	}
	slices.Sort(all)
	if at = strings.Join(all, ","); len(at) > cursorsMost {
		at = ""
	}
	return lines, at
}

// end lets take go, and makes lines of what has no end.
func (r *reader) end(rest bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	r.room.Broadcast()
	for of, data := range r.rest {
		if rest && len(data) > 0 {
			r.line(of, string(data))
			r.at[of] += int64(len(data))
		}
	}
	r.rest = map[launcher.Cursor][]byte{}
}

// cursors reads what next said.
func cursors(text string) (out []wire.Cursor) {
	for one := range strings.SplitSeq(text, ",") {
		f := strings.Split(one, ".")
		if len(f) != 3 {
			continue
		}
		rank, err := strconv.Atoi(f[0])
		offset, bad := strconv.ParseInt(f[2], 10, 64)
		if err == nil && bad == nil && rank >= 0 && offset >= 0 {
			out = append(out, wire.Cursor{Rank: rank, Stream: launcher.Stream(f[1]), Offset: offset})
		}
	}
	return out
}

// lines sends a job's output, and what is written from then on; a browser that comes back goes on where it was.
func (w *Web) lines(rw http.ResponseWriter, r *http.Request) {
	to, done := w.begin(rw, r)
	if to == nil {
		return
	}
	defer done()
	q := r.URL.Query()
	attempt, _ := strconv.ParseUint(q.Get("attempt"), 10, 64) // 0: the latest
	req := wire.LogsRequest{Job: q.Get("id"), Follow: true, Ranks: ranksWanted(q),
		Generation: launcher.Generation(attempt)}
	req.From.Lines = new(tail) // of what has no cursor
	if q.Get("q") != "" {
		req.From.Lines = new(searched)
	}
	req.Cursors = cursors(cmp.Or(r.Header.Get("Last-Event-ID"), q.Get("at")))
	ctx, cancel := context.WithCancel(r.Context())
	read := newReader(q.Get("q"))
	read.last = len(req.Cursors) == 0 && q.Get("q") == ""
	var failed error // once it has ended
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		failed = wire.Logs.Call(ctx, w.cfg.As(visiting(r).Of), req, read.take)
		read.end(failed == nil)
	}()
	defer func() {
		cancel()
		read.end(false)
		<-ended
	}()
	if to.send("hello", "", w.cfg.Version) != nil {
		return
	}
	for over := false; !over; {
		select {
		case <-ended:
			over = true
		case <-read.news:
			wait(ctx, sendEach) // more comes at once
		case <-time.After(stillFor):
		}
		var err error
		if lines, at := read.next(); lines != "" {
			err = to.send("lines", "id: "+at+"\n", lines)
		} else if !over {
			err = to.send("still", "", nil)
		}
		if err != nil {
			return
		}
	}
	switch {
	case failed == nil:
		_ = to.send("end", "", "the end")
	case ctx.Err() != nil, errors.Is(failed, wire.ErrRetry), errors.Is(failed, wire.ErrNoLeader),
		errors.Is(failed, wire.ErrUnreachable), errors.Is(failed, rendezvous.ErrNoJob): // the browser asks again
	default:
		_ = to.send("end", "", plain.Line(failed.Error()))
	}
}

// raw gives output as ranks wrote it, to be kept in a file: no browser shows it as a page.
func (w *Web) raw(rw http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	h, began := rw.Header(), false
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	on := http.NewResponseController(rw)
	notes := "" // of what is missing
	err := wire.Logs.Call(r.Context(), w.cfg.As(visiting(r).Of), wire.LogsRequest{Job: q.Get("id"), Ranks: ranksWanted(q)},
		func(c wire.LogChunk) error {
			if !began {
				began = true
				h.Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", "job-"+cmp.Or(onlyName(q.Get("id")), "output")+".txt"))
			}
			if c.Note != "" {
				notes += "\nsparkrun: " + plain.Line(c.Note) + "\n"
			}
			_ = on.SetWriteDeadline(time.Now().Add(sendWithin))
			_, err := rw.Write(c.Data)
			return err
		})
	defer on.SetWriteDeadline(time.Time{}) //nolint:errcheck // the browser may be gone
	switch {
	case err != nil && began:
		panic(http.ErrAbortHandler) // it must not look whole
	case err != nil:
		http.Error(rw, plain.Line(err.Error()), http.StatusNotFound)
	default:
		_, _ = io.WriteString(rw, notes)
	}
}

// onlyName leaves of a text what a file may be called.
func onlyName(text string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x80 && (r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z') {
			return r
		}
		return -1
	}, text)
}
