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
			{"", "", "another release is there: --upgrade replaces it"}, {"", "", "is there"},
			{"", "", "a package has installed it: apt upgrades it"},
			{"", "", "another release is there: --upgrade replaces it"},
			{"", "", "another release is there: --upgrade replaces it"}, {"", "copy new", "is there"},
		}},
		"asked for": {true, []want{
			{"", "in place of another release", ""}, {"", "", "is there"},
			{"", "", "a package has installed it: apt upgrades it"},
			{"", "in place of another release", ""}, {"", "in place of another release", ""}, {"", "copy new", "is there"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &fleet{cfg: Config{Upgrade: upgrade(c.upgrade)}}
			var hosts []*host
			for i, f := range []facts{
				{cluster: "c", binary: other, active: true}, {cluster: "c", binary: ours, active: true},
				{cluster: "c", packaged: "/lib/x", active: true},
				{cluster: "c", binary: other, active: true}, {cluster: "c", binary: other}, {},
			} {
				f.root, f.group = true, true // nobody is new in the group
				h := &host{fleet: r, target: string(rune('0' + i)), facts: f, binary: Binary{Path: "new", SHA: ours},
					walked: make(chan struct{}), serves: make(chan struct{})}
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
				if after != w.after || !strings.Contains(h.binaryToDo(), w.todo) ||
					(w.todo == "") != (h.binaryToDo() == "") || w.is != "" && h.binaryIs() != w.is {
					t.Errorf("host %d: after %q, to do %q, is %q; want %+v", i, after, h.binaryToDo(), h.binaryIs(), w)
				}
			}
			if got, want := strings.Contains(hosts[0].startToDo(), "anew, for the program"), c.upgrade; got != want {
				t.Errorf("the agent of a member that runs: %q", hosts[0].startToDo())
			}
		})
	}

	// One whose program was replaced by a run that was interrupted still runs the old one; and a restart for another
	// reason takes its turn, too.
	alone := []string{"zeta"}
	for name, c := range map[string]struct {
		upgrade bool
		facts   facts
		after   bool
		start   string
	}{
		"interrupted before": {true,
			facts{cluster: "c", binary: ours, running: other, active: true, enabled: true, group: true, user: "zeta",
				members: alone}, true, "anew, for the program"},
		"done before": {true,
			facts{cluster: "c", binary: ours, running: ours, active: true, enabled: true, group: true, user: "zeta",
				members: alone}, false, ""},
		"not asked for": {false,
			facts{cluster: "c", binary: ours, running: "", active: true, enabled: true, group: true, user: "zeta",
				members: alone}, false, ""},
		"a package's": {true,
			facts{cluster: "c", packaged: "/lib/x", active: true, enabled: true, group: true, user: "zeta",
				members: alone}, false, ""},
		"new in the group": {false,
			facts{cluster: "c", binary: ours, active: true, enabled: true, group: true, user: "zeta"}, true,
			"anew, for the new member of the group"},
		"no agent": {false, facts{cluster: "c", binary: ours, group: true, user: "zeta"}, false,
			"start the agent, now"},
	} {
		first := &host{fleet: &fleet{cfg: Config{Upgrade: upgrade(true)}},
			facts: facts{cluster: "c", binary: other, active: true}, binary: Binary{SHA: ours}}
		h := &host{fleet: &fleet{cfg: Config{Upgrade: upgrade(c.upgrade)}}, facts: c.facts, binary: Binary{SHA: ours},
			serves: make(chan struct{})}
		takeTurns([]*host{first, h})
		if start := h.startToDo(); (h.after == first) != c.after || !strings.Contains(start, c.start) ||
			(start == "") != (c.start == "") || h.binaryToDo() != "" {
			t.Errorf("%s: in line %v, starts %q, program %q", name, h.after == first, start, h.binaryToDo())
		}
	}

	// Who stands behind one that has failed is told who, not who else stands between.
	first := &host{fleet: &fleet{}, target: "spark1", walked: make(chan struct{}), result: Result{Error: "not ready"}}
	second := &host{fleet: &fleet{}, target: "spark2", after: first, walked: make(chan struct{})}
	third := &host{fleet: &fleet{}, target: "spark3", after: second}
	close(first.walked)
	close(second.walked)
	for _, h := range []*host{second, third} {
		err := h.takeTurn(t.Context())
		if err == nil || !strings.Contains(err.Error(), "spark1, whose turn was before, failed") {
			t.Errorf("%s, after one that failed: %v", h.target, err)
		}
		h.result.Error = "left as it is"
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (&host{fleet: &fleet{}, after: &host{walked: make(chan struct{})}}).takeTurn(ctx); err == nil {
		t.Error("an interrupted one goes on")
	}
}

func TestSpares(t *testing.T) {
	node := func(host, role, state string) peer { return peer{Host: host, Role: role, State: state} }
	full := peer{Host: "c", Role: "voter", State: "ready", NoVote: "its disk is full"}
	for name, c := range map[string]struct {
		nodes []peer // a is asked
		none  bool   // no leader
		want  string // empty: it can be spared
	}{
		"one of three": {nodes: []peer{node("a", "voter", "ready"), node("b", "leader", "ready"),
			node("c", "voter", "ready")}},
		"one of three, another is away": {nodes: []peer{node("a", "voter", "ready"), node("b", "leader", "ready"),
			node("c", "voter", "away")}, want: "c is away: without a, too, the cluster has no majority (1 of 3 voters)"},
		"one has no vote for its disk": {nodes: []peer{node("a", "leader", "ready"), node("b", "voter", "drained"),
			full}, want: "c takes no part in the vote: without a"},
		"one of five, another is away": {nodes: []peer{node("a", "leader", "ready"), node("b", "voter", "ready"),
			node("c", "voter", "ready"), node("d", "voter", "ready"), node("e", "voter", "away")}},
		"no voter, one is away": {nodes: []peer{node("a", "", "ready"), node("b", "leader", "ready"),
			node("c", "voter", "ready"), node("d", "voter", "away")}},
		"a standby of a pair": {nodes: []peer{node("a", "standby", "ready"), node("b", "leader", "ready")}},
		"the only voter":      {nodes: []peer{node("a", "leader", "ready"), node("b", "standby", "away")}},
		"no leader": {nodes: []peer{node("a", "voter", "unknown"), node("b", "voter", "unknown")},
			none: true, want: "its cluster has no leader: two are away"},
	} {
		st := standing{Leader: "b", Self: "a", Nodes: c.nodes}
		if c.none {
			st.Leader, st.Problem = "", "two are away"
		}
		if err := st.spares(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestOlder(t *testing.T) {
	// Each is older than the next one.
	order := []string{"0.9", "1.0.0~rc1", "1.0.0~rc2", "1.0.0", "1.0.0+b1", "1.0.1", "1.0.10", "1.1a", "1.1.0", "2"}
	for i, a := range order {
		for j, b := range order {
			if got, want := older(a, b), i < j; got != want {
				t.Errorf("%s is older than %s: %v", a, b, got)
			}
		}
	}
	for _, pair := range [][2]string{{"dev", "1.0"}, {"1.0", "dev"}, {"1.0", "1.00"}, {"", "1"}} {
		if older(pair[0], pair[1]) {
			t.Errorf("%q is not older than %q", pair[0], pair[1])
		}
	}
}

func upgrade(asked bool) *Upgrade {
	if !asked {
		return nil
	}
	return &Upgrade{Together: func(int, int) error { return nil }}
}
