package rendezvous

import (
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// A leader whose clock was years ahead has written failures down: those that come after them are
// counted by themselves, and the service has its attempts.
func TestFaultsOfAnotherClock(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		faults []time.Duration // from now
		want   int
		again  bool
	}{
		"none":              {nil, 0, true},
		"old ones":          {[]time.Duration{-3 * time.Hour, -2 * time.Hour, -time.Hour}, 0, true},
		"all attempts":      {[]time.Duration{-30 * time.Minute, -20 * time.Minute, -time.Minute}, 3, false},
		"a clock in 2036":   {[]time.Duration{87600 * time.Hour, 87601 * time.Hour, 87602 * time.Hour}, 0, true},
		"two seconds ahead": {[]time.Duration{-time.Minute, time.Second, 2 * time.Second}, 3, false},
	} {
		j := Job{Spec: launcher.Spec{Service: &launcher.Service{Restarts: 3, Per: time.Hour}}, Plan: Plan{Generation: 4}}
		for _, d := range tt.faults {
			j.Faults = append(j.Faults, now.Add(d))
		}
		out := Outcome{End: Failed, At: now, Started: &now}
		if got := j.RecentFaults(now); got != tt.want {
			t.Errorf("%s: %d failures, want %d", name, got, tt.want)
		}
		if _, again := j.Next(out); again != tt.again {
			t.Errorf("%s: another attempt: %v", name, again)
		}
		if kept := len(j.After(out).Faults); kept != tt.want+1 {
			t.Errorf("%s: %d failures are kept, want %d", name, kept, tt.want+1)
		}
	}
}
