package lead

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// backup takes a copy of the record, as an operator does.
func (w *world) backup() rendezvous.Backup {
	w.t.Helper()
	b, err := w.record.Backup(rendezvous.BackupHead{Taken: time.Now(), Host: "spark1", Version: "test"})
	if err != nil {
		w.t.Fatal(err)
	}
	s, err := rendezvous.ReadBackup(bytes.NewReader(b))
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// restore puts it back, between two leaders, under a new epoch.
func (w *world) restore(b rendezvous.Backup) {
	w.t.Helper()
	state, err := b.Restored(time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.record.Restore(state); err != nil {
		w.t.Fatal(err)
	}
	w.epoch++
	if err := w.commit(rendezvous.Entry{Kind: rendezvous.KindEpoch, Epoch: &launcher.Epoch{N: w.epoch}}); err != nil {
		w.t.Fatal(err)
	}
}

func (r *reign) drainedAt(host string) string {
	roster, _ := r.leader.Roster()
	return roster[slices.IndexFunc(roster, func(m rendezvous.Member) bool { return m.Host == host })].Drained
}

// What ran when the snapshot was taken and still does goes on, and its end is
// recorded, though it would have had attempts left.
func TestRestoredGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.each(perTry(5*time.Minute, 7, 0))
		r := w.ready()
		s := spec("aaaa", 2, 1)
		s.MaxRestarts = 3
		if err := r.leader.Launch(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		b := w.backup()
		r.kill()
		w.restore(b)
		r = w.ready()
		time.Sleep(2 * tellWithin)
		if j := mustJobOf(t, r, "aaaa"); j.State != rendezvous.StateRuns {
			t.Errorf("it is %s", j.State)
		}
		out := awaitOutcome(t, w, "aaaa")
		if out.End != rendezvous.Failed || out.ExitCode != 7 || r.sent("prepare")+r.sent("start") != 0 {
			t.Errorf("%+v; %d prepared, %d started", out, r.sent("prepare"), r.sent("start"))
		}
		if job, _ := w.record.Job("aaaa"); job.Plan.Generation != 1 {
			t.Errorf("it was tried again: %+v", job.Plan)
		}
		w.settle()
	})
}

// awaitOutcome waits for it, in the bubble's time.
func awaitOutcome(t *testing.T, w *world, id launcher.JobID) rendezvous.Outcome {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if j, _ := w.record.Job(id); j.Outcome != nil {
			return *j.Outcome
		}
	}
	t.Errorf("job %s has no outcome", id)
	return rendezvous.Outcome{}
}

func mustJobOf(t *testing.T, r *reign, id launcher.JobID) rendezvous.JobStatus {
	t.Helper()
	for _, j := range r.leader.Jobs() {
		if j.Spec.ID == id {
			return j
		}
	}
	t.Errorf("job %s is not known", id)
	return rendezvous.JobStatus{}
}

// What has ended since the snapshot, and is forgotten on the nodes, is not
// started a second time: it ends, and says that its end is not known.
func TestRestoredStartsNothingTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.each(exitAfter(10*time.Second, 0))
		r := w.ready()
		if err := r.leader.Launch(t.Context(), spec("aaaa", 2, 1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		b := w.backup()
		awaitOutcome(t, w, "aaaa")
		time.Sleep(time.Second) // it is forgotten
		r.kill()
		w.restore(b)
		w.ready()
		time.Sleep(tellWithin / 2)
		if job, _ := w.record.Job("aaaa"); job.Outcome != nil {
			t.Errorf("who knows better had no time to say so: %+v", job.Outcome)
		}
		out := awaitOutcome(t, w, "aaaa")
		if out.End != rendezvous.Failed || out.ExitCode != launcher.ExitOwnFailure ||
			!strings.Contains(out.Cause, "spark1, spark2 has no trace of it") {
			t.Errorf("%+v", out)
		}
		w.settle() // tells if a rank was started twice
	})
}

// A job that the snapshot does not know runs on: it is named, its machine gets
// nothing else, and a person may end it. A new launch goes elsewhere.
func TestRestoredLeavesStraysAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.each(exitAfter(time.Hour, 0))
		r := w.ready()
		b := w.backup()
		s := spec("aaaa", 1, 1)
		s.On = []string{"spark2"}
		if err := r.leader.Launch(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		r.kill()
		w.restore(b)
		r = w.ready()
		time.Sleep(2 * tellWithin)
		if why := r.drainedAt("spark2"); !strings.Contains(why, "job aaaa runs there") ||
			!strings.Contains(why, "sparkrun stop aaaa") {
			t.Errorf("spark2 is drained for %q", why)
		}
		w.each(exitAfter(time.Second, 0))
		if _, err := w.client(t.Context(), spec("bbbb", 1, 1)); err != nil {
			t.Fatal(err)
		}
		if j := mustJob(t, w, "bbbb"); j.Plan.Nodes[0].Host != "spark1" {
			t.Errorf("bbbb on %+v", j.Plan.Nodes)
		}
		if hosts := r.leader.StopStrays("zzzz", 0, "x"); hosts != nil {
			t.Errorf("ended on %v what is nowhere", hosts)
		}
		if hosts := r.leader.StopStrays("aaaa", time.Second, "stopped by root"); !slices.Equal(hosts, []string{"spark2"}) {
			t.Errorf("ended on %v", hosts)
		}
		time.Sleep(10 * time.Second)
		if why := r.drainedAt("spark2"); why != "" {
			t.Errorf("it has ended, and spark2 is drained for %q", why)
		}
		w.settle()
	})
}

// Of a job whose later attempt runs, the snapshot knows the first: that one has no
// trace, and the later one is not ended for it.
func TestRestoredKnowsAnEarlierTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.each(func(k launcher.Key, _ int) (time.Duration, *launcher.Exit) {
			if k.Generation == 1 {
				return 2 * time.Second, &launcher.Exit{Code: 7}
			}
			return time.Hour, &launcher.Exit{}
		})
		r := w.ready()
		s := spec("aaaa", 1, 1)
		s.MaxRestarts = 1
		if err := r.leader.Launch(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		b := w.backup()
		time.Sleep(20 * time.Second)
		r.kill()
		w.restore(b)
		r = w.ready()
		if out := awaitOutcome(t, w, "aaaa"); out.End != rendezvous.Failed || !strings.Contains(out.Cause, "no trace") {
			t.Errorf("%+v", out)
		}
		time.Sleep(time.Minute)
		if why := r.drainedAt("spark1"); !strings.Contains(why, "does not know its attempt 2") {
			t.Errorf("drained for %q", why)
		}
		r.kill()
		r = w.ready() // the next leader finds the same
		time.Sleep(time.Second)
		if why := r.drainedAt("spark1"); !strings.Contains(why, "does not know its attempt 2") {
			t.Errorf("under the next leader drained for %q", why)
		}
		if r.leader.StopStrays("aaaa", 0, "stopped by root") == nil {
			t.Error("it cannot be ended")
		}
		time.Sleep(10 * time.Second)
		w.settle()
	})
}

// A person's word that is on record counts for the leaders that come later, for
// the boots that it was about and no other.
func TestDeathIsHeeded(t *testing.T) {
	for name, tt := range map[string]struct {
		boot  string
		again bool
	}{"of that boot": {"boot2.1", true}, "of another": {"boot2.9", false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 3)
				w.each(theFirstHangs)
				r := w.ready()
				s := spec("aaaa", 2, 1)
				s.MaxRestarts, s.On = 1, nil
				s.Exclude = []string{"spark3"}
				s.MinNodes = 1
				if err := r.leader.Launch(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				if got := r.leader.Boots("id2"); !slices.Equal(got, []string{"boot2.1"}) {
					t.Errorf("boots %v", got)
				}
				w.nodes[1].crash()
				r.kill()
				if err := w.commit(rendezvous.Death{Node: "id2", Boots: []string{tt.boot}}.Entry()); err != nil {
					t.Fatal(err)
				}
				w.crown(0)
				time.Sleep(20 * time.Minute)
				job, _ := w.record.Job("aaaa")
				if again := job.Plan.Generation > 1; again != tt.again {
					t.Errorf("tried again: %v; %+v", again, job.Outcome)
				}
				w.nodes[1].heal()
				w.settle()
			})
		})
	}
}
