package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/logs"
)

func TestReopenAtEveryPhase(t *testing.T) {
	exit := func(code int) *launcher.Exit { return &launcher.Exit{Code: code} }
	phases := []struct {
		name string
		come func(n *node) // to this phase, before the agent is dropped
		want launcher.Phase
		rank [2]launcher.RankState
		// go on to the end, and what a leader hears on the way
		goOn func(n *node)
	}{
		{"prepared", func(n *node) {}, launcher.PhasePrepared, [2]launcher.RankState{}, func(n *node) {
			n.prepare(n.as("")) // a new leader asks again
			n.hear(launcher.Prepared)
			n.start(key, 29511)
			n.hear(launcher.Started)
			n.pass(0)
			n.pass(1)
		}},
		{"started", func(n *node) {
			n.start(key, 29511)
			n.hear(launcher.Started)
		}, launcher.PhaseStarted, [2]launcher.RankState{launcher.RankRunning, launcher.RankRunning}, func(n *node) {
			n.start(key, 29511) // as a leader does that never heard of the start
			n.pass(0)
			n.pass(1)
		}},
		{"one rank ended", func(n *node) {
			n.start(key, 29511)
			n.hear(launcher.Started)
			n.pass(0)
			n.hear(launcher.Exited)
		}, launcher.PhaseStarted, [2]launcher.RankState{launcher.RankEnded, launcher.RankRunning},
			func(n *node) { n.pass(1) }},
		{"ended", func(n *node) {
			n.start(key, 29511)
			n.pass(0)
			n.pass(1)
			n.hear(launcher.Ended)
		}, launcher.PhaseEnded, [2]launcher.RankState{launcher.RankEnded, launcher.RankEnded},
			func(n *node) { n.prepare(n.as("")) }},
		{"ended while nobody looked", func(n *node) {
			n.start(key, 29511)
			n.hear(launcher.Started)
			n.drop()
			n.pass(0)
			n.pass(1)
			n.poll("both exits in the journal", func() bool {
				b, _ := os.ReadFile(filepath.Join(n.cfg.RunDir, "jobs", key.String(), "journal"))
				return strings.Contains(string(b), `"ended"`)
			})
			n.open()
		}, launcher.PhaseEnded, [2]launcher.RankState{launcher.RankEnded, launcher.RankEnded},
			func(n *node) { n.prepare(n.as("")) }},
	}
	for _, p := range phases {
		t.Run(p.name, func(t *testing.T) {
			n := newNode(t)
			n.prepare(n.as("witness; echo before; gate; echo after; exit $(( RANK + 3 ))", ranks(0, 2)))
			n.hear(launcher.Prepared)
			p.come(n)
			before := n.entry(key)
			for range 2 { // twice: the second incarnation must leave it as it found it
				n.drop()
				n.open()
				if d := cmp.Diff(before, n.entry(key), cmpopts.EquateEmpty()); d != "" {
					t.Fatalf("the ledger right after opening: %s", d)
				}
			}
			if before.Phase != p.want {
				t.Fatalf("phase %s", before.Phase)
			}
			for _, r := range before.Ranks {
				if r.State != p.rank[r.Rank] || r.PID == 0 {
					t.Errorf("rank %+v", r)
				}
			}
			p.goOn(n)
			n.hear(launcher.Ended)
			e := n.entry(key)
			if e.Port != 29511 || e.Phase != launcher.PhaseEnded || len(e.Ranks) != 2 {
				t.Errorf("at the end: %+v", e)
			}
			for _, r := range e.Ranks {
				if d := cmp.Diff(*exit(r.Rank + 3), r.Exit.Bare()); d != "" {
					t.Errorf("rank %d: %s", r.Rank, d)
				}
				for _, b := range before.Ranks {
					if b.Rank == r.Rank && b.PID != r.PID {
						t.Errorf("rank %d was PID %d and is %d", r.Rank, b.PID, r.PID)
					}
				}
				if got := n.output(r.Rank); got != "before\nafter\n" {
					t.Errorf("output of rank %d: %q", r.Rank, got)
				}
			}
			if len(n.witness()) != 2 {
				t.Errorf("exec'd as %v", n.witness())
			}
		})
	}
}

func (n *node) output(rank int) string {
	n.t.Helper()
	var out strings.Builder
	err := n.a.Logs(n.ctx, logs.Request{Key: key, Ranks: []int{rank}}, func(c launcher.Chunk) error {
		if c.Stream == launcher.Stdout {
			out.Write(c.Data)
		}
		return nil
	})
	must(n.t, err)
	return out.String()
}

// Every exit that the dropped agent missed is told by the next, also to a
// listener who is there from the beginning: events complete.
func TestEventsGoOnAfterReopen(t *testing.T) {
	n := newNode(t)
	n.launch(n.as("gate; exit 9", ranks(0, 3)))
	n.pass(0)
	n.hear(launcher.Exited)
	n.drop()
	n.open()
	n.pass(1)
	n.pass(2)
	n.hear(launcher.Ended)
	exits := map[int]int{}
	for _, ev := range n.rec.all() {
		if ev.Kind == launcher.Exited {
			exits[ev.Rank]++
		}
	}
	if d := cmp.Diff(map[int]int{1: 1, 2: 1}, exits); d != "" { // rank 0's is in the ledger
		t.Error(d)
	}
}

func TestEndReachesTheReattached(t *testing.T) {
	for name, started := range map[string]bool{"prepared": false, "started": true} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.prepare(n.as("trap '' TERM; while :; do sleep 1; done"))
			n.hear(launcher.Prepared)
			if started {
				n.start(key, 0)
				n.hear(launcher.Started)
			}
			n.drop()
			n.open()
			n.end(key, 50*time.Millisecond)
			n.hear(launcher.Ended)
			if e := n.entry(key); e.Refused != "" {
				t.Errorf("ended, not refused: %+v", e)
			}
		})
	}
}

func TestFoldersInJobsThatAreNoWholeAttempt(t *testing.T) {
	n := newNode(t)
	n.launch(n.as("gate; exit 4"))
	other := launcher.Key{Job: "efgh", Generation: 1}
	n.prepare(n.as("witness", named(other.Job)))
	n.hear(launcher.Prepared)
	n.drop()
	jobs := filepath.Join(n.cfg.RunDir, "jobs")
	file := func(parts ...string) string { return filepath.Join(append([]string{jobs}, parts...)...) }
	// The running and the prepared one lose what they were told.
	must(t, os.WriteFile(file(key.String(), "assignment.json"), []byte(`{"job":`), 0o600))
	must(t, os.Remove(file(other.String(), "assignment.json")))
	// Nothing ever ran here: died before it had prepared.
	must(t, os.Mkdir(file("empty234.1"), 0o700))
	must(t, os.Mkdir(file("broken23.1"), 0o700))
	must(t, os.WriteFile(file("broken23.1", "assignment.json"), []byte("\x00"), 0o600))
	// Not ours.
	must(t, os.Mkdir(file("lost+found"), 0o700))
	must(t, os.WriteFile(file("note"), nil, 0o600))
	n.open()
	phases := map[string]launcher.Phase{}
	for _, e := range n.a.Ledger() {
		phases[e.String()] = e.Phase
	}
	want := map[string]launcher.Phase{key.String(): launcher.PhaseStarted, other.String(): launcher.PhasePrepared,
		"empty234.1": launcher.PhaseNone, "broken23.1": launcher.PhaseNone}
	if d := cmp.Diff(want, phases); d != "" {
		t.Fatal(d)
	}
	// A leader sweeps what it does not drive; what is not ours stays.
	for _, id := range []launcher.JobID{"empty234", "broken23"} {
		n.order(launcher.Order{Forget: &launcher.Key{Job: id, Generation: 1}})
	}
	n.poll("the sweep", func() bool { return len(n.a.Ledger()) == 2 })
	var left []string
	dirs, _ := os.ReadDir(jobs)
	for _, d := range dirs {
		left = append(left, d.Name())
	}
	if d := cmp.Diff([]string{key.String(), other.String(), "lost+found", "note"}, left); d != "" {
		t.Error(d)
	}
	must(t, os.Remove(file("lost+found")))
	must(t, os.Remove(file("note")))
	// Ranks that run are known, and their exit is.
	if e := n.entry(key); e.Phase != launcher.PhaseStarted || e.Ranks[0].PID == 0 {
		t.Errorf("entry %+v", e)
	}
	n.pass(0)
	if ev := n.hear(launcher.Exited); ev.Exit.Code != 4 {
		t.Errorf("%+v", ev)
	}
	n.hear(launcher.Ended)
	// The prepared one cannot be started, and says so.
	n.start(other, 0)
	if text := n.hear(launcher.Refused).Text; !strings.Contains(text, "unreadable") {
		t.Error(text)
	}
	n.end(other, 0)
	n.hear(launcher.Ended)
}

// A leader that asks again brings the assignment with it.
func TestALostAssignmentIsTakenFromTheNextPrepare(t *testing.T) {
	for name, phase := range map[string]launcher.Phase{"prepared": launcher.PhasePrepared, "not yet": launcher.PhaseNone} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			dir := filepath.Join(n.cfg.RunDir, "jobs", key.String())
			if phase == launcher.PhasePrepared {
				n.prepare(n.as("witness"))
				n.hear(launcher.Prepared)
			}
			n.drop()
			must(t, os.MkdirAll(dir, 0o700))
			must(t, os.WriteFile(filepath.Join(dir, "assignment.json"), nil, 0o600))
			n.open()
			if e := n.entry(key); e.Phase != phase {
				t.Errorf("found %+v", e)
			}
			n.launch(n.as("witness"))
			n.hear(launcher.Ended)
			if len(n.witness()) != 1 {
				t.Errorf("witness %v", n.witness())
			}
		})
	}
}

// The agent was away when its shim gave up waiting.
func TestAPreparedAttemptThatTimedOutUnseenCanBePreparedAgain(t *testing.T) {
	n := newNode(t)
	as := n.as("witness")
	as.Spec.StartTimeout = 100 * time.Millisecond
	n.prepare(as)
	n.hear(launcher.Prepared)
	n.drop()
	n.poll("its shim to leave", func() bool { return len(n.shimPIDs()) == 0 })
	n.open()
	as.Spec.StartTimeout = time.Minute
	n.launch(as)
	n.hear(launcher.Ended)
}

func TestAnotherAttemptsAssignmentIsNotBelieved(t *testing.T) {
	n := newNode(t)
	as := n.as("gate")
	n.launch(as)
	n.drop()
	as.Ranks = 700
	as.Key.Generation = 8
	must(t, writeJSON(filepath.Join(n.cfg.RunDir, "jobs", key.String(), "assignment.json"), as))
	n.open()
	if e := n.entry(key); e.Phase != launcher.PhaseStarted || len(n.a.Ledger()) != 1 {
		t.Errorf("ledger %+v", n.a.Ledger())
	}
	n.pass(0)
	n.hear(launcher.Ended)
	if e := n.entry(key); len(e.Ranks) != 1 {
		t.Errorf("entry %+v", e)
	}
}
