package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// failing ends rank 1 as its argument says, or lets it stand; the others wait for it.
const failing = `
import datetime, os, signal, sys
import torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main(how):
    if how == "early" and os.environ["RANK"] == "1":
        sys.exit(3)
    dist.init_process_group("gloo")
    hurried = dist.new_group(timeout=datetime.timedelta(seconds=5))
    dist.barrier()
    if how == "stuck":
        if dist.get_rank() == 1:
            signal.pause()
        dist.all_reduce(torch.ones(1), group=hurried)
    if dist.get_rank() == 1:
        if how == "raise":
            raise RuntimeError("out of luck")
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))

main(sys.argv[1])
`

// A rank of a real torch job fails: the others end, launch says which and why,
// and ps JOB says it again.
func TestTorchRanksFail(t *testing.T) {
	dir := scratch(t)
	script := filepath.Join(dir, "failing.py")
	if err := os.WriteFile(script, []byte(failing), 0o644); err != nil {
		t.Fatal(err)
	}
	l := up(t, 3)
	tests := []struct {
		how  string
		code int
		want []string
	}{
		{"raise", 1, []string{"rank 1 on spark2: exit 1: RuntimeError: out of luck; the job was ended", "trace of rank 1:", `raise RuntimeError("out of luck")`}},
		{"kill", 137, []string{"rank 1 on spark2: killed by SIGKILL (9)"}},
		{"early", 3, []string{"rank 1 on spark2: exit 3"}},
		// Which rank a collective waits for is not told by those who time out in it.
		{"stuck", 1, []string{"exit 1: RuntimeError: ", "imed out waiting 5000ms", "; the job was ended", "dist.all_reduce(torch.ones(1), group=hurried)"}},
	}
	for _, tt := range tests {
		r := l.on("spark3", "sparkrun", "launch", "torchrun", "--name", tt.how, "--on", "spark1,spark2,spark3", "--python", python, "--", script, tt.how)
		shown := l.on("spark1", "sparkrun", "ps", tt.how).must(t)
		for _, want := range tt.want {
			if r.code != tt.code || !strings.Contains(r.err, want) || !strings.Contains(shown.out, want) {
				t.Errorf("%s: want exit %d and %q of launch and ps: %s\n%s", tt.how, tt.code, want, r, shown)
			}
		}
	}
	l.assertNothingLeft("spark1", "spark2", "spark3")
}

// A host loses its power under a training job: once it is said to be dead, the
// job goes on from its checkpoint on the two that are left.
func TestTrainingResumesOnFewerHosts(t *testing.T) {
	dir := scratch(t)
	script, err := filepath.Abs("../examples/train.py")
	if err != nil {
		t.Fatal(err)
	}
	l := up(t, 3)
	lost := other(3, "spark1", l.leader("spark1"))[0]
	run := l.start("spark1", "sparkrun", "launch", "torchrun", "--name", "train", "--nodes", "2:3", "--max-restarts", "2", "--node-timeout", "3s",
		"--python", python, "--", script, "--steps", "60", "--pause", "0.2", "--checkpoint", filepath.Join(dir, "line.pt"))
	eventually(t, time.Minute, "a checkpoint", func() bool {
		return strings.Contains(l.on("spark1", "sparkrun", "logs", "train", "--rank", "0").out, "step 5 ")
	})
	l.do("kill", lost)
	eventually(t, time.Minute, "the job waits for a word about "+lost, func() bool {
		return strings.Contains(l.on("spark1", "sparkrun", "ps", "train").out, "mark-dead "+lost)
	})
	if n := strings.Count(l.on("spark1", "sparkrun", "logs", "train").out, "goes on after"); n > 0 {
		t.Errorf("%d ranks were started again while %s may have been running its own", n, lost)
	}
	eventually(t, time.Minute, lost+" is taken for dead", func() bool {
		return l.on("spark1", "sparkrun", "mark-dead", lost).code == 0
	})
	r := run.wait().must(t)
	if !strings.Contains(r.out, "on 2 ranks") || !strings.Contains(r.out, "step 60 ") || !strings.Contains(r.err, "attempt 2 of 3") {
		t.Errorf("the job did not go on from its checkpoint on two hosts: %s", r)
	}
}
