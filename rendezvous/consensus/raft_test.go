package consensus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Both networks, three and five nodes: the leader goes without a word and
// another leads in time, has everything, and takes the old one back.
func TestLeaderLost(t *testing.T) {
	for _, tc := range []struct {
		nodes int
		tcp   bool
	}{{3, false}, {3, true}, {5, false}, {8, true}} {
		t.Run(fmt.Sprintf("%d nodes, tcp %v", tc.nodes, tc.tcp), func(t *testing.T) {
			// The default timeouts: they are what the 3 s stand on.
			c, lead := start(t, tc.nodes, tc.tcp, func(c *Config) { c.Heartbeat = 0 })
			want := []string{}
			for i := range 20 {
				e := fmt.Sprint("entry ", i)
				c.apply(lead, e)
				want = append(want, e)
			}
			begin := time.Now()
			c.crash(lead)
			next := c.leader(30 * time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if err := next.Verify(ctx); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(begin); d > 15*time.Second {
				t.Errorf("a new leader after %v, want 3 s at most", d)
			}
			if got := next.machine.all(); !slices.Equal(got, want) {
				t.Errorf("the new leader has %d entries, want %d", len(got), len(want))
			}
			c.apply(next, "after")
			if err := c.open(lead, false); err != nil {
				t.Fatal(err)
			}
			// Nodes outside of raft (the eighth) have nothing.
			for _, s := range next.Members().Servers {
				n := c.nodes[slices.IndexFunc(c.nodes, func(n *node) bool { return n.id == s.ID })]
				eventually(t, 30*time.Second, "the same entries on "+s.ID, func() bool {
					return slices.Equal(n.machine.all(), append(slices.Clone(want), "after"))
				})
			}
		})
	}
}

func TestCrashKeepsLogTermAndVote(t *testing.T) {
	c, lead := start(t, 1, false, nil)
	for i := range 5 {
		c.apply(lead, fmt.Sprint(i))
	}
	_, term := lead.Leader()
	vote, err := lead.store.Get([]byte("LastVoteCand"))
	if err != nil || string(vote) != lead.id {
		t.Fatalf("vote %q, %v", vote, err)
	}

	// As after a power cut: what is on the disk now, without a clean close.
	dir := filepath.Join(t.TempDir(), "raft")
	if err := os.CopyFS(dir, os.DirFS(lead.dir)); err != nil {
		t.Fatal(err)
	}
	c.crash(lead)
	lead.dir = dir
	if err := c.open(lead, false); err != nil {
		t.Fatal(err)
	}
	if got, err := lead.store.Get([]byte("LastVoteCand")); err != nil || string(got) != string(vote) {
		t.Errorf("vote %q, %v, want %q", got, err, vote)
	}
	if _, now := lead.Leader(); now < term {
		t.Errorf("term %d, want at least %d", now, term)
	}
	c.leader(30 * time.Second)
	c.same([]string{"0", "1", "2", "3", "4"})
	c.apply(lead, "5")

	if err := func() error { c.crash(lead); return c.open(lead, true) }(); err == nil ||
		!strings.Contains(err.Error(), "bootstrap") {
		t.Errorf("a second bootstrap: %v, want a refusal", err)
	}
}

// A node that comes back alone can still say what was recorded.
func TestReplayWithoutLeader(t *testing.T) {
	c, lead := start(t, 3, false, nil)
	for i := range 10 {
		c.apply(lead, fmt.Sprint(i))
	}
	c.same([]string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"})
	c.apply(lead, "last") // carries the commit of what was before
	for _, n := range c.nodes {
		c.crash(n)
	}
	n := c.nodes[1]
	if err := c.open(n, false); err != nil {
		t.Fatal(err)
	}
	if got := n.machine.all(); len(got) < 9 {
		t.Errorf("after opening alone: %q, want at least the first 9", got)
	}
	if len(n.Members().Servers) != 3 {
		t.Errorf("members %+v, want 3", n.Members())
	}
	_, err := n.Apply(t.Context(), []byte("x"))
	if !errors.Is(err, ErrNotLeader) || !errors.Is(err, ErrNoLeader) {
		t.Errorf("apply without a leader: %v", err)
	}
	if err := c.open(c.nodes[0], false); err != nil {
		t.Fatal(err)
	}
	c.leader(30 * time.Second)
	c.same([]string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "last"})
}

// The disk of the leader hangs: it says so in time, falls silent, and another
// leads.
func TestHungDisk(t *testing.T) {
	c, lead := start(t, 3, false, func(c *Config) { c.StoreDeadline = time.Second })
	c.apply(lead, "before")
	hang := make(chan struct{})
	lead.slow.set(hang, nil)
	begin := time.Now()
	_, err := lead.Apply(t.Context(), []byte("hung"))
	if !errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("apply on a hung disk: %v, want an unknown outcome", err)
	}
	select {
	case err := <-lead.fatal:
		var hung *HungError
		if !errors.As(err, &hung) {
			t.Errorf("OnFatal(%v), want a HungError", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("OnFatal was not called")
	}
	if d := time.Since(begin); d > 15*time.Second {
		t.Errorf("OnFatal after %v, the deadline is 1 s", d)
	}
	if lead.State() != Stopped {
		t.Errorf("state %v", lead.State())
	}
	next := c.leader(30*time.Second, lead)
	c.apply(next, "after")
	close(hang)
	c.crash(lead)
	if err := c.open(lead, false); err != nil {
		t.Fatal(err)
	}
	c.same([]string{"before", "after"})
}

func TestFailingDisk(t *testing.T) {
	c, lead := start(t, 3, false, nil)
	lead.slow.set(nil, fmt.Errorf("write raft.db: %w", syscall.ENOSPC))
	_, err := lead.Apply(t.Context(), []byte("x"))
	if !errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("apply: %v, want an unknown outcome", err)
	}
	err = <-lead.fatal
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "free some space") {
		t.Errorf("OnFatal(%v)", err)
	}
	if err := lead.Verify(t.Context()); !errors.Is(err, ErrStopped) || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("verify after the fault: %v", err)
	}
	next := c.leader(30*time.Second, lead)
	c.apply(next, "y")

	// A follower that cannot write the term of an election: raft would panic.
	var follower *node
	for _, n := range c.nodes {
		if n != lead && n != next {
			follower = n
		}
	}
	follower.slow.mu.Lock()
	follower.slow.term = errors.New("input/output error")
	follower.slow.mu.Unlock()
	c.crash(lead)
	if err := c.open(lead, false); err != nil {
		t.Fatal(err)
	}
	c.crash(next) // one of the two others asks for a vote in a new term
	select {
	case err := <-follower.fatal:
		if !strings.Contains(err.Error(), "write raft term") {
			t.Errorf("OnFatal(%v)", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("no fault on the follower")
	}
}

// An entry of an unknown kind stops every node before it and is never skipped,
// also when they open again.
func TestUnknownEntry(t *testing.T) {
	for _, poison := range []string{"unknown", "panic"} {
		t.Run(poison, func(t *testing.T) {
			c, lead := start(t, 1, false, nil)
			c.apply(lead, "known")
			_, err := lead.Apply(t.Context(), []byte(poison))
			var fe *FatalError
			if !errors.As(err, &fe) || fe.Index == 0 {
				t.Fatalf("apply: %v, want a FatalError with its index", err)
			}
			if err := <-lead.fatal; !errors.As(err, &fe) {
				t.Errorf("OnFatal(%v)", err)
			}
			if got := lead.machine.all(); !slices.Equal(got, []string{"known"}) {
				t.Errorf("entries %q", got)
			}
			c.crash(lead)
			err = c.open(lead, false)
			if err == nil { // the commit of the entry was not on disk yet
				err = <-lead.fatal
			}
			if !errors.As(err, &fe) {
				t.Errorf("opened again: %v, want the same FatalError", err)
			}
		})
	}
}

func TestWipedFollowerGetsSnapshot(t *testing.T) {
	for _, tcp := range []bool{false, true} {
		t.Run(fmt.Sprint("tcp ", tcp), func(t *testing.T) {
			c, lead := start(t, 3, tcp, func(c *Config) { c.TrailingLogs = 4 })
			var follower *node
			for _, n := range c.nodes {
				if n != lead {
					follower = n
				}
			}
			c.crash(follower)
			if err := os.RemoveAll(follower.dir); err != nil {
				t.Fatal(err)
			}
			var want []string
			for i := range 30 {
				want = append(want, fmt.Sprint(i))
				c.apply(lead, want[i])
			}
			if err := lead.Snapshot(t.Context()); err != nil {
				t.Fatal(err)
			}
			if first, _ := lead.store.FirstIndex(); first < 10 {
				t.Fatalf("the leader still has entry %d", first)
			}
			if err := c.open(follower, false); err != nil {
				t.Fatal(err)
			}
			c.same(want)
			c.apply(lead, "more")
			want = append(want, "more")
			c.same(want)
			if got, wantM := follower.Members().Index, lead.Members().Index; got != wantM {
				t.Errorf("membership of entry %d after a snapshot, want %d", got, wantM)
			}
			// What came as a snapshot is good for a restart.
			c.crash(follower)
			if err := c.open(follower, false); err != nil {
				t.Fatal(err)
			}
			c.same(want)
		})
	}
}

func TestTypedOutcomes(t *testing.T) {
	c, lead := start(t, 3, false, nil)
	var follower *node
	for _, n := range c.nodes {
		if n != lead {
			follower = n
		}
	}
	c.apply(lead, "a")
	c.same([]string{"a"})

	_, err := follower.Apply(t.Context(), []byte("b"))
	var nl *NotLeaderError
	if !errors.As(err, &nl) || nl.Leader != lead.id || !errors.Is(err, ErrNotLeader) || errors.Is(err, ErrNoLeader) {
		t.Errorf("apply on a follower: %v", err)
	}
	if err := follower.Verify(t.Context()); !errors.Is(err, ErrNotLeader) {
		t.Errorf("verify on a follower: %v", err)
	}
	if _, err := lead.Apply(t.Context(), make([]byte, MaxEntry+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a huge entry: %v", err)
	}

	// Cut off, the leader does not know what becomes of its entry, and says
	// nothing about its leadership that it cannot prove.
	c.isolate(lead, true)
	if _, err := lead.Apply(t.Context(), []byte("lost")); !errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("apply on a leader cut off: %v, want an unknown outcome", err)
	}
	if err := lead.Verify(t.Context()); !errors.Is(err, ErrNotLeader) {
		t.Errorf("verify on a leader cut off: %v", err)
	}
	next := c.leader(30*time.Second, lead)
	c.apply(next, "won")
	c.isolate(lead, false)
	c.same([]string{"a", "won"})

	// What was decided in a leadership is not recorded in a later one.
	_, term := next.Leader()
	if _, err := next.ApplyIn(t.Context(), term-1, []byte("decided long ago")); !errors.Is(err, ErrNotLeader) {
		t.Errorf("apply of an earlier leadership: %v", err)
	}
	if _, err := next.ApplyIn(t.Context(), term, []byte("decided")); err != nil {
		t.Errorf("apply of this leadership: %v", err)
	}
	c.same([]string{"a", "won", "decided"})

	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the caller has gone")
	cancel(cause)
	if _, err := next.Apply(ctx, []byte("c")); !errors.Is(err, ErrUnknownOutcome) || !errors.Is(err, cause) {
		t.Errorf("apply with an ended ctx: %v", err)
	}
}

func TestStaleChange(t *testing.T) {
	c, lead := start(t, 3, false, nil)
	m := lead.Members()
	var id string
	for _, s := range m.Servers {
		if s.ID != lead.id {
			id = s.ID
		}
	}
	ch := Change{ID: id, From: Voter, To: Standby, Prev: m.Index}
	if err := lead.ApplyChange(t.Context(), ch); err != nil {
		t.Fatal(err)
	}
	if err := lead.ApplyChange(t.Context(), ch); !errors.Is(err, ErrStaleChange) {
		t.Errorf("the same change again: %v", err)
	}
	c.converge(lead, nodeID(1), nodeID(2), nodeID(3))
}

// From three nodes to one by steps, and the leader leaves at last.
func TestShrinkAndLeave(t *testing.T) {
	c, lead := start(t, 3, false, nil)
	count := func(n *node) (voters, standbys int) {
		for _, s := range n.Members().Servers {
			if s.Role == Voter {
				voters++
			} else {
				standbys++
			}
		}
		return
	}
	if v, s := count(lead); v != 3 || s != 0 {
		t.Fatalf("%d voters, %d standbys", v, s)
	}
	var other *node
	for _, n := range c.nodes {
		if n != lead {
			other = n
		}
	}
	c.converge(lead, lead.id, other.id)
	if v, s := count(lead); v != 1 || s != 1 {
		t.Fatalf("a pair has %d voters, %d standbys", v, s)
	}
	// The leader has left: the other is promoted, leads, and removes it.
	ctx := t.Context()
	members := []Member{{ID: other.id, Healthy: true}}
	for range 2 {
		if err := lead.Verify(ctx); err != nil {
			t.Fatal(err)
		}
		if err := lead.ApplyChange(ctx, Desired(members, lead.Members())); err != nil {
			t.Fatal(err)
		}
	}
	c.leader(30*time.Second, lead)
	c.converge(other, other.id)
	if v, s := count(other); v != 1 || s != 0 {
		t.Errorf("%d voters, %d standbys", v, s)
	}
	c.crash(lead)
	c.apply(other, "alone")
}

func TestConfigRefused(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no id":        {Dir: "x", Machine: &list{}},
		"no dir":       {ID: "x", Machine: &list{}},
		"no machine":   {ID: "x", Dir: "x"},
		"no transport": {ID: "x", Dir: "x", Machine: &list{}},
	} {
		if r, err := Open(cfg); err == nil {
			r.Close()
			t.Errorf("%s: opened", name)
		}
	}
}
