package gossip

import (
	"log/slog"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// quietFor is how long the same line of memberlist is not repeated: without a network it
// logs several times a second.
const quietFor = 10 * time.Second

// slogWriter passes memberlist's lines ("[WARN] memberlist: ...") to slog.
type slogWriter struct{ *rendezvous.Sparing }

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

func (w slogWriter) Write(b []byte) (int, error) {
	level, words := parseLine(string(b))
	w.Say(level, "memberlist", rendezvous.KindOf(words), slog.String("what", words))
	return len(b), nil
}
