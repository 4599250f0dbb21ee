package rendezvous

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

// A word about a machine stands until the machine is heard or leaves; a second
// one adds to it, and it outlives a snapshot.
func TestDeath(t *testing.T) {
	l := founded(t)
	l.must(t, Entry{Kind: KindToken, At: t0, Token: &Token{ID: "t", Uses: 9, Expires: t0.Add(1e12)}},
		Entry{Kind: KindJoin, At: t0, Join: &Join{TokenID: "t", Node: node(2)}})
	two := node(2).ID
	if err, _ := l.apply(Death{Node: "node-9", Boots: []string{"x"}}.Entry()).(error); !errors.Is(err, ErrNoNode) {
		t.Errorf("of nobody: %v", err)
	}
	say := func(boots ...string) { e := Death{Node: two, Boots: boots}.Entry(); e.At = t0; l.must(t, e) }
	say("b1")
	say("b1", "b2")
	want := []Death{{Node: two, Boots: []string{"b1", "b2"}, At: t0}}
	if d := cmp.Diff(want, l.Deaths()); d != "" {
		t.Error(d)
	}
	snap, err := l.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	again := NewRecord()
	if err := again.Restore(snap); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, again.Deaths()); d != "" {
		t.Errorf("from a snapshot: %s", d)
	}
	heard := Death{Node: two, Heard: true}.Entry()
	l.must(t, heard, heard)
	if len(l.Deaths()) != 0 {
		t.Errorf("heard: %+v", l.Deaths())
	}
	say("b3")
	l.must(t, Entry{Kind: KindRemove, Remove: &two})
	if len(l.Deaths()) != 0 {
		t.Errorf("it has left: %+v", l.Deaths())
	}
}

// Snapshots of before there were such words are read, and take one.
func TestDeathAfterAnOldSnapshot(t *testing.T) {
	l := founded(t)
	snap, err := l.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(snap, &fields); err != nil {
		t.Fatal(err)
	}
	if _, new := fields["deaths"]; new {
		t.Errorf("a record without deaths tells of them: %s", snap)
	}
	if err := l.Restore(snap); err != nil {
		t.Fatal(err)
	}
	l.must(t, Death{Node: node(1).ID, Boots: []string{"b"}}.Entry())
	if len(l.Deaths()) != 1 {
		t.Error("the word is lost")
	}
}

func TestBoots(t *testing.T) {
	l := founded(t)
	other := plannedJob("bbbb", 1, t0)
	other.Plan.Nodes[0].Boot = "b2"
	l.must(t, planOf(plannedJob("aaaa", 1, t0)), planOf(other), planOf(plannedJob("cccc", 1, t0)))
	if got := l.Boots("node-1"); len(got) != 2 {
		t.Errorf("boots %v", got)
	}
	l.must(t, endOf("bbbb", 1))
	if d := cmp.Diff([]string{"b"}, l.Boots("node-1")); d != "" {
		t.Error(d)
	}
	if got := l.Boots(launcher.NodeID("node-9")); got != nil {
		t.Errorf("of nobody: %v", got)
	}
}
