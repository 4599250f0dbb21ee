package lead

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

var (
	seedFlag = flag.Uint64("seed", 0, "run this seed of the random scenarios only")
	spanFlag = flag.Duration("span", 2*time.Second, "how long to try seeds")
)

// TestRandomStories mixes everything: jobs that end in all ways, cuts, power
// cuts, stops, and leaders that die at any point. Whatever happens, a rank is
// started at most once, none before all are prepared, every acknowledged job
// gets its outcome, and nothing is left running or remembered.
func TestRandomStories(t *testing.T) {
	if *seedFlag != 0 {
		randomEvents(t, *seedFlag)
		return
	}
	began, seed := time.Now(), uint64(1)
	for ; time.Since(began) < *spanFlag; seed++ {
		if !t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { randomEvents(t, seed) }) {
			t.Fatalf("again with: go test ./rendezvous/lead -run RandomStories -seed %d", seed)
		}
	}
	t.Logf("%d seeds", seed-1)
}

func randomEvents(t *testing.T, seed uint64) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 1))
		upTo := func(d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }
		w := newWorld(t, 2+rng.IntN(3))
		w.lag = time.Millisecond + upTo(200*time.Millisecond)
		for _, n := range w.nodes {
			n.deaf = rng.IntN(4) == 0
			n.slow = upTo(3 * time.Second)
			if rng.IntN(12) == 0 {
				n.refuses = "no such user"
			}
			fate, after := rng.IntN(3), upTo(time.Minute)
			n.life = func(k launcher.Key, rank int) (time.Duration, *launcher.Exit) {
				switch fate {
				case 0:
					return after + time.Duration(rank)*time.Second, &launcher.Exit{}
				case 1:
					return after, &launcher.Exit{Code: rank % 3}
				}
				return 0, nil
			}
		}
		var deaths []int
		for range rng.IntN(4) {
			deaths = append(deaths, 1+rng.IntN(60))
		}
		w.succession(upTo(3*time.Second), deaths...)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		trouble := rng.IntN(6)
		order := rng.Perm(64)
		w.wg.Go(func() {
			for i := range trouble {
				time.Sleep(time.Duration(order[i]) * 300 * time.Millisecond)
				n := w.nodes[order[i+8]%len(w.nodes)]
				if order[i+16]%3 == 0 {
					n.crash()
				} else {
					n.cutOff()
				}
				time.Sleep(time.Duration(order[i+24]) * 700 * time.Millisecond)
				n.heal()
			}
		})
		jobs := 1 + rng.IntN(3)
		for j := range jobs {
			s := spec(ids(j), 1+rng.IntN(len(w.nodes)), 1+rng.IntN(3))
			s.Grace, s.NodeTimeout, s.StartTimeout = upTo(5*time.Second), time.Second+upTo(30*time.Second),
				time.Second+upTo(20*time.Second)
			s.MaxRestarts, s.MinNodes = rng.IntN(4), 1+rng.IntN(s.Nodes)
			callers := 1 + rng.IntN(2)
			start := upTo(10 * time.Second)
			for range callers {
				w.wg.Go(func() {
					time.Sleep(start)
					for ctx.Err() == nil {
						if _, err := w.client(ctx, s); err == nil {
							return
						}
						if _, known := w.record.Job(s.ID); !known {
							time.Sleep(time.Second) // cannot be placed now
						}
					}
				})
			}
		}
		// What would run for ever is stopped in the end, as often as it takes.
		time.Sleep(90 * time.Second)
		for range 120 {
			time.Sleep(time.Second)
			w.mu.Lock()
			r := w.reign
			w.mu.Unlock()
			left := false
			for j := range jobs {
				job, known := w.record.Job(ids(j))
				left = left || !known || job.Outcome == nil
				if r != nil && known && job.Outcome == nil {
					r.leader.Stop(t.Context(), ids(j), 2*time.Second, "enough")
				}
			}
			if !left {
				break
			}
		}
		cancel()
		w.settle()
		for _, j := range w.record.Jobs() {
			checkOutcome(t, w, j)
		}
	})
}

// checkOutcome holds an outcome against what the witness saw.
func checkOutcome(t *testing.T, w *world, j rendezvous.Job) {
	o := j.Outcome
	if o == nil {
		t.Errorf("job %s has no outcome", j.Spec.ID)
		return
	}
	started := 0 // of the last generation
	for k := range w.execs {
		if k.Key == j.Key() {
			started++
		}
	}
	switch o.End {
	case rendezvous.Completed:
		if started != j.Plan.World || o.ExitCode != 0 {
			t.Errorf("job %s completed with %d of %d ranks started: %+v", j.Spec.ID, started, j.Plan.World, o)
		}
	case rendezvous.Rejected:
		if started != 0 || o.ExitCode != launcher.ExitOwnFailure || o.Cause == "" {
			t.Errorf("job %s was rejected with %d ranks started: %+v", j.Spec.ID, started, o)
		}
	case rendezvous.Failed:
		if o.ExitCode == 0 || o.Cause == "" {
			t.Errorf("job %s failed without a word: %+v", j.Spec.ID, o)
		}
		if o.Root != nil && (o.Root.Exit.ByUs || o.Root.Host != j.Plan.HostOf(o.Root.Rank)) {
			t.Errorf("job %s blames %+v", j.Spec.ID, o.Root)
		}
	case rendezvous.Stopped:
		if o.ExitCode != 143 && o.ExitCode != 137 || o.Root != nil {
			t.Errorf("job %s: %+v", j.Spec.ID, o)
		}
	default:
		t.Errorf("job %s ended as %q", j.Spec.ID, o.End)
	}
}
