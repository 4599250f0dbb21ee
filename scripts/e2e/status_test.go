package e2e

import (
	"strings"
	"testing"
	"time"
)

// Whoever looks sees at once that a job goes on without its cable, since when, and at which machine something is wrong.
func TestCutCableIsSeen(t *testing.T) {
	t.Parallel()
	l := up(t, 2, "--topology", "pair")
	look := func(args ...string) string {
		return l.on("spark1", append([]string{"sparkrun"}, args...)...).must(t).out
	}
	l.sees("spark1", "the cable", shaped("pair", "spark1/0-spark2/0"))
	look("launch", "-d", "exec", "--nodes", "2", "--name", "train", "--", "sleep", "600")
	eventually(t, 10*time.Second, "what its ranks use", func() bool {
		out := look("ps", "train")
		return strings.Contains(out, "\n1      spark2   ") && strings.Contains(out, " sleeping\n")
	})
	if out := look("ps", "train") + look("status"); strings.Contains(out, "since it began") || strings.Contains(out, "error") {
		t.Errorf("nothing has happened, and it says\n%s", out)
	}
	l.do("cut", "spark2", "fabric")
	for command, want := range map[string]string{
		"ps":       " running (fabric of spark1,spark2 lost) ",
		"ps train": "\n  fabric of spark2 lost ",
		"status":   " 1 error: sparkrun doctor\n",
	} {
		out := ""
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s:\n%s", command, out)
			}
		})
		took := eventually(t, 10*time.Second, command+" tells it", func() bool {
			out = look(strings.Fields(command)...)
			return strings.Contains(out, want)
		})
		t.Logf("%s after %s", command, took.Round(time.Millisecond))
	}
}
