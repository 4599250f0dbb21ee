package preflight

import (
	"context"
	"fmt"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
)

// memory refuses an attempt that the agent's memory guard would end as soon as it ran.
func memory(_ context.Context, c *Case) error {
	m, err := proc.ReadMemory()
	if err != nil || m.Available >= c.MemoryFloor {
		return nil //nolint:nilerr // a kernel that does not tell is no reason to refuse
	}
	return fmt.Errorf("this node has %s of memory left, less than its --memory-floor of %s: end processes that use it",
		launcher.Size(m.Available), launcher.Size(c.MemoryFloor))
}

// MemoryForJobs is how much of this machine's memory jobs may plan to take, in bytes: all but the floor. 0: the
// kernel does not tell.
func MemoryForJobs(floor int64) int64 {
	m, err := proc.ReadMemory()
	if err != nil {
		return 0
	}
	return max(m.Total-floor, 0)
}

// DefaultMemoryFloor is a fortieth of the machine's memory, 1 GiB or more: what sshd, the
// agent and the kernel need to stay responsive. On small machines it is an eighth at most;
// 0 if the kernel does not tell. Of a GB10's 121.7 GiB it is 3.0: its driver has refused
// memory with 3 GiB free, and servers that run well there leave 3.2 GiB or more. A fall
// that is on its way there is caught far above it (launcher/agent/headroom.go).
func DefaultMemoryFloor() int64 {
	m, err := proc.ReadMemory()
	if err != nil {
		return 0
	}
	return floorOf(m.Total)
}

func floorOf(total int64) int64 { return min(max(total/40, 1<<30), total/8) }
