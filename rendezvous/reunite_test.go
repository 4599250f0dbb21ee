package rendezvous

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

// split makes two sides of one record: what both did before, then the take-over
// on ours, then what each did alone.
func split(t *testing.T, both, ours, theirs []Entry) (mine, other *log) {
	t.Helper()
	mine, other = founded(t), founded(t)
	mine.must(t, both...)
	other.must(t, both...)
	mine.must(t, Entry{Kind: KindEpoch, Epoch: &launcher.Epoch{N: 2, By: "node-2"}})
	mine.must(t, ours...)
	other.must(t, theirs...)
	return mine, other
}

// reunite hands the other side's record over, twice: what is sent again changes
// nothing.
func reunite(t *testing.T, mine, other *log) {
	t.Helper()
	parts, err := other.Parts("node-1")
	if err != nil {
		t.Fatal(err)
	}
	var first []Job
	for range 2 {
		for _, p := range parts {
			mine.must(t, p.Entry())
		}
		if first == nil {
			first = mine.Jobs()
		} else if d := cmp.Diff(first, mine.Jobs(), byValue); d != "" {
			t.Errorf("handed over twice (-once +twice):\n%s", d)
		}
	}
}

func failedOf(id launcher.JobID, gen launcher.Generation, cause string) Entry {
	return Entry{Kind: KindEnd,
		End: &JobEnd{Key: launcher.Key{Job: id, Generation: gen},
			Outcome: Outcome{End: Failed, At: t0, ExitCode: 125, Cause: cause}}}
}

// again is a job's next generation, on another node than the first.
func again(j Job, gen launcher.Generation, host string) Entry {
	j = j.After(Outcome{At: t0, Cause: "lost"})
	j.Plan.Generation, j.Plan.Restarts = gen, int(gen)-1
	j.Plan.Nodes = []Place{{Node: launcher.NodeID(host), Host: host, Ranks: 1}}
	return planOf(j)
}

func TestReunite(t *testing.T) {
	job := plannedJob("jjjj", 1, t0)
	job.Spec.MaxRestarts = 5
	tests := map[string]struct {
		both, ours, theirs []Entry
		gen                launcher.Generation
		end                End // empty: it has not ended
		aside              []string
	}{
		"only the other side knows it": {theirs: []Entry{planOf(job)}, gen: 1},
		"only this side does":          {ours: []Entry{planOf(job)}, gen: 1},
		"nobody has gone on":           {both: []Entry{planOf(job)}, gen: 1},
		"the other has ended it": {both: []Entry{planOf(job)}, theirs: []Entry{endOf("jjjj", 1)},
			gen: 1, end: Completed},
		"the other has tried again": {both: []Entry{planOf(job)},
			theirs: []Entry{again(job, 2, "spark1")}, gen: 2},
		"this one has tried again": {both: []Entry{planOf(job)}, ours: []Entry{again(job, 2, "spark2")},
			gen: 2},
		"this one has, the other has ended it": {both: []Entry{planOf(job)}, ours: []Entry{again(job, 2, "spark2")},
			theirs: []Entry{endOf("jjjj", 1)}, gen: 2, aside: []string{"spark1 under another leader: completed"}},
		"both have tried again": {both: []Entry{planOf(job)}, ours: []Entry{again(job, 2, "spark2")},
			theirs: []Entry{again(job, 2, "spark1")}, gen: 2,
			aside: []string{"spark1 another leader had it running at the reunion"}},
		"both have ended it, each in its way": {both: []Entry{planOf(job)},
			ours: []Entry{failedOf("jjjj", 1, "marked dead")}, theirs: []Entry{endOf("jjjj", 1)}, gen: 1, end: Failed,
			aside: []string{"spark1 under another leader: completed"}},
		"it had ended before": {both: []Entry{planOf(job), endOf("jjjj", 1)}, gen: 1, end: Completed},
		"this one has ended it, the other tried": {both: []Entry{planOf(job)},
			ours: []Entry{failedOf("jjjj", 1, "marked dead")}, theirs: []Entry{again(job, 2, "spark1")}, gen: 1,
			end: Failed, aside: []string{"spark1 another leader had it running at the reunion"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			mine, other := split(t, tt.both, tt.ours, tt.theirs)
			reunite(t, mine, other)
			j, ok := mine.Job("jjjj")
			if !ok {
				t.Fatal("the job is lost")
			}
			var end End
			if j.Outcome != nil {
				end = j.Outcome.End
			}
			if j.Plan.Generation != tt.gen || end != tt.end {
				t.Errorf("generation %d, end %q, want %d, %q", j.Plan.Generation, end, tt.gen, tt.end)
			}
			var aside []string
			for _, try := range j.Attempts {
				if try.Epoch.N != 0 {
					aside = append(aside, try.Hosts[0]+" "+try.Cause)
				}
			}
			if d := cmp.Diff(tt.aside, aside); d != "" {
				t.Errorf("kept of the other side (-want +got):\n%s", d)
			}
		})
	}
}

func TestReuniteMembersAndTokens(t *testing.T) {
	hour := t0.Add(time.Hour)
	mine, other := split(t, []Entry{tokenEntry("both", 9, hour), joinEntry("both", node(2), t0)},
		[]Entry{joinEntry("both", Node{ID: "node-8", Host: "spark3"}, t0)},
		[]Entry{tokenEntry("theirs", 1, hour), joinEntry("both", node(3), t0), joinEntry("both", node(4), t0)})
	reunite(t, mine, other)
	// Whom the later epoch has taken out, the other side's record does not bring back.
	gone := launcher.NodeID("node-4")
	mine.must(t, Entry{Kind: KindRemove, Remove: &gone})
	reunite(t, mine, other)
	if _, back := mine.Node(gone); back || !mine.WasRemoved(gone) || mine.Removals() != 1 {
		t.Errorf("%s is back: %v; %d removals", gone, back, mine.Removals())
	}
	var hosts []string
	for _, n := range mine.Nodes() {
		hosts = append(hosts, n.Host+" "+string(n.ID))
	}
	want := []string{"spark1 node-1", "spark2 node-2", "spark3 node-8"} // a name that is given away stays so
	if d := cmp.Diff(want, hosts); d != "" {
		t.Error(d)
	}
	if _, err := mine.TokenByHash([]byte("hash of theirs")); err != nil {
		t.Error(err)
	}
}

// Of two epochs one gives way, whoever asks; a record never does to an earlier.
func TestEpochsHaveOneOrder(t *testing.T) {
	at := func(n uint64, by launcher.NodeID) launcher.Epoch { return launcher.Epoch{N: n, By: by} }
	l := founded(t)
	for _, e := range []launcher.Epoch{at(2, "a"), at(2, "b"), at(5, "a")} {
		l.must(t, Entry{Kind: KindEpoch, Epoch: &e})
		if l.Epoch() != e {
			t.Errorf("epoch %+v, want %+v", l.Epoch(), e)
		}
		for _, low := range []launcher.Epoch{e, at(2, "a"), at(1, "")} {
			if err, _ := l.apply(Entry{Kind: KindEpoch, Epoch: &low}).(error); !errors.Is(err, ErrStaleEpoch) {
				t.Errorf("%+v after %+v: %v", low, e, err)
			}
		}
		higher := at(5, "b")
		if err, _ := l.apply(Reunited{From: higher}.Entry()).(error); !errors.Is(err, ErrStaleEpoch) {
			t.Errorf("a record of %+v was merged into %+v: %v", higher, e, err)
		}
	}
	data, err := l.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	r := NewRecord()
	if err := r.Restore(data); err != nil || r.Epoch() != at(5, "a") {
		t.Errorf("after a snapshot: %+v, %v", r.Epoch(), err)
	}
}
