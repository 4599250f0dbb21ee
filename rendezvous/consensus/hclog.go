package consensus

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// quietFor is how long the same line of raft is not repeated: with a dead peer it logs
// the same several times a second.
const quietFor = 30 * time.Second

// slogSink passes raft's log on to slog.
type slogSink struct {
	log      *slog.Logger
	warnings *rendezvous.Sparing
}

func newHCLogger(log *slog.Logger) hclog.Logger {
	// raft needs a logger with a level; the sink below gets every line whatever that
	// level is, and slog's handler decides.
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Level: hclog.Error, Output: io.Discard})
	l.RegisterSink(&slogSink{log: log, warnings: rendezvous.NewSparing(log, quietFor)})
	return l
}

func slogLevel(l hclog.Level) slog.Level {
	switch l {
	case hclog.Trace, hclog.Debug:
		return slog.LevelDebug
	case hclog.Info:
		return slog.LevelInfo
	}
	// raft's errors are mostly "a peer did not answer". What is an error for
	// this node reaches OnFatal and is logged there.
	return slog.LevelWarn
}

// Accept implements hclog.SinkAdapter.
func (s *slogSink) Accept(_ string, level hclog.Level, msg string, args ...any) {
	lv := slogLevel(level)
	if !s.log.Enabled(context.Background(), lv) {
		return
	}
	attrs := make([]slog.Attr, 0, len(args)/2+2)
	attrs = append(attrs, slog.String("what", msg))
	for i := 0; i+1 < len(args); i += 2 {
		attrs = append(attrs, slog.String(strings.ReplaceAll(fmt.Sprint(args[i]), "-", "_"), logValue(args[i+1])))
	}
	if lv == slog.LevelWarn {
		s.warnings.Say(lv, "raft", kindOf(msg, args), attrs...)
		return
	}
	s.log.LogAttrs(context.Background(), lv, "raft", attrs...)
}

// kindOf tells warnings about one peer from those about another.
func kindOf(msg string, args []any) string {
	kind := msg
	for i := 0; i+1 < len(args); i += 2 {
		if k := fmt.Sprint(args[i]); k == "peer" || k == "target" || k == "server-id" {
			kind += "|" + logValue(args[i+1])
		}
	}
	return kind
}

// logValue renders a value at once: slog's handlers would look inside live
// structures of raft from another goroutine.
func logValue(v any) string {
	if f, ok := v.(hclog.Format); ok && len(f) > 0 {
		return fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
	}
	return fmt.Sprint(v)
}
