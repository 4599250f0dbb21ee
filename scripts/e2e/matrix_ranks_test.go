package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Row 1. The others go by themselves as soon as they see it, or see nothing.
func rankExits(t *testing.T, f *field, i int) {
	const world, perHost, grace = 6, 2, time.Second
	how := []struct {
		name string
		code int
		says string
	}{{"exit", 7, "exit 7"}, {"kill", 137, "killed by SIGKILL (9)"}, {"raise", 1, "RuntimeError: out of luck"}, {"unseen", 7, "exit 7"}}[i%4]
	victim := i % world
	w := f.testimony(i)
	slack := 0.3 // of a machine that has other work, which may see the first death last
	if *letter {
		slack = 0
	}
	run := f.launch("spark3", fmt.Sprintf("--on spark1,spark2,spark3 --nproc-per-node %d --grace %s", perHost, grace), w.ranks("one-dies", victim, how.name, slack))
	died := w.await(t, "dies", 1)[0]
	f.measured("peers gone", f.gone(mark(grace+2*time.Second)).Sub(died.at), grace+2*time.Second)
	r := run.wait()
	want := fmt.Sprintf("rank %d on spark%d: ", victim, victim/perHost+1)
	if r.code != how.code || !strings.Contains(r.err, want) || !strings.Contains(r.err, how.says) {
		t.Errorf("rank %d, %s: want exit %d and %q, got %s", victim, how.name, how.code, want+how.says, r)
	}
}

// Row 1 with PyTorch: the others are in a collective.
func torchRankExits(t *testing.T, f *field, i int) {
	const grace = time.Second
	script := f.script("failing.py", failing)
	how, code := "raise", 1
	if i%2 == 1 {
		how, code = "kill", 137
	}
	run := f.start("spark3", "sparkrun", "launch", "torchrun", "--on", "spark1,spark2,spark3", "--grace", grace.String(), "--python", python, "--", script, how)
	eventually(t, time.Minute, "the ranks are there", func() bool { return len(f.find("spark2", "failing.py", "RANK=1")) > 0 })
	victim := f.find("spark2", "failing.py", "RANK=1")[0]
	eventually(t, time.Minute, "rank 1 dies", func() bool { return !alive(victim) })
	died := time.Now()
	f.measured("peers gone", f.gone(mark(grace+2*time.Second)).Sub(died), grace+2*time.Second)
	if r := run.wait(); r.code != code || !strings.Contains(r.err, "rank 1 on spark2: ") {
		t.Errorf("rank 1, %s: want exit %d and its name, got %s", how, code, r)
	}
}

// alive tells whether a process has not ended; one that has to be waited for has.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, ok := strings.Cut(string(stat), ") ")
	return err == nil && ok && !strings.ContainsAny(rest[:1], "ZX")
}

func (f *field) script(name, text string) string {
	f.t.Helper()
	path := filepath.Join(f.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
	return path
}

// early lets rank 1 go while the others wait for it in init_process_group.
const early = `
import os, sys, time
import torch.distributed as dist
if os.environ["RANK"] == "1":
    time.sleep(1)
    open(sys.argv[1] + ".1", "w").write(f"dies {time.time_ns()} 0\n")
    os._exit(3)
open(sys.argv[1] + "." + os.environ["RANK"], "w").write(f"waits {time.time_ns()} 0\n")
dist.init_process_group("gloo")
`

// Row 2. From the death of the rank to the word that the job has failed.
func diesBeforeRendezvous(t *testing.T, f *field, i int) {
	w := f.testimony(i)
	name := fmt.Sprintf("early%d", i)
	run := f.start("spark3", "sparkrun", "launch", "torchrun", "--name", name, "--on", "spark1,spark2,spark3",
		"--python", python, "--", f.script("early.py", early), w.path)
	died := w.await(t, "dies", 1)[0]
	r := run.wait()
	f.measured("failed", time.Since(died.at), 5*time.Second)
	if r.code != 3 || !strings.Contains(r.err, "rank 1 on spark2: exit 3") {
		t.Errorf("want exit 3 of rank 1, got %s", r)
	}
	if j := f.jobs("spark1")[name]; j.State != "failed" {
		t.Errorf("job %+v, want it failed", j)
	}
	f.gone(mark(time.Second))
}

// Row 3. The default grace: a rank that is stopped has to be woken to end by TERM.
func stoppedRank(t *testing.T, f *field, i int) {
	w := f.testimony(i)
	name := fmt.Sprintf("stopped%d", i)
	run := f.launch("spark3", "--nodes 3 --name "+name, w.ranks("waits"))
	w.await(t, "up", 3)
	for _, pid := range f.find("spark2", w.path, "RANK=1") {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	asked := time.Now()
	stop := f.start("spark1", "sparkrun", "stop", name)
	f.measured("cancelled", f.gone(mark(10*time.Second)).Sub(asked), 10*time.Second)
	stop.wait().must(t)
	if r := run.wait(); r.code != 143 {
		t.Errorf("want 143, got %s", r)
	}
}

// Row 4. Nobody is left when stop, or launch, returns: that is what it says.
func daemonsLeft(t *testing.T, f *field, i int) {
	w := f.testimony(i)
	name := fmt.Sprintf("daemons%d", i)
	then := []string{"stop", "exit"}[i%2]
	run := f.launch("spark3", "--nodes 3 --grace 1s --name "+name, w.ranks("daemons", then))
	w.await(t, "up", 3)
	if then == "stop" {
		for _, h := range hosts {
			if n := len(f.living(h)); n < 3 {
				t.Fatalf("%s has %d processes of the job before the stop", h, n)
			}
		}
		f.on("spark1", "sparkrun", "stop", name).must(t)
	} else {
		run.wait().must(t)
	}
	for _, h := range hosts {
		for _, p := range f.living(h) {
			t.Errorf("left on %s: %s", h, p.args)
		}
	}
	f.found("0 survivors", "survivors")
	if then == "stop" {
		run.wait()
	}
}

// Row 5. The rank says when it had TERM; the process table, when it was killed.
func deafRank(t *testing.T, f *field, i int) {
	const grace = 3 * time.Second
	w := f.testimony(i)
	name := fmt.Sprintf("deaf%d", i)
	run := f.launch("spark3", fmt.Sprintf("--on spark2 --grace %s --name %s", grace, name), w.ranks("deaf"))
	w.await(t, "up", 1)
	asked := time.Now()
	stop := f.start("spark1", "sparkrun", "stop", name)
	killed := f.gone(mark(grace + 5*time.Second))
	stop.wait().must(t)
	heard := w.hear(t, "term")
	if len(heard) != 1 {
		t.Fatalf("the rank had TERM %d times", len(heard))
	}
	took := killed.Sub(heard[0].at)
	f.measured("off by", (took - grace).Abs(), time.Second)
	if early := killed.Sub(asked); early < grace {
		t.Errorf("killed %s after the stop was asked for, and %s was promised", early, grace)
	}
	if r := run.wait(); r.code != 137 && r.code != 143 {
		t.Errorf("want 137 or 143, got %s", r)
	}
}
