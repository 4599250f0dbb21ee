package network

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/follow"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads/nccltest"
)

// watcher reads a launch's objects along.
type watcher struct {
	sub     *lineWriter
	err     io.Writer
	verbose bool
	live    bool
	table   nccltest.Parser
	log     nccltest.Log
	early   *nccltest.Verdict  // of the first rank that could not begin
	errs    []string           // the last lines of standard error: torch warns, and nobody asks while all is well
	places  []rendezvous.Place // by the last plan of the main stage
	ended   rendezvous.End     // empty: it has not
	open    openLines
}

// keptErrors lines hold a traceback of each of a few ranks.
const keptErrors = 100

func (w *watcher) take(line []byte) {
	var l follow.OutputLine
	if json.Unmarshal(line, &l) != nil {
		return
	}
	if l.Type == "event" {
		w.event(line)
		return
	}
	if w.open.whole(&l) {
		w.line(l)
	}
}

// event learns who runs it, and how it ended.
func (w *watcher) event(line []byte) {
	var e struct {
		Plan    *rendezvous.Plan    `json:"plan"`
		Outcome *rendezvous.Outcome `json:"outcome"`
	}
	if json.Unmarshal(line, &e) != nil {
		return
	}
	if e.Plan != nil && e.Plan.Stage == "" { // --before and --after run on one machine
		w.places = e.Plan.Nodes
	}
	if e.Outcome != nil {
		w.ended = e.Outcome.End
	}
}

// end takes the lines that have no end.
func (w *watcher) end() {
	for _, l := range w.open {
		w.line(l)
	}
	w.open = nil
}

func (w *watcher) line(l follow.OutputLine) {
	if w.verbose {
		fmt.Fprintf(w.err, "[%d] %s\n", l.Rank, *l.Line)
	}
	if v, is := nccltest.NoTorch(l.Host, *l.Line); is && w.early == nil {
		w.early = &v
	}
	ours := w.log.Line(*l.Line)
	switch {
	case l.Stream == wire.Stderr && !ours && !w.verbose:
		w.errs = append(w.errs, fmt.Sprintf("[%d] %s\n", l.Rank, *l.Line))
		w.errs = w.errs[max(0, len(w.errs)-keptErrors):]
	case l.Rank == 0 && l.Stream == wire.Stdout && w.table.Line(*l.Line) && w.live && !w.verbose:
		r := w.table.Table().Rows
		last := r[len(r)-1]
		fmt.Fprintf(w.err, "sparkrun: %s: %.2f GB/s\n", nccltest.Size(last.Bytes), last.Bus())
	}
}

// openLines are lines of which a part has come: a launch does not wait for ever for the end of one.
type openLines map[follow.TailKey]follow.OutputLine

// whole makes l the whole line that it ends; false: it is no line of output, or its end is still to come.
func (o *openLines) whole(l *follow.OutputLine) bool {
	if l.Type != "output" || l.Line == nil {
		return false
	}
	k := follow.TailKey{Rank: l.Rank, Stream: l.Stream}
	if part, ok := (*o)[k]; ok {
		text := *part.Line + *l.Line
		l.Line = &text
		delete(*o, k)
	}
	if !l.Partial || len(*l.Line) >= follow.MaxLine {
		return true
	}
	if *o == nil {
		*o = openLines{}
	}
	(*o)[k] = *l
	return false
}

// lineWriter hands whole lines on.
type lineWriter struct {
	line func([]byte)
	part []byte
}

func (w *lineWriter) Write(b []byte) (int, error) {
	w.part = append(w.part, b...)
	for {
		i := bytes.IndexByte(w.part, '\n')
		if i < 0 {
			return len(b), nil
		}
		w.line(w.part[:i])
		w.part = w.part[i+1:]
	}
}
