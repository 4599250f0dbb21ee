package consensus

import (
	"slices"
	"testing"
	"time"
)

// The checks are worth as much as what they find: each bug, seeded by a wrapper
// of this test alone, is found by the check named.
func TestSimFindsSeededBugs(t *testing.T) {
	for _, tc := range []struct {
		bug    bug
		run    func(t *testing.T, seed uint64, b bug) []violation
		checks []string // any of them
		within uint64   // seeds
	}{
		{noFsync, recordRun, []string{"P1 linearizable", "P5 acknowledged submits survive", "P8 states agree"}, 40},
		{staleRead, recordRun, []string{"P1 linearizable"}, 40},
		{noFence, launchRun, []string{"P2 started once", "P3 generations never overlap",
			"P9 none before all are prepared", "P4 terminal stays terminal"}, 400},
		{sameGeneration, launchRun, []string{"P2 started once", "P9 none before all are prepared"}, 400},
		{startTwice, launchRun, []string{"P2 started once", "P3 generations never overlap"}, 400},
	} {
		t.Run(string(tc.bug), func(t *testing.T) {
			begin := time.Now()
			for seed := uint64(1); seed <= tc.within; seed++ {
				for _, v := range tc.run(t, seed, tc.bug) {
					t.Logf("found by %q after %d seeds, %v: %s", v.check, seed, time.Since(begin).Round(time.Second/10), v.text)
					if slices.Contains(tc.checks, v.check) {
						return
					} // else the bug has been seen, by a check that many a bug fails
				}
			}
			t.Errorf("not found by any of %q in %d seeds", tc.checks, tc.within)
		})
	}
}
