package consensus

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// raft #697: a deposed leader has a long tail that nobody committed, and what
// it needs comes as a snapshot that ends within that tail. raft alone asks for
// the snapshot again for ever.
func TestSnapshotIntoConflictingLog(t *testing.T) {
	c, old := start(t, 3, false, func(c *Config) { c.TrailingLogs = 1 })
	c.apply(old, "first")
	c.same([]string{"first"})
	c.isolate(old, true)
	var tail sync.WaitGroup
	for i := range 60 {
		tail.Go(func() {
			if _, err := old.Apply(t.Context(), fmt.Appendf(nil, "lost %d", i)); err == nil {
				t.Error("an entry was committed without a majority")
			}
		})
	}
	tail.Wait()
	next := c.leader(30*time.Second, old)
	want := []string{"first"}
	for i := range 10 {
		want = append(want, fmt.Sprint(i))
		c.apply(next, want[i+1])
	}
	if err := next.Snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a, _ := old.store.LastIndex(); a <= next.AppliedIndex() {
		t.Fatalf("the tail ends at %d, the snapshot at %d", a, next.AppliedIndex())
	}
	c.isolate(old, false)
	select {
	case err := <-old.fatal:
		if !errors.Is(err, ErrReopen) {
			t.Fatalf("OnFatal(%v)", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the follower did not notice")
	}
	c.crash(old)
	if err := c.open(old, false); err != nil {
		t.Fatal(err)
	}
	c.apply(c.leader(30*time.Second), "after")
	c.same(append(want, "after"))
}

// raft #695: heartbeats must not be answered beside the main loop.
func TestHeartbeatsTakeTheOrdinaryRoute(t *testing.T) {
	tr := &handlerSpy{}
	var wrapped raft.Transport = ordinaryHeartbeats{tr, newCopies()}
	wrapped.SetHeartbeatHandler(func(raft.RPC) {})
	if tr.set {
		t.Error("the handler got through")
	}
	for _, tr := range []raft.Transport{newTransport(Config{Transport: inmem()}, newCopies()), wrapped} {
		if _, ok := tr.(raft.WithPreVote); !ok {
			t.Errorf("%T has lost its pre-votes", tr)
		}
		if _, ok := tr.(raft.WithClose); !ok {
			t.Errorf("%T cannot be closed", tr)
		}
	}
}

type handlerSpy struct {
	raft.Transport
	set bool
}

func (h *handlerSpy) SetHeartbeatHandler(func(raft.RPC)) { h.set = true }

// raft #696: a transfer of leadership that can never end must not leave a
// leader that refuses every entry: here the target is gone.
func TestTransferToTheDead(t *testing.T) {
	c, lead := start(t, 3, false, nil)
	var gone *node
	for _, n := range c.nodes {
		if n != lead {
			gone = n
		}
	}
	c.apply(lead, "a")
	c.crash(gone)
	err := lead.ApplyChange(t.Context(), Change{ID: gone.id, From: Voter, To: Voter, Transfer: true})
	if err == nil {
		t.Error("leadership went to a dead node")
	}
	eventually(t, 30*time.Second, "entries are taken again", func() bool {
		_, err := c.leader(30*time.Second, gone).Apply(t.Context(), []byte("b"))
		if err != nil && !errors.Is(err, ErrNoLeader) && !errors.Is(err, ErrNotLeader) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// A node hears of its isolation by itself, and its lead function ends, before
// anybody else can be leading for long.
func TestIsolatedLeaderStepsDown(t *testing.T) {
	c, lead := start(t, 3, false, nil)
	changed := lead.LeaderChanged()
	begin := time.Now()
	c.isolate(lead, true)
	for lead.State() == Leader {
		select {
		case <-changed:
			changed = lead.LeaderChanged()
		case <-time.After(30 * time.Second):
			t.Fatal("still leading")
		}
	}
	if d := time.Since(begin); d > 15*time.Second {
		t.Errorf("it led for %v more, the lease is 0.5 s", d)
	}
	c.isolate(lead, false)
}

func TestLogAdapter(t *testing.T) {
	var buf bytes.Buffer
	l := newHCLogger(slog.New(slog.NewTextHandler(&buf, nil)))
	l.Debug("noise", "a", 1)
	l.With("id", "x").Info("entering follower state", "leader-id", "n1", "servers", hclog.Fmt("%d of %d", 1, 3))
	for range 50 {
		l.Error("failed to heartbeat to", "peer", "n2", "error", errors.New("refused"))
	}
	l.Error("failed to heartbeat to", "peer", "n3", "error", errors.New("refused"))
	out := buf.String()
	if strings.Contains(out, "noise") ||
		!strings.Contains(out, `level=INFO msg=raft what="entering follower state" id=x leader_id=n1 servers="1 of 3"`) {
		t.Errorf("%s", out)
	}
	if n := strings.Count(out, "level=WARN"); n != 2 {
		t.Errorf("%d warnings of two peers:\n%s", n, out)
	}
}

// One entry recorded by three voters over TCP, fsync on: alone, and with 64
// that are under way at once (raft writes them together).
func BenchmarkApply(b *testing.B) {
	for _, at := range []int{1, 64} {
		b.Run(fmt.Sprint(at), func(b *testing.B) {
			_, lead := start(b, 3, true, nil)
			entry := bytes.Repeat([]byte{'e'}, 1000)
			b.ResetTimer()
			var wg sync.WaitGroup
			for i := range at {
				wg.Go(func() {
					for j := i; j < b.N; j += at {
						if _, err := lead.Apply(b.Context(), entry); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
