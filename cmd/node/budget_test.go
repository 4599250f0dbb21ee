package node

import (
	"runtime"
	"testing"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// A launch allocates so much in one agent, and in the client that asks it: the collector's work, which was a third of
// a launch's processor time. No clock decides. What is far above stands in a profile:
// go test ./cmd/node -run TestLaunchAllocates -memprofile FILE -memprofilerate 1
func TestLaunchAllocates(t *testing.T) {
	const (
		mostAllocations = 2_600   // 1,990 on the day that this was written
		mostBytes       = 400_000 // 268,997
		launches        = 40
	)
	h := newCluster(t, 1).hosts[0]
	h.waitVoters(1)
	launch := func(n int) {
		for range n {
			if out := h.run(command(1, 1, "true")); out.End != rendezvous.Completed {
				t.Fatal(out)
			}
		}
	}
	launch(launches) // what is kept of jobs, and connections
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	launch(launches)
	runtime.ReadMemStats(&after)
	allocations := (after.Mallocs - before.Mallocs) / launches
	bytes := (after.TotalAlloc - before.TotalAlloc) / launches
	t.Logf("a launch on one host: %d allocations, %d bytes", allocations, bytes)
	if allocations > mostAllocations || bytes > mostBytes {
		t.Errorf("a launch on one host makes %d allocations of %d bytes, want at most %d of %d", allocations, bytes,
			mostAllocations, mostBytes)
	}
}
