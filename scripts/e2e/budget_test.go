package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// byChance are the calls whose number the scheduler decides.
var byChance = []string{"futex", "nanosleep", "clock_nanosleep", "epoll_pwait", "epoll_wait", "sched_yield", "tgkill",
	"rt_sigreturn", "getpid", "madvise", "clone3", "rt_sigprocmask", "mmap", "munmap", "mprotect", "gettid", "sigaltstack",
	"rseq", "set_robust_list", "restart_syscall"}

// What a launch on one host asks of the kernel, in the agent, the shim and the rank: no clock decides. What is far
// above shows in what the test prints.
func TestLaunchCallsTheKernel(t *testing.T) {
	const (
		launches = 20
		most     = 1_300 // 1,020 on the day that this was written
	)
	l := up(t, 1)
	agents := l.find("spark1", "sparkrun agent", "")
	if len(agents) != 1 {
		t.Fatalf("agents: %v", agents)
	}
	launch := func() { l.on("spark1", "sparkrun", "launch", "exec", "--", "/bin/true").must(t) }
	launch()
	file := filepath.Join(scratch(t), "calls")
	strace := exec.Command("strace", "-f", "-s", "0", "-e", "trace=!"+strings.Join(byChance, ","), "-o", file, "-p",
		strconv.Itoa(agents[0]))
	if err := strace.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "strace follows the agent", func() bool {
		status, err := os.ReadFile("/proc/" + strconv.Itoa(agents[0]) + "/status")
		return err == nil && !strings.Contains(string(status), "TracerPid:\t0\n")
	})
	for range launches {
		launch()
	}
	_ = strace.Process.Signal(syscall.SIGINT)
	late := time.AfterFunc(5*time.Second, func() { _ = strace.Process.Kill() }) // it may wait for a thread that has ended
	_ = strace.Wait()                                                           // by our signal
	late.Stop()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	counts, calls := map[string]int{}, 0
	for _, m := range regexp.MustCompile(`(?m)^\d+ +(\w+)\(`).FindAllStringSubmatch(string(text), -1) {
		counts[m[1]]++
		calls++
	}
	if calls /= launches; calls == 0 || calls > most {
		t.Errorf("a launch on one host makes %d calls, want at most %d; in %d launches: %v", calls, most, launches, counts)
	}
	t.Logf("a launch on one host makes %d calls", calls)
}
