package gossip

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// quietFor is how long the same line of memberlist is not repeated: without a network it
// logs several times a second.
const quietFor = 10 * time.Second

// slogWriter passes memberlist's lines ("[WARN] memberlist: ...") to slog.
type slogWriter struct {
	log *slog.Logger

	mu   sync.Mutex
	said map[string]saidAt
}

type saidAt struct {
	at    time.Time
	muted int
}

// parseLine splits a line into its level and text. What memberlist calls an error is a
// peer that did not answer, or foreign traffic.
func parseLine(line string) (slog.Level, string) {
	line = strings.TrimSpace(line)
	level := slog.LevelWarn
	if tag, rest, ok := strings.Cut(line, "] "); ok && strings.HasPrefix(tag, "[") {
		line = rest
		switch tag[1:] {
		case "DEBUG", "TRACE":
			level = slog.LevelDebug
		case "INFO":
			level = slog.LevelInfo
		}
	}
	return level, strings.TrimPrefix(line, "memberlist: ")
}

func (w *slogWriter) Write(b []byte) (int, error) {
	level, words := parseLine(string(b))
	if !w.log.Enabled(context.Background(), level) {
		return len(b), nil
	}
	muted, quiet := w.mute(words)
	if quiet {
		return len(b), nil
	}
	attrs := []slog.Attr{slog.String("what", words)}
	if muted > 0 {
		attrs = append(attrs, slog.Int("repeated", muted))
	}
	w.log.LogAttrs(context.Background(), level, "memberlist", attrs...)
	return len(b), nil
}

// mute compares the beginning of a line: ports and times come later in it, and so does,
// in quotes, what an unauthenticated sender has chosen.
func (w *slogWriter) mute(words string) (muted int, quiet bool) {
	key := words
	if i := strings.IndexAny(key, ":\""); i > 0 {
		key = key[:i]
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	last, ok := w.said[key]
	if ok && time.Since(last.at) < quietFor {
		last.muted++
		w.said[key] = last
		return 0, true
	}
	if len(w.said) > 256 {
		clear(w.said)
	}
	w.said[key] = saidAt{at: time.Now()}
	return last.muted, false
}
