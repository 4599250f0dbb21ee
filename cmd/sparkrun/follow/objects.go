package follow

import (
	"bytes"
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// The objects of --json, one per line.
type (
	// OutputLine is one line of a rank's output. What the rank wrote is Line or the bytes
	// of Base64, followed by a newline unless Partial.
	OutputLine struct {
		Type    string         `json:"type"` // "output"
		Job     launcher.JobID `json:"job,omitempty"`
		Rank    int            `json:"rank"`
		Host    string         `json:"host,omitempty"`
		Stream  wire.Stream    `json:"stream"`
		Time    *time.Time     `json:"time,omitempty"` // by the node's clock, to a second or so
		Offset  int64          `json:"offset"`
		Line    *string        `json:"line,omitempty"`
		Base64  []byte         `json:"base64,omitempty"` // in place of Line where it is not UTF-8
		Partial bool           `json:"partial,omitempty"`
	}
	eventLine struct {
		Type string `json:"type"` // "event"
		rendezvous.Progress
		// URL is the address of a service ("serves").
		URL string `json:"url,omitempty"`
	}
	noteLine struct {
		Type string `json:"type"` // "note"
		Host string `json:"host,omitempty"`
		Text string `json:"text"`
	}
)

func newOutputLine(k TailKey, t *tail, offset int64, text []byte, partial bool) OutputLine {
	l := OutputLine{Type: "output", Job: t.job, Rank: k.Rank, Host: t.host, Stream: k.Stream, Offset: offset,
		Partial: partial}
	if !t.when.IsZero() {
		l.Time = new(t.when.UTC())
	}
	if utf8.Valid(text) {
		s := string(text)
		l.Line = &s
	} else {
		l.Base64 = bytes.Clone(text)
	}
	return l
}

func (p *Printer) object(v any) {
	w := bytes.NewBuffer(p.buf)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // plain data of this file's types
	}
	p.buf = w.Bytes()
}
