package doctor

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Only an end that nothing announced is told, and only if the journal is sure of it.
func TestWentOff(t *testing.T) {
	t.Parallel()
	const (
		last    = "journalctl --system -q -b -1 -n 1 -o json --output-fields=MESSAGE_ID"
		told    = last + " MESSAGE_ID=" + journalShutdown + " + UNIT=shutdown.target"
		line    = `{"_BOOT_ID":"5e","__REALTIME_TIMESTAMP":"1788271331000000","__CURSOR":"s=1"}` + "\n"
		stopped = `{"__REALTIME_TIMESTAMP":"1788271331000000","MESSAGE_ID":"` + journalStop + `"}` + "\n"
		end     = 1788271331 // 2026-09-01 14:02:11 UTC
	)
	tests := map[string]struct {
		prints answers
		after  time.Duration
		want   bool
	}{
		"mains pulled":              {answers{last: line, told: ""}, time.Hour, true},
		"shut down":                 {answers{last: line, told: line}, time.Hour, false},
		"the journal was stopped":   {answers{last: stopped, told: ""}, time.Hour, false},
		"long ago":                  {answers{last: line, told: ""}, 8 * 24 * time.Hour, false},
		"no boot before":            {answers{}, time.Hour, false},
		"no right to read it":       {answers{last: "", told: ""}, time.Hour, false},
		"no answer to the second":   {answers{last: line}, time.Hour, false},
		"something else is printed": {answers{last: "{]", told: ""}, time.Hour, false},
	}
	for name, tc := range tests {
		root := t.TempDir()
		for _, dir := range []string{"var/log/journal", "proc"} {
			if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(root, "proc/stat"), []byte("cpu 1 2\nbtime 1788271500\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		r := New(Config{Root: root, Run: tc.prints.run, Now: func() time.Time { return time.Unix(end, 0).Add(tc.after) }})
		got := r.wentOff(t.Context())
		if (got != nil) != tc.want {
			t.Errorf("%s: %+v", name, got)
		}
		if got != nil && (got.Last.Unix() != end || got.Back.Unix() != 1788271500) {
			t.Errorf("%s: %s, back %s", name, got.Last, got.Back)
		}
		if err := os.Remove(filepath.Join(root, "var/log/journal")); err != nil {
			t.Fatal(err)
		}
		if got := r.wentOff(t.Context()); got != nil { // a journal in /run knows of no boot before
			t.Errorf("%s, without a journal that is kept: %+v", name, got)
		}
	}
}

// A GPU at work is slow by its clock alone, too; one that is idle has a low clock.
func TestSlowedByItsClock(t *testing.T) {
	for busy, want := range map[float64]string{0.96: "it is busy at 500 of 3003 MHz", 0.1: ""} {
		if got := Slowed("NVIDIA GB10", nil, new(busy), new(500.0), nil); got != want {
			t.Errorf("at %v: %q, want %q", busy, got, want)
		}
	}
}
