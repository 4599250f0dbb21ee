package rendezvous

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

func stopOf(id launcher.JobID, grace time.Duration, reason string) Entry {
	return JobStop{Job: id, Stop: Stop{At: t0, Grace: grace, Reason: reason}}.Entry()
}

// Once a stop is recorded no generation follows, not even one that was decided
// on before; what was asked first names the reason, and the grace only shrinks.
func TestNoGenerationAfterAStop(t *testing.T) {
	job := plannedJob("jjjj", 1, t0)
	job.Spec.MaxRestarts = 5
	queued := plannedJob("qqqq", 0, t0)
	queued.Plan = Plan{}
	l := founded(t)
	l.must(t, planOf(job), queued.Entry())
	l.must(t, stopOf("jjjj", 9*time.Second, "stopped by ann"), stopOf("jjjj", time.Second, "stopped by bob"),
		stopOf("jjjj", time.Minute, "stopped by cid"), stopOf("qqqq", 0, ""))
	first := queued
	first.Plan = plannedJob("qqqq", 1, t0).Plan
	for _, e := range []Entry{again(job, 2, "spark2"), first.Entry()} {
		if answer := l.apply(e); answer != ErrJobStopping {
			t.Errorf("a generation of %s after a stop was answered %v", e.Job.Spec.ID, answer)
		}
	}

	// A leader that comes later may have no more than a snapshot.
	snap, err := l.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	later := &log{Record: NewRecord()}
	if err := later.Restore(snap); err != nil {
		t.Fatal(err)
	}
	if answer := later.apply(again(job, 2, "spark2")); answer != ErrJobStopping {
		t.Errorf("a generation after a snapshot was answered %v", answer)
	}
	j, _ := later.Job("jjjj")
	if d := cmp.Diff(&Stop{At: t0, Grace: time.Second, Reason: "stopped by ann"}, j.Stop, byValue); d != "" {
		t.Errorf("the stop (-want +got):\n%s", d)
	}

	later.must(t, endOf("jjjj", 1))
	for id, want := range map[launcher.JobID]error{"jjjj": ErrJobEnded, "none": ErrNoJob} {
		if answer := later.apply(stopOf(id, 0, "")); answer != want {
			t.Errorf("a stop of %s was answered %v, want %v", id, answer, want)
		}
	}
}

// A record from before stops were recorded is read as one in which nobody asked.
func TestSnapshotWithoutStops(t *testing.T) {
	job := plannedJob("jjjj", 1, t0)
	job.Spec.MaxRestarts = 1
	l := founded(t)
	l.must(t, planOf(job))
	snap, err := l.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var raw struct {
		Jobs map[string]map[string]json.RawMessage `json:"jobs"`
	}
	if err := json.Unmarshal(snap, &raw); err != nil {
		t.Fatal(err)
	}
	if s, there := raw.Jobs["jjjj"]["stop"]; there {
		t.Errorf("a job that nobody stopped has %s: not what earlier versions wrote", s)
	}
	old := &log{Record: NewRecord()}
	if err := old.Restore(snap); err != nil {
		t.Fatal(err)
	}
	old.must(t, again(job, 2, "spark2"))
}

// Whichever side of a reunion somebody asked: the job is to end on the one that
// goes on.
func TestReuniteKeepsAStop(t *testing.T) {
	job := plannedJob("jjjj", 1, t0)
	job.Spec.MaxRestarts = 5
	stop := stopOf("jjjj", time.Second, "stopped by ann")
	tests := map[string]struct {
		ours, theirs []Entry
		gen          launcher.Generation
	}{
		"here":                        {ours: []Entry{stop}, gen: 1},
		"there":                       {theirs: []Entry{stop}, gen: 1},
		"here, the other tried again": {ours: []Entry{stop}, theirs: []Entry{again(job, 2, "spark1")}, gen: 1},
		"there, this one tried again": {ours: []Entry{again(job, 2, "spark2")}, theirs: []Entry{stop}, gen: 2},
		"there, which tried again":    {theirs: []Entry{again(job, 2, "spark1"), stop}, gen: 2},
		"there and ended, we tried again": {ours: []Entry{again(job, 2, "spark2")},
			theirs: []Entry{stop, endOf("jjjj", 1)}, gen: 2},
		"on both, which asked differently": {ours: []Entry{stop},
			theirs: []Entry{stopOf("jjjj", time.Minute, "stopped by bob")}, gen: 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			mine, other := split(t, []Entry{planOf(job)}, tt.ours, tt.theirs)
			reunite(t, mine, other)
			j, _ := mine.Job("jjjj")
			if j.Plan.Generation != tt.gen || j.Outcome != nil {
				t.Fatalf("generation %d, outcome %+v", j.Plan.Generation, j.Outcome)
			}
			if j.Stop == nil || j.Stop.Grace != time.Second || j.Stop.Reason != "stopped by ann" {
				t.Errorf("the stop is %+v", j.Stop)
			}
			if answer := mine.apply(again(job, tt.gen+1, "spark2")); answer != ErrJobStopping {
				t.Errorf("the next generation was answered %v", answer)
			}
		})
	}
}
