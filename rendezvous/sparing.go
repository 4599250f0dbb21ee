package rendezvous

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// Sparing logs what others can make this node log as often as they like: of each kind a line, then none for a while,
// then the next with how many were left out.
type Sparing struct {
	log   *slog.Logger
	quiet time.Duration

	mu   sync.Mutex
	said map[string]saidAt
}

type saidAt struct {
	at    time.Time
	muted int
}

// NewSparing logs to log. After a line its kind is quiet for that long.
func NewSparing(log *slog.Logger, quiet time.Duration) *Sparing {
	return &Sparing{log: log, quiet: quiet, said: map[string]saidAt{}}
}

// KindOf is the beginning of a library's line: ports and times come later in it, and so does, in quotes, what an
// unauthenticated sender has chosen.
func KindOf(line string) string {
	if i := strings.IndexAny(line, ":\"[{"); i > 0 {
		return line[:i]
	}
	return line
}

// Say logs a line, unless one of its kind was logged just now.
func (s *Sparing) Say(level slog.Level, msg, kind string, attrs ...slog.Attr) {
	if !s.log.Enabled(context.Background(), level) {
		return
	}
	muted, quiet := s.mute(msg + "\x00" + kind)
	if quiet {
		return
	}
	if muted > 0 {
		attrs = append(attrs, slog.Int("repeated", muted))
	}
	s.log.LogAttrs(context.Background(), level, msg, attrs...)
}

func (s *Sparing) mute(key string) (muted int, quiet bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, ok := s.said[key]
	if ok && time.Since(last.at) < s.quiet {
		last.muted++
		s.said[key] = last
		return 0, true
	}
	if len(s.said) > 256 {
		clear(s.said)
	}
	s.said[key] = saidAt{at: time.Now()}
	return last.muted, false
}
