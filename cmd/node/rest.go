package node

import (
	"context"
	"runtime/debug"
	"time"
)

const (
	// restAfter is how long nothing is recorded until the agent rests.
	restAfter = 20 * time.Second
	// restGarbage is the share of garbage, in percent, at which an agent that rests is
	// collected: it makes so little that this takes no time, either.
	restGarbage = 10
)

// rest gives back what the last jobs took, once it is quiet. Left to itself the runtime does
// so over minutes, and never with what the next burst could use again: but that may
// be tomorrow, and the jobs of today need the memory.
func (n *node) rest(ctx context.Context) error {
	quiet := time.NewTimer(restAfter)
	defer quiet.Stop()
	awake := debug.SetGCPercent(restGarbage) // there is no other way to ask for it
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
