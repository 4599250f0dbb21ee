package consensus

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// A standby whose voter is gone recovers: it leads alone, nothing that it had is
// lost, snapshots and entries alike, and others can join it.
func TestRecoverAStandby(t *testing.T) {
	t.Parallel()
	for name, snapshot := range map[string]bool{"entries": false, "a snapshot and entries": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, lead := start(t, 2, true, nil)
			standby := c.nodes[1]
			want := []string{"a", "b"}
			c.apply(lead, "a")
			c.apply(lead, "b")
			if snapshot {
				c.same(want)
				if err := standby.Snapshot(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			c.apply(lead, "c")
			want = append(want, "c")
			c.same(want)
			c.crash(lead)
			c.crash(standby)
			for range 2 { // a crash in the middle has it done again
				cfg := standby.cfg
				cfg.Machine = &list{}
				if err := Recover(cfg); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.open(standby, false); err != nil {
				t.Fatal(err)
			}
			if c.leader(time.Minute) != standby {
				t.Fatal("somebody else leads")
			}
			if err := standby.Verify(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := standby.machine.all(); !slices.Equal(got, want) {
				t.Errorf("entries %v, want %v", got, want)
			}
			if m := standby.Members(); len(m.Servers) != 1 || m.Servers[0].ID != standby.id || m.Servers[0].Role != Voter {
				t.Errorf("members %+v", m)
			}
			third := c.add()
			c.converge(standby, standby.id, third.id)
			c.apply(standby, "d")
			eventually(t, time.Minute, "the newcomer has all",
				func() bool { return slices.Equal(third.machine.all(), append(want, "d")) })
		})
	}
}

// Without a copy, or with one that this program does not know, nothing is
// recovered.
func TestRecoverRefuses(t *testing.T) {
	t.Parallel()
	c, lead := start(t, 1, true, nil)
	none := lead.cfg
	none.Dir, none.Machine = t.TempDir(), &list{}
	if err := Recover(none); err == nil {
		t.Error("a cluster was made of nothing")
	}
	if _, err := lead.Apply(t.Context(), []byte("unknown")); err == nil {
		t.Fatal("want an error")
	}
	c.crash(lead)
	cfg := lead.cfg
	cfg.Machine = &list{}
	err := Recover(cfg)
	if _, fatal := errors.AsType[*FatalError](err); !fatal {
		t.Errorf("got %v, want the unknown entry", err)
	}
}
