package consensus

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

// A folder that was made of a state leads alone with it, at its index, and
// others get it.
func TestSeed(t *testing.T) {
	t.Parallel()
	c, lead := start(t, 1, true, nil)
	c.apply(lead, "a")
	c.apply(lead, "b")
	state, err := lead.machine.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	c.crash(lead)
	cfg := lead.cfg
	cfg.Machine = &list{}
	if err := Seed(cfg, 50, state); err == nil || !strings.Contains(err.Error(), "has a log already") {
		t.Errorf("over a log: %v", err)
	}
	cfg.Dir = t.TempDir()
	if err := Seed(cfg, 0, state); err == nil {
		t.Error("at no index")
	}
	if err := Seed(cfg, 50, []byte("{")); err == nil {
		t.Error("of what is no state")
	}
	if err := Seed(cfg, 50, state); err != nil {
		t.Fatal(err)
	}
	lead.dir = cfg.Dir
	if err := c.open(lead, false); err != nil {
		t.Fatal(err)
	}
	if c.leader(time.Minute) != lead {
		t.Fatal("it does not lead")
	}
	c.apply(lead, "c")
	if got := lead.machine.all(); !slices.Equal(got, []string{"a", "b", "c"}) || lead.AppliedIndex() <= 50 {
		t.Errorf("entries %v, applied %d", got, lead.AppliedIndex())
	}
	x := lead.Numbers(t.Context())
	if x.State != Leader || x.Leader != lead.id || x.SnapshotIndex != 50 || x.SnapshotBytes == 0 || x.LogBytes == 0 ||
		x.First != 51 ||
		x.Last < 52 || x.Commit < 52 || x.Applied != lead.AppliedIndex() || x.Term < 2 ||
		time.Since(x.SnapshotTime) > time.Hour {
		b, _ := json.Marshal(x)
		t.Errorf("numbers %s", b)
	}
	other := c.add()
	c.converge(lead, lead.id, other.id)
	eventually(t, time.Minute, "the newcomer has all",
		func() bool { return slices.Equal(other.machine.all(), []string{"a", "b", "c"}) })
}

// Who has lost its log loses its part first, whatever that is, and gets none
// before it is no longer blank. A leader is left alone.
func TestBlankServers(t *testing.T) {
	members := []Member{{ID: "a", Joined: 1, Healthy: true}, {ID: "b", Joined: 2, Healthy: true},
		{ID: "c", Joined: 3, Healthy: true}, {ID: "d", Joined: 4, Healthy: true}}
	three := Membership{Leader: "a", Index: 9,
		Servers: []Server{{ID: "a", Role: Voter}, {ID: "b", Role: Voter}, {ID: "c", Role: Voter}, {ID: "d", Role: Standby}}}
	blank := func(id string) []Member {
		ms := slices.Clone(members)
		for i := range ms {
			ms[i].Blank = ms[i].ID == id
		}
		return ms
	}
	for id, from := range map[string]Role{"b": Voter, "d": Standby} {
		if got := Desired(blank(id), three); got.ID != id || got.From != from || got.To != Outside {
			t.Errorf("%s is blank: %+v", id, got)
		}
	}
	if got := Desired(blank("a"), three); !got.Zero() {
		t.Errorf("the leader says that it is blank: %+v", got)
	}
	two := three
	two.Servers = []Server{{ID: "a", Role: Voter}, {ID: "c", Role: Voter}}
	if got := Desired(blank("b"), two); got.ID != "d" || got.To != Standby {
		t.Errorf("a voter is missing and b is blank: %+v", got)
	}
}
