package checkup

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
)

// recentBytes of the agent's own log are kept in memory for reports, at least; at most
// twice as many. The agent cannot know where its log goes: a journal, a file or a
// terminal.
const recentBytes = 128 << 10

// Recent is the end of a log in two halves: when the newer one is full, it replaces the
// older one.
type Recent struct {
	mu           sync.Mutex
	older, newer []byte
}

// Write takes one record.
func (r *Recent) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.newer)+len(p) > recentBytes {
		r.older, r.newer = r.newer, r.older[:0]
	}
	r.newer = append(r.newer, p...)
	return len(p), nil
}

// tail gives what is kept: whole records, oldest first.
func (r *Recent) tail() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Concat(r.older, r.newer)
}

// Remember gives a logger that writes each record to the handler of to, and those of
// level info and above also here.
func (r *Recent) Remember(to *slog.Logger) *slog.Logger {
	return slog.New(both{to.Handler(), slog.NewTextHandler(r, nil)})
}

// both passes each record to two handlers.
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
