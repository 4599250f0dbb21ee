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

	first := &host{target: "spark1", walked: make(chan struct{}), result: Result{Error: "not ready"}}
	close(first.walked)
	next := &host{fleet: &fleet{}, target: "spark2", after: first}
	if err := next.putBinary(t.Context()); err == nil || !strings.Contains(err.Error(), "spark1, whose turn was before, did not come back") {
		t.Errorf("after one that failed: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (&host{fleet: &fleet{}, after: &host{walked: make(chan struct{})}}).putBinary(ctx); err == nil {
		t.Error("an interrupted one goes on")
	}
}
