package node

import (
	"context"
	"runtime/debug"
	"time"
)

// restAfter is how long nothing is recorded until the agent rests.
const restAfter = 20 * time.Second

// rest gives back what the last jobs took, once it is quiet. Left to itself the runtime does
// so over minutes, and never with what the next burst could use again: but that may
// be tomorrow, and the jobs of today need the memory.
func (n *node) rest(ctx context.Context) error {
	quiet := time.NewTimer(restAfter)
	defer quiet.Stop()
	for {
		select {
		case <-n.record.Changed():
			quiet.Reset(restAfter)
		case <-quiet.C:
			debug.FreeOSMemory()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
