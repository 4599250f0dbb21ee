package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

const (
	// moveEach is the least time between two movements of a page.
	moveEach = 800 * time.Millisecond
	// stillFor is after what time without any a page is told that it is connected.
	stillFor = 5 * time.Second
	// sendWithin bounds how long a browser may take for one event: one that sleeps is left.
	sendWithin = 20 * time.Second
)

// part is a piece of a page, which is put in place by its id. It has its HTML whole, or items between a beginning and an
// end, which are replaced one by one while they stay the same in number and order.
type part struct {
	id         string
	open, shut string
	html       string
	items      []part
}

func (p part) whole() string {
	if p.items == nil {
		return p.html
	}
	var all strings.Builder
	all.WriteString(p.open)
	for _, i := range p.items {
		all.WriteString(i.html)
	}
	return all.String() + p.shut
}

// changes gives what to put in place, as pairs of an id and HTML, so that what was shown becomes what is.
func changes(was, now []part) (out [][2]string) {
	for i, p := range now {
		switch {
		case i >= len(was) || was[i].id != p.id:
			return append(out, [2]string{"", ""}) // it is another page
		case p.items == nil || was[i].open != p.open || !sameItems(was[i].items, p.items):
			if whole := p.whole(); was[i].whole() != whole {
				out = append(out, [2]string{p.id, whole})
			}
		default:
			for k, item := range p.items {
				if item.html != was[i].items[k].html {
					out = append(out, [2]string{item.id, item.html})
				}
			}
		}
	}
	return out
}

func sameItems(a, b []part) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].id != b[i].id {
			return false
		}
	}
	return true
}

// stream is an answer that goes on.
type stream struct {
	rw http.ResponseWriter
	on *http.ResponseController
}

// begin begins one; nil: it was refused.
func (w *Web) begin(rw http.ResponseWriter, r *http.Request) (to *stream, done func()) {
	leave, ok := w.stream(visiting(r).session)
	if !ok {
		http.Error(rw, "too many pages are open", http.StatusTooManyRequests)
		return nil, nil
	}
	rw.Header().Set("Content-Type", "text/event-stream")
	on := http.NewResponseController(rw)
	return &stream{rw, on}, func() {
		_ = on.SetWriteDeadline(time.Time{}) // the connection may serve on
		leave()
	}
}

// send writes an event; id is a line with its position, or empty. Its data is JSON, in one line.
func (s *stream) send(event, id string, data any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // it is no script in a page
	if err := enc.Encode(data); err != nil {
		return err
	}
	_ = s.on.SetWriteDeadline(time.Now().Add(sendWithin))
	if _, err := fmt.Fprintf(s.rw, "event: %s\n%sdata: %s\n", event, id, b.Bytes()); err != nil {
		return err
	}
	return s.on.Flush()
}

// events moves a page: it sends what has changed on it until the browser goes or the session is over.
func (w *Web) events(rw http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("view")
	if _, ok := views[name]; !ok {
		http.NotFound(rw, r)
		return
	}
	to, done := w.begin(rw, r)
	if to == nil {
		return
	}
	defer done()
	defer w.seen.watch()()
	if to.send("hello", "", w.cfg.Version) != nil {
		return
	}
	var was []part
	w.seen.first(r.Context(), firstWithin)
	for {
		s, changed := w.seen.now.Watch()
		now := w.parts(name, w.page(r, s))
		put := changes(was, now)
		if was == nil { // whatever the page has
			put = nil
			for _, p := range now {
				put = append(put, [2]string{p.id, p.whole()})
			}
		}
		was = now
		if len(put) > 0 && to.send("put", "", put) != nil {
			return
		}
		pause := time.After(moveEach)
		select {
		case <-changed:
		case <-time.After(stillFor):
			if to.send("still", "", nil) != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
		select {
		case <-pause:
		case <-r.Context().Done():
			return
		}
	}
}
