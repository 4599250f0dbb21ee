package consensus

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// step applies a change as raft would, with raft's own rule of one voter left.
func step(m Membership, c Change) Membership {
	out := Membership{Leader: m.Leader, Index: m.Index + 1}
	found := false
	for _, s := range m.Servers {
		if s.ID == c.ID {
			found = true
			s.Role = c.To
		}
		if s.Role != Outside {
			out.Servers = append(out.Servers, s)
		}
	}
	if !found && c.To != Outside {
		out.Servers = append(out.Servers, Server{ID: c.ID, Role: c.To})
	}
	if c.Transfer {
		out.Leader = c.ID
	}
	return out
}

func names(m Membership, r Role) (ids []string) {
	for _, s := range m.Servers {
		if s.Role == r {
			ids = append(ids, s.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

func nodes(n int) (ms []Member) {
	for i := range n {
		ms = append(ms, Member{ID: fmt.Sprintf("n%02d", i+1), Joined: uint64(i), Healthy: true})
	}
	return ms
}

func settle(t interface{ Fatalf(string, ...any) }, members []Member, m Membership) Membership {
	for range 60 {
		c := Desired(members, m)
		if c.Zero() {
			return m
		}
		m = step(m, c)
	}
	t.Fatalf("no end of changes: %+v", m)
	return m
}

func TestDesiredSizes(t *testing.T) {
	for n, want := range map[int][3]int{ // voters, standbys, outside
		1: {1, 0, 0}, 2: {1, 1, 0}, 3: {3, 0, 0}, 4: {3, 1, 0}, 5: {3, 2, 0},
		6: {3, 2, 1}, 7: {3, 2, 2}, 8: {5, 2, 1}, 9: {5, 2, 2}, 10: {5, 2, 3},
	} {
		m := Membership{Leader: "n01", Index: 1, Servers: []Server{{ID: "n01", Role: Voter}}}
		// One joins at a time, as in life; then back down to one.
		for k := 1; k <= n; k++ {
			m = settle(t, nodes(k), m)
		}
		v, s := len(names(m, Voter)), len(names(m, Standby))
		if got := [3]int{v, s, n - v - s}; got != want {
			t.Errorf("%d nodes: %v, want %v", n, got, want)
		}
		if !slices.Equal(names(m, Voter)[:1], []string{"n01"}) {
			t.Errorf("%d nodes: the leader does not vote: %+v", n, m)
		}
		for k := n; k >= 1; k-- {
			m = settle(t, nodes(k), m)
		}
		if d := cmp.Diff([]string{"n01"}, names(m, Voter)); d != "" {
			t.Errorf("%d nodes and back: %s", n, d)
		}
	}
}

func TestDesiredCases(t *testing.T) {
	voters := func(ids ...string) (s []Server) {
		for _, id := range ids {
			s = append(s, Server{ID: id, Role: Voter})
		}
		return s
	}
	silent := func(s []Server, id string, d time.Duration) []Server {
		s = slices.Clone(s)
		for i := range s {
			if s[i].ID == id {
				s[i].Silent = d
			}
		}
		return s
	}
	sick := func(ms []Member, ids ...string) []Member {
		for i := range ms {
			ms[i].Healthy = ms[i].Healthy && !slices.Contains(ids, ms[i].ID)
		}
		return ms
	}
	three := voters("n01", "n02", "n03")
	four := append(slices.Clone(three), Server{ID: "n04", Role: Standby})
	for _, tc := range []struct {
		name    string
		members []Member
		leader  string
		servers []Server
		want    Change
	}{
		{"a follower decides nothing", nodes(5), "", three, Change{}},
		{"the second of a pair stands by", nodes(2), "n01", voters("n01"),
			Change{ID: "n02", To: Standby}},
		{"no second voter without a third", nodes(3), "n01", append(voters("n01"), Server{ID: "n02", Role: Standby}),
			Change{ID: "n03", To: Standby}},
		{"a third that is down does not make two voters", sick(nodes(3), "n03"), "n01",
			append(voters("n01"), Server{ID: "n02", Role: Standby}),
			Change{}},
		{"gossip's word demotes nobody", sick(nodes(4), "n02"), "n01", four, Change{}},
		{"a minute of silence is not enough", nodes(4), "n01", silent(four, "n02", 60*time.Second), Change{}},
		{"a silent voter is replaced", nodes(4), "n01", silent(four, "n02", 61*time.Second),
			Change{ID: "n02", From: Voter, To: Standby}},
		{"not without a standby", nodes(3), "n01", silent(three, "n02", time.Hour), Change{}},
		{"not by a sick standby", sick(nodes(4), "n04"), "n01", silent(four, "n02", time.Hour), Change{}},
		{"not by a silent standby", nodes(4), "n01", silent(silent(four, "n02", time.Hour), "n04", time.Second), Change{}},
		{"the place is filled", sick(nodes(4), "n02"), "n01",
			[]Server{{"n01", Voter, 0}, {"n02", Standby, time.Hour}, {"n03", Voter, 0}, {"n04", Standby, 0}},
			Change{ID: "n04", From: Standby, To: Voter}},
		{"who has left is removed", nodes(3), "n01", append(slices.Clone(three), Server{ID: "gone", Role: Standby}),
			Change{ID: "gone", From: Standby}},
		{"a voter, too", nodes(2), "n01", three, Change{ID: "n03", From: Voter}},
		{"a pair is left with one vote", nodes(2), "n02", voters("n01", "n02"),
			Change{ID: "n01", From: Voter, To: Standby}},
		{"a leader that leaves passes on", nodes(3)[1:], "n01", voters("n01", "n02", "n03"),
			Change{ID: "n02", From: Voter, To: Voter, Transfer: true}},
		{"the last voter makes another first", nodes(2)[1:], "n01", []Server{{"n01", Voter, 0}, {"n02", Standby, 0}},
			Change{ID: "n02", From: Standby, To: Voter}},
		{"a silent standby makes room", nodes(6), "n01", append(slices.Clone(four), Server{"n05", Standby, 2 * time.Minute}),
			Change{ID: "n05", From: Standby}},
		{"but only for another", nodes(5), "n01", append(slices.Clone(four), Server{"n05", Standby, 2 * time.Minute}),
			Change{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := Desired(tc.members, Membership{Leader: tc.leader, Index: 9, Servers: tc.servers})
			if !got.Zero() {
				if got.Why == "" {
					t.Error("no reason")
				}
				tc.want.Prev = 9
			}
			got.Why = ""
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// A pair's leader stops while its standby has just come back and still counts as
// silent: it is waited for. Dropped and taken in again, over and over, it would
// never catch up.
func TestDesiredKeepsTheHeir(t *testing.T) {
	standby := Server{ID: "n02", Role: Standby, Silent: time.Second}
	m := Membership{Leader: "n01", Index: 7, Servers: []Server{{ID: "n01", Role: Voter}, standby}}
	members := nodes(2)[1:] // without the leader, which departs
	if c := Desired(members, m); !c.Zero() {
		t.Errorf("while it is silent: %+v", c)
	}
	m.Servers[1].Silent = 0
	if c := Desired(members, m); c.ID != "n02" || c.To != Voter {
		t.Errorf("when it answers: %+v", c)
	}
}

// From any membership, with any health, the steps end; none takes the last
// vote or the leader's, or makes a majority of the sick.
func TestDesiredConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "nodes")
		all := nodes(n)
		for i := range all {
			all[i].Healthy = rapid.Bool().Draw(t, "healthy")
		}
		// Some servers are of the cluster, some have left it.
		var m Membership
		m.Index = 1
		for i := range n {
			if r := Role(rapid.IntRange(0, 2).Draw(t, "role")); r != Outside {
				s := Server{ID: all[i].ID, Role: r}
				if !all[i].Healthy {
					s.Silent = time.Duration(rapid.IntRange(1, 120).Draw(t, "silent")) * time.Second
				}
				m.Servers = append(m.Servers, s)
			}
		}
		voters := names(m, Voter)
		if len(voters) == 0 {
			t.Skip("no voter")
		}
		m.Leader = rapid.SampledFrom(voters).Draw(t, "leader")
		members := slices.DeleteFunc(slices.Clone(all), func(mm Member) bool {
			return rapid.IntRange(0, 4).Draw(t, "left") == 0
		})
		for i := range m.Servers {
			if m.Servers[i].ID == m.Leader {
				m.Servers[i].Silent = 0
			}
		}
		for i := range members {
			if members[i].ID == m.Leader {
				members[i].Healthy = true
			}
		}

		seen := map[string]bool{}
		for range 80 {
			c := Desired(members, m)
			if c.Zero() {
				finish(t, members, m)
				return
			}
			if c.Prev != m.Index {
				t.Fatalf("change %+v does not start from %d", c, m.Index)
			}
			if c.ID == m.Leader && c.To != Voter {
				t.Fatalf("the leader takes its own vote: %+v", c)
			}
			if c.From == Outside && c.To == Voter {
				t.Fatalf("a vote without a copy of the log: %+v", c)
			}
			before := names(m, Voter)
			m = step(m, c)
			after := names(m, Voter)
			if d := len(after) - len(before); len(after) == 0 || d > 1 || d < -1 {
				t.Fatalf("%+v: voters %v to %v", c, before, after)
			}
			// The new leader is heard, of course.
			for i := range m.Servers {
				if m.Servers[i].ID == m.Leader {
					m.Servers[i].Silent = 0
				}
			}
			key := fmt.Sprintf("%s %+v", m.Leader, m.Servers)
			if seen[key] {
				t.Fatalf("it goes in circles at %s", key)
			}
			seen[key] = true
		}
		t.Fatalf("no end: %+v", m)
	})
}

// finish checks a settled membership.
func finish(t *rapid.T, members []Member, m Membership) {
	if len(members) == 0 {
		return
	}
	healthy := 0
	for _, mm := range members {
		if mm.Healthy {
			healthy++
		}
	}
	v := len(names(m, Voter))
	leaderIn := slices.ContainsFunc(members, func(mm Member) bool { return mm.ID == m.Leader })
	if healthy == len(members) && leaderIn {
		if want := TargetVoters(len(members)); v != want {
			t.Fatalf("%d voters of %d healthy nodes, want %d", v, len(members), want)
		}
		for _, s := range m.Servers {
			if !slices.ContainsFunc(members, func(mm Member) bool { return mm.ID == s.ID }) {
				t.Fatalf("%s has left and is still in: %+v", s.ID, m)
			}
		}
	}
	if v > max(TargetVoters(len(members)), 2) && leaderIn {
		t.Fatalf("%d voters for %d nodes", v, len(members))
	}
}
