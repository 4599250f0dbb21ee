package rendezvous

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sparkrun/sparkrun/launcher"
)

func tokenEntry(id string, uses int, expires time.Time) Entry {
	return Entry{Kind: KindToken, At: t0,
		Token: &Token{ID: id, Hash: []byte("hash of " + id), Role: "node", Uses: uses, Expires: expires}}
}

func joinEntry(token string, n Node, at time.Time) Entry {
	return Entry{Kind: KindJoin, At: at, Join: &Join{TokenID: token, Node: n}}
}

func TestFound(t *testing.T) {
	l := founded(t)
	if uuid, epoch, index := l.Cluster(); uuid != "c1" || epoch != 1 || index != 1 {
		t.Errorf("cluster %s, epoch %d, index %d", uuid, epoch, index)
	}
	answer := l.apply(Entry{Kind: KindFound, Found: &Found{Cluster: "c2", Epoch: 9, First: node(2)}})
	if answer != ErrFounded {
		t.Errorf("a second founding was answered %v", answer)
	}
	if uuid, epoch, index := l.Cluster(); uuid != "c1" || epoch != 1 || index != 2 {
		t.Errorf("after a second founding: cluster %s, epoch %d, index %d", uuid, epoch, index)
	}
	if len(l.Nodes()) != 1 {
		t.Errorf("nodes %v", l.Nodes())
	}
}

func TestJoinUsesUpAToken(t *testing.T) {
	l := founded(t)
	hour := t0.Add(time.Hour)
	l.must(t, tokenEntry("two", 2, hour), tokenEntry("old", 9, t0))
	answers := []struct {
		entry Entry
		want  error
	}{
		{joinEntry("none", node(2), t0), ErrTokenUnknown},
		{joinEntry("old", node(2), t0.Add(time.Second)), ErrTokenExpired},
		{joinEntry("two", node(2), hour), nil}, // the last moment counts
		{joinEntry("two", Node{ID: "node-9", Host: "spark2"}, t0), ErrHostTaken},
		{joinEntry("two", node(3), t0), nil}, // a refused join uses nothing up
		{joinEntry("two", node(4), t0), ErrTokenUsed},
	}
	for i, a := range answers {
		got, _ := l.apply(a.entry).(error)
		if !errors.Is(got, a.want) {
			t.Errorf("join %d: %v, want %v", i, got, a.want)
		}
	}
	var hosts []string
	for _, n := range l.Nodes() {
		hosts = append(hosts, n.Host)
	}
	if want := []string{"spark1", "spark2", "spark3"}; !slices.Equal(hosts, want) {
		t.Errorf("members %v, want %v", hosts, want)
	}
	// What a token lets in is for who admits to look at: an older version's entry says nothing of it.
	witness := Token{Role: "witness", Uses: 1, Expires: hour}
	if err := witness.Check(t0, "node"); !errors.Is(err, ErrTokenRole) {
		t.Errorf("a witness's token for a node: %v", err)
	}
	if err := witness.Check(t0, "witness"); err != nil {
		t.Error(err)
	}
}

func TestHostTakenNamesTheHolder(t *testing.T) {
	l := founded(t)
	l.must(t, tokenEntry("t", 1, t0))
	err, _ := l.apply(joinEntry("t", Node{ID: "clone", Host: "spark1"}, t0)).(error)
	if err == nil || !strings.Contains(err.Error(), "node-1 at 10.0.0.1") {
		t.Errorf("error %v", err)
	}
}

func TestNodesKeepTheirOrder(t *testing.T) {
	l := founded(t)
	l.must(t, tokenEntry("t", 9, t0))
	for _, n := range []int{10, 5, 3, 4} {
		l.must(t, joinEntry("t", node(n), t0))
	}
	moved := node(3)
	moved.Addr = node(99).Addr
	moved.Host = "renamed" // such an entry changes the address and the protocol alone
	moved.Protocol = 7
	l.must(t, Entry{Kind: KindNode, Node: &moved})
	again := node(5)
	again.Addr = node(98).Addr
	l.must(t, joinEntry("t", again, t0)) // a member that joins again keeps its place
	var got []string
	for _, n := range l.Nodes() {
		got = append(got, n.Host+" "+n.Addr.Addr().String())
	}
	want := []string{"spark1 10.0.0.1", "spark3 10.0.0.99", "spark4 10.0.0.4", "spark5 10.0.0.98", "spark10 10.0.0.10"}
	if d := diff(want, got); d != "" {
		t.Error(d)
	}
	if n, _ := l.Node("node-3"); n.Protocol != 7 {
		t.Errorf("protocol %d is recorded, want 7", n.Protocol)
	}
	gone := launcher.NodeID("node-3")
	l.must(t, Entry{Kind: KindRemove, Remove: &gone})
	if _, ok := l.Node(gone); ok {
		t.Error("a removed node is still a member")
	}
	for _, e := range []Entry{{Kind: KindRemove, Remove: &gone}, {Kind: KindNode, Node: &moved}} {
		if answer := l.apply(e); answer != ErrNoNode {
			t.Errorf("%s of a node that is gone: %v", e.Kind, answer)
		}
	}
}

func TestTokensAreForgottenADayAfterTheyExpire(t *testing.T) {
	l := founded(t)
	l.must(t, tokenEntry("a", 1, t0.Add(-25*time.Hour)), tokenEntry("b", 1, t0.Add(-23*time.Hour)), tokenEntry("c", 1, t0))
	for id, want := range map[string]error{"a": ErrTokenUnknown, "b": nil, "c": nil} {
		if _, err := l.TokenByHash([]byte("hash of " + id)); !errors.Is(err, want) {
			t.Errorf("token %s: %v, want %v", id, err, want)
		}
	}
}

func TestPlanAndEnd(t *testing.T) {
	l := founded(t)
	steps := []struct {
		what  string
		entry Entry
		want  error
	}{
		{"second generation of nothing", planOf(plannedJob("jjjj", 2, t0)), ErrNoJob},
		{"end of nothing", endOf("jjjj", 1), ErrNoJob},
		{"first plan", planOf(plannedJob("jjjj", 1, t0)), nil},
		{"the same again", planOf(plannedJob("jjjj", 1, t0)), ErrJobExists},
		{"a generation too far", planOf(plannedJob("jjjj", 3, t0)), ErrJobExists},
		{"the next generation", planOf(plannedJob("jjjj", 2, t0)), nil},
		{"an older one", planOf(plannedJob("jjjj", 1, t0)), ErrJobExists},
		{"end of an older generation", endOf("jjjj", 1), launcher.ErrStaleGeneration},
		{"end", endOf("jjjj", 2), nil},
		{"end again", endOf("jjjj", 2), ErrJobEnded},
		{"plan after the end", planOf(plannedJob("jjjj", 3, t0)), ErrJobEnded},
		{"first plan after the end", planOf(plannedJob("jjjj", 1, t0)), ErrJobEnded},
	}
	for _, s := range steps {
		if got, _ := l.apply(s.entry).(error); !errors.Is(got, s.want) {
			t.Errorf("%s: %v, want %v", s.what, got, s.want)
		}
	}
	j, _ := l.Job("jjjj")
	if j.Outcome == nil || j.Outcome.End != Completed || j.Plan.Generation != 2 {
		t.Errorf("job became %+v", j)
	}
}

// A planned job that claims to have ended already would never be driven.
func TestPlanDropsAnOutcome(t *testing.T) {
	l := founded(t)
	j := plannedJob("jjjj", 1, t0)
	j.Outcome = &Outcome{End: Completed}
	l.must(t, planOf(j))
	if j, _ := l.Job("jjjj"); j.Outcome != nil {
		t.Error("it ended before it began")
	}
}

func TestUnknownKindStopsTheNode(t *testing.T) {
	l := founded(t)
	tests := map[string]string{
		"a kind of tomorrow":  `{"kind":"job-paused/1"}`,
		"the next version":    `{"kind":"job-planned/9","job":{}}`,
		"kind without body":   `{"kind":"job-planned/1"}`,
		"body of another":     `{"kind":"job-ended/1","job":{}}`,
		"a field of tomorrow": `{"kind":"node-removed/1","remove":"x","softly":true}`,
		"one further down":    `{"kind":"job-ended/1","end":{"job":"a","generation":1,"outcome":{"mood":"bad"}}}`,
		"no entry at all":     `{}`,
		"no JSON":             `hello`,
		"cut short":           `{"kind":"job-plan`,
		"something behind it": `{"kind":"node-removed/1","remove":"x"}{}`,
	}
	before, _ := l.Snapshot()
	for name, data := range tests {
		t.Run(name, func(t *testing.T) {
			var unknown UnknownKindError
			err, _ := l.Apply(1, []byte(data)).(error)
			if !errors.As(err, &unknown) || unknown.Index != 1 {
				t.Fatalf("answer %v", err)
			}
			if !strings.Contains(err.Error(), "upgrade this node") {
				t.Errorf("no remedy in %q", err)
			}
		})
	}
	if after, _ := l.Snapshot(); !bytes.Equal(before, after) {
		t.Error("an entry that nobody understands changed the record")
	}
}

func TestFind(t *testing.T) {
	l := founded(t)
	add := func(id launcher.JobID, name string, sec int) {
		j := plannedJob(id, 1, t0.Add(time.Duration(sec)*time.Second))
		j.Spec.Name = name
		l.must(t, planOf(j))
	}
	add("aaaa1", "train", 1)
	add("aaaa2", "train", 3)
	add("bbbb1", "aaaa1", 2) // named as another's id
	add("train2", "", 4)
	for text, want := range map[string]string{
		"aaaa1": "aaaa1", // an id beats a name
		"train": "aaaa2", // the latest of a name, and a name beats a beginning
		"bb":    "bbbb1",
		"tra":   "train2",
		"aaaa":  `job "aaaa": it could be aaaa1, aaaa2: give the id of one`,
		"zzzz":  "ps --all",
		"":      "ps --all",
	} {
		j, err := l.Find("", text)
		got := string(j.Spec.ID)
		if err != nil {
			got = err.Error()
			if !errors.Is(err, ErrNoJob) {
				t.Errorf("%q: %v", text, err)
			}
		}
		if got != want && (err == nil || !strings.Contains(got, want)) {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestChangedIsClosedByWhatChanges(t *testing.T) {
	l := founded(t)
	closed := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	c := l.Changed()
	if l.apply(endOf("none", 1)); closed(c) {
		t.Error("a refused entry woke the readers")
	}
	if l.must(t, planOf(plannedJob("jjjj", 1, t0))); !closed(c) {
		t.Error("a plan woke nobody")
	}
	c = l.Changed()
	snap, _ := l.Snapshot()
	if err := l.Restore(snap); err != nil || !closed(c) {
		t.Errorf("restore: %v, woke readers: %v", err, closed(c))
	}
}

func TestEncodeRefusesTheTooLarge(t *testing.T) {
	j := plannedJob("jjjj", 1, t0)
	j.Spec.Stages[0].Env = []launcher.Var{{Name: "A", Value: launcher.Lit(strings.Repeat("x", MaxEntryBytes))}}
	if _, err := planOf(j).Encode(); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("error %v", err)
	}
}

func TestRestoreRefusesWhatWouldPanicLater(t *testing.T) {
	for _, data := range []string{``, `{`, `{"nodes":null,"tokens":{},"jobs":{}}`,
		`{"nodes":{},"tokens":{},"jobs":null}`, `[]`} {
		r := NewRecord()
		if err := r.Restore([]byte(data)); err == nil {
			t.Errorf("%q was restored", data)
		}
		r.Apply(1, []byte(`{"kind":"cluster-founded/1","found":{"first":{"id":"a"}}}`))
	}
}

// drawEntry makes any entry, sensible or not, from few enough names that they
// meet each other.
func drawEntry(t *rapid.T) Entry {
	at := t0.Add(time.Duration(rapid.IntRange(0, 72).Draw(t, "hours")) * time.Hour)
	n := node(rapid.IntRange(1, 3).Draw(t, "node"))
	if rapid.Bool().Draw(t, "clone") {
		n.Host = "spark1"
	}
	id := launcher.JobID(rapid.SampledFrom([]string{"aaaa", "bbbb", "cccc"}).Draw(t, "job"))
	gen := launcher.Generation(rapid.IntRange(1, 3).Draw(t, "generation"))
	tok := rapid.SampledFrom([]string{"t1", "t2"}).Draw(t, "token")
	switch rapid.IntRange(0, 8).Draw(t, "kind") {
	case 0:
		return Entry{Kind: KindFound, At: at, Found: &Found{Cluster: "c", Epoch: 1, First: n}}
	case 1:
		return Entry{Kind: KindToken, At: at,
			Token: &Token{ID: tok, Hash: []byte(tok), Uses: rapid.IntRange(0, 3).Draw(t, "uses"), Expires: at.Add(time.Hour)}}
	case 2, 3:
		return joinEntry(tok, n, at)
	case 4:
		return Entry{Kind: KindNode, At: at, Node: &n}
	case 5:
		return Entry{Kind: KindRemove, At: at, Remove: &n.ID}
	case 6:
		return planOf(plannedJob(id, gen, at.In(time.FixedZone("", 7200))))
	case 7:
		return allocated(rapid.SampledFrom([]string{`{}`, `null`, `{ "of": "<a & b>" }`}).Draw(t, "allocation"))
	}
	e := endOf(id, gen)
	e.End.Outcome.Exits = []launcher.RankExit{{Rank: 1, Host: "spark1", Time: at, Exit: launcher.Exit{Signal: 9}}}
	return e
}

// Nodes whose records differ would place jobs differently: the same entries
// must give the same bytes and the same answers, with or without a snapshot and
// a restore in between.
func TestSameEntriesSameRecord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		founding := Entry{Kind: KindFound, At: t0, Found: &Found{Cluster: "c", Epoch: 1, First: node(1)}}
		entries := append([]Entry{founding}, rapid.SliceOfN(rapid.Custom(drawEntry), 0, 40).Draw(t, "entries")...)
		restoreAt := rapid.IntRange(0, len(entries)).Draw(t, "restore at")
		one, two := NewRecord(), NewRecord()
		for i, e := range entries {
			if i == restoreAt {
				snap, err := two.Snapshot()
				if err != nil {
					t.Fatal(err)
				}
				two = NewRecord()
				if err := two.Restore(snap); err != nil {
					t.Fatal(err)
				}
			}
			data, err := e.Encode()
			if err != nil {
				t.Fatal(err)
			}
			a, b := one.Apply(uint64(i+1), data), two.Apply(uint64(i+1), data)
			if fmt.Sprint(a) != fmt.Sprint(b) {
				t.Fatalf("entry %d is answered %v and %v", i+1, a, b)
			}
			checkRecord(t, one)
		}
		a, errA := one.Snapshot()
		b, errB := two.Snapshot()
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Fatalf("the records differ: %v %v\n%s\n%s", errA, errB, a, b)
		}
	})
}

// checkRecord asserts what holds after any entries.
func checkRecord(t interface{ Fatalf(string, ...any) }, r *Record) {
	hosts := map[string]launcher.NodeID{}
	for _, n := range r.Nodes() {
		if other, taken := hosts[n.Host]; taken {
			t.Fatalf("%s and %s are both %s", other, n.ID, n.Host)
		}
		hosts[n.Host] = n.ID
	}
	for _, tok := range r.s.Tokens {
		if tok.Uses < 0 {
			t.Fatalf("token %s has %d uses left", tok.ID, tok.Uses)
		}
	}
}

// An outcome, once recorded, never changes, whatever comes later.
func TestOutcomeIsFinal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := NewRecord()
		ended := map[launcher.JobID]string{}
		for i, e := range rapid.SliceOfN(rapid.Custom(drawEntry), 0, 60).Draw(t, "entries") {
			data, _ := e.Encode()
			r.Apply(uint64(i+1), data)
			for _, j := range r.Jobs() {
				now, _ := json.Marshal(j)
				if was, ok := ended[j.Spec.ID]; ok && was != string(now) {
					t.Fatalf("an ended job changed from\n%s to\n%s", was, now)
				}
				if j.Outcome != nil {
					ended[j.Spec.ID] = string(now)
				}
			}
		}
	})
}

// An entry of any kind, whole or not, from a disk or a peer.
func FuzzRecordApply(f *testing.F) {
	l := &log{Record: NewRecord()}
	older := plannedJob("oooo", 1, t0)
	queued := plannedJob("qqqq", 0, t0)
	queued.Plan = Plan{}
	for _, e := range []Entry{
		{Kind: KindFound, At: t0, Found: &Found{Cluster: "c", Epoch: 1, First: node(1)}},
		tokenEntry("t", 1, t0), joinEntry("t", node(2), t0), planOf(plannedJob("jjjj", 1, t0)), endOf("jjjj", 1),
		allocated(`{"numbers":{}}`), {Kind: KindNode, Node: new(node(1))},
		{Kind: KindRemove, Remove: new(launcher.NodeID("node-1"))},
		queued.Entry(), {Kind: KindEpoch, Epoch: &launcher.Epoch{N: 2, By: "node-2"}},
		Reunited{From: launcher.Epoch{N: 1}, Node: "node-1", Job: &older}.Entry(),
		Reunited{From: launcher.Epoch{N: 1}, Node: "node-1", Nodes: []Node{node(3)},
			Tokens: []Token{{ID: "u", Uses: 1, Expires: t0}}}.Entry(),
	} {
		b, err := e.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		l.Apply(1, b)
	}
	base, err := l.Snapshot()
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"kind":"x/1"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := NewRecord()
		if err := r.Restore(base); err != nil {
			t.Fatal(err)
		}
		answer := r.Apply(7, data)
		var e Entry
		if json.Unmarshal(data, &e) != nil {
			if _, ok := answer.(UnknownKindError); !ok {
				t.Fatalf("unreadable entry answered %v", answer)
			}
		}
		// What was taken must survive a snapshot.
		snap, err := r.Snapshot()
		if err != nil {
			t.Fatalf("entry %q cannot be kept: %v", data, err)
		}
		again := NewRecord()
		if err := again.Restore(snap); err != nil {
			t.Fatalf("snapshot cannot be restored: %v", err)
		}
		if snap2, _ := again.Snapshot(); !bytes.Equal(snap, snap2) {
			t.Fatalf("snapshot changed by a round trip:\n%s\n%s", snap, snap2)
		}
	})
}

func FuzzRestore(f *testing.F) {
	l := &log{Record: NewRecord()}
	l.apply(Entry{Kind: KindFound, At: t0, Found: &Found{Cluster: "c", Epoch: 1, First: node(1)}})
	l.apply(planOf(plannedJob("jjjj", 1, t0)))
	snap, _ := l.Snapshot()
	f.Add(snap)
	f.Add([]byte(`{"nodes":null}`))
	entry, err := planOf(plannedJob("kkkk", 1, t0)).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := NewRecord()
		if r.Restore(data) != nil {
			return
		}
		r.Apply(9, entry)
		r.Nodes()
		r.Find("", "k")
	})
}

// A name means the job that runs under it, one's own before another's; two have to be told apart.
func TestFindPrefersWhatRuns(t *testing.T) {
	l := founded(t)
	plan := func(id launcher.JobID, user string) {
		s := specFor(id, 1)
		s.Name, s.User = "train", user
		l.must(t, Entry{Kind: KindPlan, Job: &Job{Spec: s, Plan: Plan{Generation: 1, World: 1}, Planned: t0}})
	}
	end := func(id launcher.JobID) {
		l.must(t, Entry{Kind: KindEnd,
			End: &JobEnd{Key: launcher.Key{Job: id, Generation: 1}, Outcome: Outcome{End: Completed, At: t0}}})
	}
	plan("aaaa", "ada")
	plan("bbbb", "ada")
	plan("cccc", "zeta")
	if j, err := l.Find("zeta", "train"); err != nil || j.Spec.ID != "cccc" {
		t.Errorf("one's own: %s, %v", j.Spec.ID, err)
	}
	if _, err := l.Find("bob", "train"); !errors.Is(err, ErrNoJob) {
		t.Errorf("none is bob's, and three run: %v", err)
	}
	if _, err := l.Find("ada", "train"); !errors.Is(err, ErrNoJob) || !strings.Contains(err.Error(), "aaaa, bbbb") {
		t.Errorf("two run: %v", err)
	}
	end("bbbb")
	if j, err := l.Find("ada", "train"); err != nil || j.Spec.ID != "aaaa" {
		t.Errorf("one runs: %s, %v", j.Spec.ID, err)
	}
	end("aaaa")
	if j, err := l.Find("ada", "train"); err != nil || j.Spec.ID != "bbbb" {
		t.Errorf("none runs: %s, %v", j.Spec.ID, err)
	}
	if _, err := l.Find("ada", ""); !errors.Is(err, ErrNoJob) {
		t.Errorf("no name: %v", err)
	}
}
