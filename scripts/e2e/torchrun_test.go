package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// torchrun itself, once a host, meets by the head's address and port either way;
// its workers' failure is told as our own ranks' is.
func testRealTorchrun(t *testing.T, l *lab) {
	script, err := filepath.Abs("testdata/allreduce.py")
	if err != nil {
		t.Fatal(err)
	}
	torchrun := func(args ...string) result {
		t.Helper()
		return l.on("spark1", append([]string{"sparkrun", "launch", "torchrun", "--agent", "torchrun", "--on", "spark2,spark3", "--python", python}, args...)...)
	}
	r := torchrun("--nproc-per-node", "2", "--", script).must(t)
	if strings.Count(r.out, `"sum": 10.0`) != 4 || strings.Count(r.out, `"MASTER_ADDR": "192.168.100.12"`) != 4 || strings.Count(r.out, `"TORCHELASTIC_USE_AGENT_STORE": "True"`) != 4 {
		t.Errorf("static: want the sum of four workers, who meet in torchrun's own store on the fabric: %s", r)
	}
	r = torchrun("--rdzv-backend", "c10d", "--", script).must(t)
	if strings.Count(r.out, `"sum": 3.0`) != 2 || strings.Count(r.out, `"TORCHELASTIC_USE_AGENT_STORE": "False"`) != 2 {
		t.Errorf("c10d: want the sum of two workers: %s", r)
	}
	bad := filepath.Join(scratch(t), "failing.py")
	if err := os.WriteFile(bad, []byte(failing), 0o644); err != nil {
		t.Fatal(err)
	}
	again := filepath.Join(scratch(t), "again.py") // recovers in its second attempt, by what torchrun's scripts look at
	if err := os.WriteFile(again, []byte(`import os, sys
n, most = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["TORCHELASTIC_MAX_RESTARTS"]
print("attempt", n, "of", most, flush=True)
sys.exit(n == "0")
`), 0o644); err != nil {
		t.Fatal(err)
	}
	r = torchrun("--max-restarts", "2", "--", again).must(t)
	if strings.Count(r.out, "attempt 1 of 2") != 2 {
		t.Errorf("a script that recovers: %s", r)
	}
	r = torchrun("--", bad, "raise")
	if r.code != 1 || !strings.Contains(r.err, "RuntimeError: out of luck") || !strings.Contains(r.err, "on spark3: exit 1") {
		t.Errorf("a worker that fails: %s", r)
	}
}
