package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Wherever a job in stages fails, launch names stage, machine and last words, and nothing of it is
// left anywhere; nor is after a stop of one that waits.
func TestStagesThatFail(t *testing.T) {
	ray, err := filepath.Abs("testdata/standin_ray.sh")
	if err != nil {
		t.Fatal(err)
	}
	l := up(t, 3)
	hosts := []string{"spark1", "spark2", "spark3"}
	launch := func(fail string, command ...string) []string {
		return append([]string{"sparkrun", "launch", "ray", "--name", "staged", "--on", "spark1,spark2,spark3", "--ray", ray, "--port", "6379", "--env", "FAIL=" + fail, "--grace", "1s", "--"}, command...)
	}
	for _, tt := range []struct {
		fail string
		code int
		want []string
	}{
		{"head", 3, []string{"stage ray-head, rank 0 on spark1: exit 3", "OSError: the GCS has no room"}},
		{"worker", 4, []string{"stage ray-head is ready", "stage ray-workers, rank 3 on spark3: exit 4", "RuntimeError: the raylet has no room"}},
		{"command", 9, []string{"stage ray-workers is ready", "stage command, rank 1 on spark1: killed by SIGKILL (9)"}},
	} {
		r := l.on("spark2", launch(tt.fail, "sh", "-c", "kill -KILL $$")...)
		if tt.code == 9 {
			tt.code = 128 + 9
		}
		for _, want := range tt.want {
			if r.code != tt.code || !strings.Contains(r.err, want) {
				t.Errorf("%s: want %d and %q: %s", tt.fail, tt.code, want, r)
			}
		}
		l.assertNothingLeft(hosts...)
	}

	// Ray's port is taken on the head's machine: who has it is told, and goes on.
	holder := l.start("spark1", "python3", "-m", "http.server", "--bind", "127.0.0.1", "6379")
	defer holder.cmd.Process.Kill()
	taken := func() string { return l.on("spark1", "ss", "-Hltnp", "sport = :6379").out }
	eventually(t, time.Minute, "the port is taken", func() bool { return strings.Contains(taken(), "python3") })
	r := l.on("spark2", launch("no", "true")...)
	for _, want := range []string{"spark1", "port ray-head.gcs: bind to port 6379: address already in use: python3 (PID ", ") listens on it: end that, or choose another port", "no rank was started"} {
		if r.code != 125 || !strings.Contains(r.err, want) {
			t.Errorf("its port is held: want 125 and %q: %s", want, r)
		}
	}
	if !strings.Contains(taken(), "python3") {
		t.Error("who had the port does not listen any more")
	}
	l.on("spark1", "sh", "-c", `kill $(ss -Hltnp "sport = :6379" | sed 's/.*pid=\([0-9]*\),.*/\1/')`).must(t)
	holder.wait()
	l.assertNothingLeft(hosts...)

	waits := l.start("spark2", launch("waits", "true")...)
	eventually(t, time.Minute, "it waits", func() bool {
		return strings.Contains(l.on("spark1", "sparkrun", "ps", "staged").out, "1 of 3 nodes seen in ray status (spark1)")
	})
	if !strings.Contains(taken(), "python3") {
		t.Error("the head does not listen on the port that was asked for")
	}
	l.on("spark1", "sparkrun", "stop", "staged").must(t)
	if r := waits.wait(); r.code != 143 || strings.Contains(r.err, "stage ray-workers is ready") {
		t.Errorf("stopped while it waits: %s", r)
	}
	l.assertNothingLeft(hosts...)
}
