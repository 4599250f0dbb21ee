package lead

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// A stop that was answered holds when the leader dies at once, whatever the job
// was at: the next one ends it, for the reason that was given, and begins nothing.
func TestStopOutlivesItsLeader(t *testing.T) {
	tests := map[string]struct {
		at    time.Duration // of the stop, after the launch
		life  func(launcher.Key, int) (time.Duration, *launcher.Exit)
		ranks int // started in all
	}{
		"while it runs":               {at: 3 * time.Second, life: exitAfter(time.Hour, 0), ranks: 2},
		"shortly before a rank fails": {at: 3 * time.Second, life: exitAfter(5*time.Second, 7), ranks: 2},
		"between two attempts":        {at: 3 * time.Second, life: exitAfter(1500*time.Millisecond, 7), ranks: 2},
		"before the start":            {at: 0, life: exitAfter(time.Hour, 0), ranks: 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 2)
				w.each(tt.life)
				w.lag = 500 * time.Millisecond // the next leader is there before the last orders of the one that dies
				r := w.ready()
				s := spec("jjjj", 2, 1)
				s.MaxRestarts, s.Grace = 5, 2*time.Second
				if err := r.leader.Launch(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				time.Sleep(tt.at)
				if err := r.leader.Stop(t.Context(), "jjjj", time.Second, "stopped by ann"); err != nil {
					t.Fatal(err)
				}
				r.kill()
				time.Sleep(50 * time.Millisecond)
				w.ready()
				if _, err := w.client(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				j := mustJob(t, w, "jjjj")
				if j.Plan.Generation != 1 || j.Outcome.End != rendezvous.Stopped ||
					j.Outcome.Cause != "stopped by ann" || j.Outcome.ExitCode != 143 {
					t.Errorf("generation %d, outcome %+v", j.Plan.Generation, j.Outcome)
				}
				if n := w.started("jjjj"); n != tt.ranks {
					t.Errorf("%d ranks were started, want %d", n, tt.ranks)
				}
				w.settle()
			})
		})
	}
}

// A job that waits in line and was stopped never begins.
func TestStopInLineOutlivesItsLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.each(exitAfter(time.Minute, 0))
		r := w.ready()
		job := func(id launcher.JobID) launcher.Spec {
			s := gpuJob(id, 1)
			s.Wait = true
			return s
		}
		for _, s := range []launcher.Spec{job("aaaa"), job("bbbb")} {
			if err := r.leader.Launch(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.leader.Stop(t.Context(), "bbbb", 0, "stopped by ann"); err != nil {
			t.Fatal(err)
		}
		r.kill()
		w.ready()
		for _, s := range []launcher.Spec{job("aaaa"), job("bbbb")} {
			if _, err := w.client(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		if j := mustJob(t, w, "bbbb"); j.Plan.Generation != 0 || j.Outcome.End != rendezvous.Stopped {
			t.Errorf("generation %d, outcome %+v", j.Plan.Generation, j.Outcome)
		}
		w.settle()
	})
}

// What could not be recorded is not answered as if it were, and does nothing.
func TestStopThatIsNotRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.each(exitAfter(10*time.Second, 0))
		r := w.ready()
		if err := r.leader.Launch(t.Context(), spec("jjjj", 1, 1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		r.onCommit(func(kind rendezvous.Kind, done bool) error {
			if kind == rendezvous.KindStop && !done {
				return errUnknown
			}
			return nil
		})
		if err := r.leader.Stop(t.Context(), "jjjj", 0, "stopped by ann"); !errors.Is(err, errUnknown) {
			t.Errorf("stop: %v", err)
		}
		if _, err := w.client(t.Context(), spec("jjjj", 1, 1)); err != nil {
			t.Fatal(err)
		}
		if out := mustOutcome(t, w, "jjjj"); out.End != rendezvous.Completed {
			t.Errorf("outcome %+v", out)
		}
		w.settle()
	})
}

// Whoever asks does not wait longer than he wants, and what he asked is done all
// the same.
func TestStopOfAnImpatientCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.each(exitAfter(time.Hour, 0))
		r := w.ready()
		if err := r.leader.Launch(t.Context(), spec("jjjj", 1, 1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond) // a commit takes two
		defer cancel()
		if err := r.leader.Stop(ctx, "jjjj", time.Second, "stopped by ann"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("stop: %v", err)
		}
		if _, err := w.client(t.Context(), spec("jjjj", 1, 1)); err != nil {
			t.Fatal(err)
		}
		if out := mustOutcome(t, w, "jjjj"); out.End != rendezvous.Stopped {
			t.Errorf("outcome %+v", out)
		}
		w.settle()
	})
}
