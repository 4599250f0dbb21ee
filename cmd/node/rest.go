package node

import (
	"context"
	"runtime/debug"
	"time"
)

const (
	// restAfter is how long nothing must be recorded before the agent frees memory.
	restAfter = 20 * time.Second
	// restGarbage is the share of garbage, in percent, at which a resting agent is
	// collected: it makes so little garbage that this costs no time either.
	restGarbage = 10
)

// rest gives the memory of the last jobs back to the system once the node is quiet. By
// itself the runtime does so over minutes, and keeps what the next burst could use again:
// that may come tomorrow, and today's jobs need the memory.
func (n *node) rest(ctx context.Context) error {
	quiet := time.NewTimer(restAfter)
	defer quiet.Stop()
	awake := debug.SetGCPercent(restGarbage) // the only way to read the percentage is to set it
	defer debug.SetGCPercent(awake)
	debug.SetGCPercent(awake)
	for rests := false; ; {
		select {
		case <-n.record.Changed():
			quiet.Reset(restAfter)
			if rests {
				rests = false
				debug.SetGCPercent(awake)
			}
		case <-quiet.C:
			if awake > restGarbage {
				rests = true
				debug.SetGCPercent(restGarbage)
			}
			debug.FreeOSMemory()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
