package cluster

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"
)

// monitorSlack is by how much the runtime's monitor may oversleep.
const monitorSlack = time.Millisecond

// calmMonitor spares an idle agent half of its wake-ups. The runtime's monitor thread
// (sysmon) is up whenever anything else is, naps for 20 us at a time, and in the
// millisecond before each timer does so ten times. With this slack it naps once. What it
// is for waits up to a millisecond longer: taking the core of a long system call for
// another goroutine, of which an agent has two.
func calmMonitor() error {
	tid, err := monitor()
	if err != nil {
		return fmt.Errorf("find the runtime's monitor: %w", err)
	}
	// A thread's own: those that start ranks keep the usual slack, which they inherit.
	path := fmt.Sprintf("/proc/%d/timerslack_ns", tid)
	return os.WriteFile(path, []byte(strconv.FormatInt(monitorSlack.Nanoseconds(), 10)), 0)
}

// monitor is the thread that the runtime starts first, before any of the program runs. The
// kernel gives numbers in a circle, so it is the next after the main thread's.
func monitor() (tid int, err error) {
	list, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0, err
	}
	var others []int
	for _, e := range list {
		if n, err := strconv.Atoi(e.Name()); err == nil && n != os.Getpid() {
			others = append(others, n)
		}
	}
	if len(others) == 0 {
		return 0, os.ErrNotExist
	}
	slices.Sort(others)
	for _, n := range others {
		if n > os.Getpid() {
			return n, nil
		}
	}
	return others[0], nil
}
