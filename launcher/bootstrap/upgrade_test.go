package bootstrap

import (
	"context"
	"strings"
	"testing"
)

// Members of another release are upgraded only when that was asked for, in the order of their names on the command
// line; what a package has installed, and who is no member, stands in no line.
func TestUpgradesInTurn(t *testing.T) {
	const ours, other = "1111", "2222"
	type want struct{ after, todo, is string }
	for name, c := range map[string]struct {
		upgrade bool
		want    []want // member of another release, the same, packaged, failed, of another release, bare
	}{
		"not asked for": {false, []want{
			{"", "", "another release is there: --upgrade replaces it"}, {"", "", "is there"}, {"", "", "a package has installed it: apt upgrades it"},
			{"", "", "another release is there: --upgrade replaces it"}, {"", "", "another release is there: --upgrade replaces it"}, {"", "copy new", "is there"},
		}},
		"asked for": {true, []want{
			{"", "in place of another release", ""}, {"", "", "is there"}, {"", "", "a package has installed it: apt upgrades it"},
			{"", "in place of another release", ""}, {"0", "in place of another release", ""}, {"", "copy new", "is there"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &fleet{cfg: Config{Upgrade: c.upgrade}}
			var hosts []*host
			for i, f := range []facts{
				{cluster: "c", binary: other, active: true}, {cluster: "c", binary: ours, active: true}, {cluster: "c", packaged: "/lib/x", active: true},
				{cluster: "c", binary: other, active: true}, {cluster: "c", binary: other}, {},
			} {
				f.root, f.group = true, true // nobody is new in the group
				h := &host{fleet: r, target: string(rune('0' + i)), facts: f, binary: Binary{Path: "new", SHA: ours}, walked: make(chan struct{}), serves: make(chan struct{})}
				if i == 3 {
					h.result.Error = "its disk is full"
				}
				hosts = append(hosts, h)
			}
			takeTurns(hosts)
			for i, h := range hosts {
				after := ""
				if h.after != nil {
					after = h.after.target
				}
				w := c.want[i]
				if after != w.after || !strings.Contains(h.binaryToDo(), w.todo) || (w.todo == "") != (h.binaryToDo() == "") || w.is != "" && h.binaryIs() != w.is {
					t.Errorf("host %d: after %q, to do %q, is %q; want %+v", i, after, h.binaryToDo(), h.binaryIs(), w)
				}
			}
			if got, want := strings.Contains(hosts[0].startToDo(), "anew, for the program"), c.upgrade; got != want {
				t.Errorf("the agent of a member that runs: %q", hosts[0].startToDo())
			}
		})
	}

	// One whose program was replaced by a run that was interrupted still runs the old one; and a restart for another reason
	// takes its turn, too.
	alone := []string{"zeta"}
	for name, c := range map[string]struct {
		upgrade bool
		facts   facts
		after   bool
		start   string
	}{
		"interrupted before": {true, facts{cluster: "c", binary: ours, running: other, active: true, enabled: true, group: true, user: "zeta", members: alone}, true, "anew, for the program"},
		"done before":        {true, facts{cluster: "c", binary: ours, running: ours, active: true, enabled: true, group: true, user: "zeta", members: alone}, false, ""},
		"not asked for":      {false, facts{cluster: "c", binary: ours, running: "", active: true, enabled: true, group: true, user: "zeta", members: alone}, false, ""},
		"a package's":        {true, facts{cluster: "c", packaged: "/lib/x", active: true, enabled: true, group: true, user: "zeta", members: alone}, false, ""},
		"new in the group":   {false, facts{cluster: "c", binary: ours, active: true, enabled: true, group: true, user: "zeta"}, true, "anew, for the new member of the group"},
		"no agent":           {false, facts{cluster: "c", binary: ours, group: true, user: "zeta"}, false, "start the agent, now"},
	} {
		first := &host{fleet: &fleet{cfg: Config{Upgrade: true}}, facts: facts{cluster: "c", binary: other, active: true}, binary: Binary{SHA: ours}}
		h := &host{fleet: &fleet{cfg: Config{Upgrade: c.upgrade}}, facts: c.facts, binary: Binary{SHA: ours}, serves: make(chan struct{})}
		takeTurns([]*host{first, h})
		if start := h.startToDo(); (h.after == first) != c.after || !strings.Contains(start, c.start) || (start == "") != (c.start == "") || h.binaryToDo() != "" {
			t.Errorf("%s: in line %v, starts %q, program %q", name, h.after == first, start, h.binaryToDo())
		}
	}

	first := &host{target: "spark1", walked: make(chan struct{}), result: Result{Error: "not ready"}}
	close(first.walked)
	next := &host{fleet: &fleet{}, target: "spark2", after: first}
	if err := next.putBinary(t.Context()); err == nil || !strings.Contains(err.Error(), "spark1, whose turn was before, did not come back") {
		t.Errorf("after one that failed: %v", err)
	}
	next.restart = "for the program that is new"
	if err := next.start(t.Context()); err == nil || !strings.Contains(err.Error(), "spark1, whose turn was before, did not come back") {
		t.Errorf("started anew after one that failed: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (&host{fleet: &fleet{}, after: &host{walked: make(chan struct{})}}).putBinary(ctx); err == nil {
		t.Error("an interrupted one goes on")
	}
}
