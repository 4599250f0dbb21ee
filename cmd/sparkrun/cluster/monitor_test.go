package cluster

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// No thread that runs goroutines gets the slack: one of them may start a rank, which would inherit it.
func TestMonitorRunsNoGoroutine(t *testing.T) {
	found, err := monitor()
	if err != nil {
		t.Fatal(err)
	}
	const threads = 40
	tids, over := make(chan int, threads), make(chan struct{})
	defer close(over)
	for range threads {
		go func() {
			runtime.LockOSThread()
			tids <- unix.Gettid()
			<-over
		}()
	}
	for range threads {
		if tid := <-tids; tid == found {
			t.Errorf("thread %d runs a goroutine", tid)
		}
	}
}

func TestMonitorIsCalmed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	tid, err := monitor()
	if err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprintf("/proc/%d/timerslack_ns", tid)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer os.WriteFile(path, before, 0) //nolint:errcheck // the test's process ends soon
	if err := calmMonitor(); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); strings.TrimSpace(string(got)) != fmt.Sprint(monitorSlack.Nanoseconds()) {
		t.Errorf("its slack is %s", got)
	}
	own, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil || own != 50_000 {
		t.Errorf("this thread's slack is %d ns, %v", own, err)
	}
}
