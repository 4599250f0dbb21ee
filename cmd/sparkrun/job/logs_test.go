package job

import (
	"testing"
	"time"
)

func TestParseSince(t *testing.T) {
	zone := time.FixedZone("", 2*3600)
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, zone)
	for text, want := range map[string]time.Time{
		"5m": now.Add(-5 * time.Minute), "90": now.Add(-90 * time.Second),
		"05:00": time.Date(2026, 3, 4, 5, 0, 0, 0, zone), "05:06:08": time.Date(2026, 3, 3, 5, 6, 8, 0, zone),
		"2026-03-01": time.Date(2026, 3, 1, 0, 0, 0, 0, zone), "2026-03-01 12:30": time.Date(2026, 3, 1, 12, 30, 0, 0, zone),
		"2026-03-01T12:00:00Z": time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
	} {
		if got, err := parseSince(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%s: %s, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-5m", "25:00", "tomorrow"} {
		if got, err := parseSince(text, now); err == nil {
			t.Errorf("%q: %s", text, got)
		}
	}
}
