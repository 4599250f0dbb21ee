package node

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
)

// recentBytes of the agent's own log are kept in memory, for reports: where the
// log goes (a journal, a file, a terminal) the agent cannot know.
const recentBytes = 256 << 10

// recent is the end of a log.
type recent struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write takes one record and drops the oldest lines once there are twice as
// many as are kept.
func (r *recent) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text.Write(p)
	if r.text.Len() > 2*recentBytes {
		keep := bytes.Clone(lastLines(r.text.Bytes(), recentBytes))
		r.text.Reset()
		r.text.Write(keep)
	}
	return len(p), nil
}

// tail gives the last recentBytes, from the beginning of a line on.
func (r *recent) tail() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(lastLines(r.text.Bytes(), recentBytes))
}

func lastLines(text []byte, most int) []byte {
	if len(text) <= most {
		return text
	}
	text = text[len(text)-most:]
	return text[bytes.IndexByte(text, '\n')+1:]
}

// remembering writes every record to a logger's handler and to the recent ones,
// those of level info and above.
func remembering(to *slog.Logger, r *recent) *slog.Logger {
	return slog.New(both{to.Handler(), slog.NewTextHandler(r, nil)})
}

// both is two handlers in one.
type both struct{ a, b slog.Handler }

func (h both) Enabled(ctx context.Context, l slog.Level) bool {
	return h.a.Enabled(ctx, l) || h.b.Enabled(ctx, l)
}

func (h both) Handle(ctx context.Context, r slog.Record) error {
	var errs [2]error
	for i, to := range []slog.Handler{h.a, h.b} {
		if to.Enabled(ctx, r.Level) {
			errs[i] = to.Handle(ctx, r.Clone())
		}
	}
	return errors.Join(errs[:]...)
}

func (h both) WithAttrs(attrs []slog.Attr) slog.Handler {
	return both{h.a.WithAttrs(attrs), h.b.WithAttrs(attrs)}
}
func (h both) WithGroup(name string) slog.Handler {
	return both{h.a.WithGroup(name), h.b.WithGroup(name)}
}
