package checkup

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// The end of a log is kept, in whole lines and bounded.
func TestRecentLog(t *testing.T) {
	var kept Recent
	var out bytes.Buffer
	log := kept.Remember(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn}))).With("node", "n1").WithGroup("g")
	log.Debug("below both")
	log.Info("kept", "a", 1)
	log.Warn("both")
	if got := string(kept.tail()); !strings.Contains(got, `msg=kept node=n1 g.a=1`) || !strings.Contains(got, "msg=both") || strings.Contains(got, "below") {
		t.Errorf("kept %s", got)
	}
	if got := out.String(); strings.Contains(got, "kept") || !strings.Contains(got, "msg=both") {
		t.Errorf("logged %s", got)
	}
	for i := range 20_000 {
		log.Info("many", "i", i)
	}
	tail := kept.tail()
	if len(tail) > 2*recentBytes || len(tail) < recentBytes || !bytes.HasPrefix(tail, []byte("time=")) || !bytes.HasSuffix(tail, []byte("g.i=19999\n")) {
		t.Errorf("%d bytes, from %.80s", len(tail), tail)
	}
	if size := cap(kept.older) + cap(kept.newer); size > 3*recentBytes {
		t.Errorf("%d bytes in memory", size)
	}
}
