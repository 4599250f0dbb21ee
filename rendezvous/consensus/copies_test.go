package consensus

import (
	"context"
	"testing"
	"time"
)

// A leader knows whether a second disk has what it has recorded: by the one route
// that raft takes to a standby as by the other.
func TestCopied(t *testing.T) {
	t.Parallel()
	for name, tcp := range map[string]bool{"tcp": true, "memory": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, lead := start(t, 1, tcp, nil)
			standby := c.add()
			copied := func(within time.Duration) bool {
				ctx, cancel := context.WithTimeout(t.Context(), within)
				defer cancel()
				return lead.Copied(ctx)
			}
			c.apply(lead, "alone")
			if copied(10 * time.Millisecond) {
				t.Error("a node without others has a copy somewhere")
			}
			if err := lead.ApplyChange(t.Context(),
				Change{ID: standby.id, To: Standby, Prev: lead.Members().Index}); err != nil {
				t.Fatal(err)
			}
			if !copied(time.Minute) {
				t.Fatal("the standby never had what was there")
			}
			for range 20 { // by single requests, then by the pipeline
				c.apply(lead, "both")
				if !copied(time.Minute) {
					t.Fatal("the standby never had it")
				}
			}
			if standby.Copied(t.Context()) {
				t.Error("who does not lead cannot know")
			}
			c.crash(standby)
			c.apply(lead, "lead only")
			if copied(200 * time.Millisecond) {
				t.Error("a standby that is off has the entry")
			}
			eventually(t, time.Minute, "raft notices the silence", func() bool {
				return !copied(time.Hour) // which would not return before
			})
			if err := c.open(standby, false); err != nil {
				t.Fatal(err)
			}
			eventually(t, time.Minute, "the standby has caught up", func() bool { return copied(100 * time.Millisecond) })
		})
	}
}
