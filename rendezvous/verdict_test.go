package rendezvous

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

func verdictOf(id launcher.JobID, gen launcher.Generation, cause string) Entry {
	return JobEnd{Key: launcher.Key{Job: id, Generation: gen},
		Outcome: Outcome{End: Failed, At: t0, Cause: cause}}.Verdict()
}

// A verdict is about the present generation, once; the job goes on with the next,
// or ends.
func TestVerdict(t *testing.T) {
	job := plannedJob("jjjj", 1, t0)
	job.Spec.MaxRestarts = 5
	l := founded(t)
	l.must(t, planOf(job))
	before, _ := l.Job("jjjj")
	l.must(t, verdictOf("jjjj", 1, "spark1 is silent"), verdictOf("jjjj", 1, "spark1 is slow"))
	j, _ := l.Job("jjjj")
	if st := StatusOf(j); j.Verdict == nil || j.Verdict.Cause != "spark1 is silent" || st.State != StateEnds {
		t.Errorf("verdict %+v, told to be %s", j.Verdict, st.State)
	}
	j.Verdict = nil
	if d := cmp.Diff(before, j, byValue); d != "" {
		t.Errorf("what else a verdict changes:\n%s", d)
	}
	for e, want := range map[*Entry]error{
		new(verdictOf("jjjj", 2, "")): launcher.ErrStaleGeneration, new(verdictOf("none", 1, "")): ErrNoJob,
	} {
		if answer := l.apply(*e); answer != want {
			t.Errorf("a verdict on %s.%d was answered %v, want %v", e.End.Job, e.End.Generation, answer, want)
		}
	}
	l.must(t, again(job, 2, "spark2"))
	if j, _ := l.Job("jjjj"); j.Verdict != nil {
		t.Errorf("the next generation has the verdict on the one before: %+v", j.Verdict)
	}
	if answer := l.apply(verdictOf("jjjj", 1, "")); answer != launcher.ErrStaleGeneration {
		t.Errorf("a verdict on a generation that is over was answered %v", answer)
	}
	l.must(t, stopOf("jjjj", time.Second, "stopped by ann"), verdictOf("jjjj", 2, "spark2 is silent"), endOf("jjjj", 2))
	if j, _ := l.Job("jjjj"); j.Verdict != nil || j.Outcome.End != Completed {
		t.Errorf("it has ended: verdict %+v, outcome %+v", j.Verdict, j.Outcome)
	}
	if answer := l.apply(verdictOf("jjjj", 2, "")); answer != ErrJobEnded {
		t.Errorf("a verdict on what has ended was answered %v", answer)
	}
}

// What either side of a reunion was told to end does not run again, as long as both
// are at the same attempt.
func TestReuniteKeepsAVerdict(t *testing.T) {
	job := plannedJob("jjjj", 1, t0)
	job.Spec.MaxRestarts = 5
	silent := verdictOf("jjjj", 1, "silent")
	tests := map[string]struct {
		ours, theirs []Entry
		gen          launcher.Generation
		cause        string // empty: no verdict
	}{
		"here":  {ours: []Entry{silent}, gen: 1, cause: "silent"},
		"there": {theirs: []Entry{silent}, gen: 1, cause: "silent"},
		"on both, for different reasons": {ours: []Entry{silent}, theirs: []Entry{verdictOf("jjjj", 1, "late")},
			gen: 1, cause: "silent"},
		"here, the other tried again":     {ours: []Entry{silent}, theirs: []Entry{again(job, 2, "spark1")}, gen: 2},
		"there, this one tried again":     {ours: []Entry{again(job, 2, "spark2")}, theirs: []Entry{silent}, gen: 2},
		"here, the other saw it complete": {ours: []Entry{silent}, theirs: []Entry{endOf("jjjj", 1)}, gen: 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			mine, other := split(t, []Entry{planOf(job)}, tt.ours, tt.theirs)
			reunite(t, mine, other)
			j, _ := mine.Job("jjjj")
			cause := ""
			if j.Verdict != nil {
				cause = j.Verdict.Cause
			}
			if j.Plan.Generation != tt.gen || cause != tt.cause {
				t.Errorf("generation %d, verdict %q", j.Plan.Generation, cause)
			}
		})
	}
}
