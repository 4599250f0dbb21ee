package e2e

import (
	"strings"
	"testing"
	"time"
)

// A machine loses its power and comes back: its job is known as lost, and what its
// ranks wrote last is shown, from another machine.
func TestLastLinesAfterReboot(t *testing.T) {
	t.Parallel()
	l := up(t, 3)
	l.on("spark1", "sparkrun", "launch", "-d", "--name", "train", "exec", "--on", "spark2,spark3", "--", "sh", "-c",
		`echo "step 1 of $RANK"; echo "step 2 of $RANK" >&2; exec sleep 1000`).must(t)
	eventually(t, time.Minute, "the ranks' lines", func() bool {
		return strings.Count(l.on("spark1", "sparkrun", "logs", "train").out, "step 1") == 2
	})
	l.do("kill", "spark3")
	screen := ""
	l.do("start", "spark3")
	eventually(t, 2*time.Minute, "the end of the job, told with the lost rank's last lines", func() bool {
		screen = l.on("spark1", "sparkrun", "ps", "train").out
		return strings.Contains(screen, "the last lines of rank 1, as spark3 has them:")
	})
	for _, want := range []string{": exec of root, failed, exit code 125\n", "\nspark3 restarted; the job was ended\n", "\n  [1] step 1 of 1\n", "\n  [1] step 2 of 1\n"} {
		if !strings.Contains(screen, want) {
			t.Errorf("%q is not on the screen:\n%s", want, screen)
		}
	}
	if strings.Contains(screen, "of 0") {
		t.Errorf("rank 0 was not lost:\n%s", screen)
	}
}
