package agent

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/sparkrun/sparkrun/launcher"
)

func TestARunFromPrepareToForget(t *testing.T) {
	n := newNode(t)
	n.prepare(n.as("gate; exit $RANK", ranks(4, 2)))
	n.hear(launcher.Prepared)
	if e := n.entry(key); e.Phase != launcher.PhasePrepared || len(e.Ranks) != 0 {
		t.Fatalf("prepared: %+v", e)
	}
	n.start(key, 0)
	n.hear(launcher.Started)
	e := n.entry(key)
	if len(e.Ranks) != 2 || e.Ranks[0].State != launcher.RankRunning || e.Ranks[0].PID == 0 {
		t.Fatalf("started: %+v", e)
	}
	n.pass(4)
	n.hear(launcher.Exited)
	n.pass(5)
	n.hear(launcher.Ended)
	want := []launcher.Event{
		{Kind: launcher.Prepared},
		{Kind: launcher.Started},
		{Kind: launcher.Exited, Rank: 4, Exit: &launcher.Exit{Code: 4}},
		{Kind: launcher.Exited, Rank: 5, Exit: &launcher.Exit{Code: 5}},
		{Kind: launcher.Ended},
	}
	for i := range want {
		want[i].Key, want[i].Node = key, n.cfg.Node
	}
	if d := cmp.Diff(want, n.rec.all(), cmpopts.IgnoreFields(launcher.Event{}, "Time")); d != "" {
		t.Error(d)
	}
	if e := n.entry(key); e.Phase != launcher.PhaseEnded || e.Ranks[1].Exit == nil {
		t.Errorf("ended: %+v", e)
	}
	n.order(launcher.Order{Forget: &key})
	n.poll("an empty ledger", func() bool { return len(n.a.Ledger()) == 0 })
	if _, err := os.Stat(filepath.Join(n.cfg.LogDir, string(job), "1", "rank-4.out")); err != nil {
		t.Error("the output was forgotten too:", err)
	}
}

func TestExitsAreToldAsTheyWere(t *testing.T) {
	tests := map[string]struct {
		script string
		want   launcher.Exit
	}{
		"zero":      {"true", launcher.Exit{}},
		"code":      {"exit 7", launcher.Exit{Code: 7}},
		"highest":   {"exit 255", launcher.Exit{Code: 255}},
		"killed":    {"kill -9 $$", launcher.Exit{Signal: 9}},
		"segfault":  {"kill -SEGV $$", launcher.Exit{Signal: 11}},
		"own TERM":  {"kill -TERM $$", launcher.Exit{Signal: 15}},
		"shell's":   {"sh -c 'kill -9 $$'; exit $?", launcher.Exit{Code: 137}},
		"not found": {"exec /nowhere/it", launcher.Exit{Code: 127}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.launch(n.as(tt.script))
			if d := cmp.Diff(tt.want, n.hear(launcher.Exited).Exit.Bare()); d != "" {
				t.Error(d)
			}
			n.hear(launcher.Ended)
		})
	}
}

func TestWhatIsEndedByUsIsSaidToBe(t *testing.T) {
	n := newNode(t)
	n.launch(n.as("sleep 60"))
	n.end(key, time.Second)
	if d := cmp.Diff(&launcher.Exit{Signal: 15, ByUs: true}, n.hear(launcher.Exited).Exit); d != "" {
		t.Error(d)
	}
	n.hear(launcher.Ended)
	n.end(key, 0)
	n.hear(launcher.Ended) // asked again, it says so again
}

// A program that cannot be exec'd though prepare let it pass: the script's
// interpreter is missing.
func TestAnExecThatFails(t *testing.T) {
	n := newNode(t)
	path := filepath.Join(n.base, "prog")
	must(t, os.WriteFile(path, []byte("#!/no/such/interpreter\n"), 0o755))
	as := n.as("")
	as.Spec.Stages[0].Argv = launcher.Lits(path)
	n.prepare(as)
	n.hear(launcher.Prepared)
	n.start(key, 0)
	if ev := n.hear(launcher.Exited); ev.Exit.Status() != launcher.ExitOwnFailure ||
		!strings.Contains(ev.Exit.Error, "interpreter") {
		t.Errorf("exit %+v", ev.Exit)
	}
	n.hear(launcher.Ended)
	if n.heard(launcher.Started) != 0 {
		t.Error("told as started: no rank was exec'd")
	}
}

func TestGenerations(t *testing.T) {
	n := newNode(t)
	n.launch(n.as("gate", generation(2)))
	two := launcher.Key{Job: job, Generation: 2}
	n.prepare(n.as("witness"))
	if text := n.hear(launcher.Refused).Text; text != launcher.ErrStaleGeneration.Error() {
		t.Errorf("generation 1: %q", text)
	}
	// P3: runs of two generations never overlap, whatever a leader believes.
	n.prepare(n.as("witness", generation(3)))
	if text := n.hear(launcher.Refused).Text; !strings.Contains(text,
		"attempt 2 of job "+string(job)+" has not ended") {
		t.Errorf("generation 3: %q", text)
	}
	n.end(two, 0)
	n.hear(launcher.Ended)
	n.launch(n.as("witness", generation(3)))
	n.hear(launcher.Ended)
	if len(n.witness()) != 1 {
		t.Errorf("witness %v", n.witness())
	}
}

func TestAskedTwiceItStartsOnce(t *testing.T) {
	n := newNode(t)
	as := n.as("witness; gate", ranks(0, 2))
	for range 3 {
		n.prepare(as)
	}
	n.hear(launcher.Prepared)
	n.prepare(as)
	n.hear(launcher.Prepared)
	for range 3 {
		n.start(key, 0)
	}
	n.hear(launcher.Started)
	n.start(key, 1234)
	n.prepare(as)
	if ev := n.hear(launcher.Prepared); ev.Port != 0 {
		t.Errorf("a second start changed the port to %d", ev.Port)
	}
	n.poll("two witnesses", func() bool { return len(n.witness()) == 2 })
	if n.heard(launcher.Started) != 1 {
		t.Error("started was told more than once")
	}
	n.pass(0)
	n.pass(1)
	n.hear(launcher.Ended)
	n.prepare(as) // too late
	n.hear(launcher.Ended)
	n.start(key, 0)
	if len(n.witness()) != 2 {
		t.Errorf("exec'd more than once: %v", n.witness())
	}
}

func TestAStartOfSomethingUnknownIsNothing(t *testing.T) {
	n := newNode(t)
	n.start(key, 0)
	n.order(launcher.Order{Forget: &key})
	n.order(launcher.Order{}) // a newer leader's kind of order
	if len(n.a.Ledger()) != 0 {
		t.Errorf("ledger %+v", n.a.Ledger())
	}
}

func TestEndBeforePrepareIsATombstone(t *testing.T) {
	n := newNode(t)
	n.end(key, time.Second)
	n.hear(launcher.Ended)
	n.prepare(n.as("witness"))
	n.hear(launcher.Ended)
	n.start(key, 0)
	if e := n.entry(key); e.Phase != launcher.PhaseEnded || len(n.shimPIDs()) > 0 {
		t.Errorf("entry %+v, shims %v", e, n.shimPIDs())
	}
}

func TestEndOfThePrepared(t *testing.T) {
	n := newNode(t)
	n.prepare(n.as("witness"))
	n.hear(launcher.Prepared)
	n.end(key, time.Minute)
	n.hear(launcher.Ended)
	n.start(key, 0)
	n.prepare(n.as("witness"))
	n.hear(launcher.Ended)
	if n.heard(launcher.Refused) > 0 || n.witness() != nil {
		t.Errorf("heard %v", n.rec.all())
	}
	n.drop()
	n.open()
	if e := n.entry(key); e.Phase != launcher.PhaseEnded || e.Refused != "" {
		t.Errorf("after a restart: %+v", e)
	}
}

// blocked is a fabric that hangs, as a stuck disk would.
func blocked(t *testing.T) (change func(*Config), reached, release func()) {
	in, out := make(chan struct{}, 8), make(chan struct{})
	release = sync.OnceFunc(func() { close(out) })
	t.Cleanup(release)
	return func(c *Config) {
		c.Fabric = func(launcher.Assignment) ([]launcher.Setting, error) {
			in <- struct{}{}
			<-out
			return nil, nil
		}
	}, func() { <-in }, release
}

func TestEndDuringASlowPrepare(t *testing.T) {
	change, reached, release := blocked(t)
	n := newNode(t, change)
	n.prepare(n.as("witness"))
	reached()
	n.end(key, 0)
	n.hear(launcher.Ended) // at once: nothing can start any more
	n.order(launcher.Order{Forget: &key})
	release()
	n.poll("the attempt to go", func() bool { return len(n.a.Ledger()) == 0 })
	if n.heard(launcher.Prepared)+n.heard(launcher.Refused) > 0 || len(n.shimPIDs()) > 0 {
		t.Errorf("heard %v, shims %v", n.rec.all(), n.shimPIDs())
	}
}

// A prepare that hangs must hold up neither other jobs nor the agent's end.
func TestASlowPrepareHoldsUpNobody(t *testing.T) {
	change, reached, release := blocked(t)
	n := newNode(t, change)
	n.prepare(n.as("witness"))
	reached()
	n.end(launcher.Key{Job: "efgh", Generation: 1}, 0)
	n.hear(launcher.Ended)
	n.drop()
	release()
	goleak.VerifyNone(t)
	if dirs, _ := os.ReadDir(filepath.Join(n.cfg.RunDir, "jobs")); len(dirs) > 0 || len(n.shimPIDs()) > 0 {
		t.Errorf("it went on after the agent's end: %v", dirs)
	}
	n.open()
	n.prepare(n.as("witness"))
	n.hear(launcher.Prepared)
}

// Row 34: whichever comes first, nothing is left and the end is told.
func TestEndRacesStart(t *testing.T) {
	n := newNode(t)
	const rounds = 200
	ran := 0
	for i := range rounds {
		k := launcher.Key{Job: launcher.JobID(fmt.Sprintf("race%04d", i)), Generation: 1}
		n.prepare(n.as("witness; sleep 60", named(k.Job)))
		if i%4 != 0 { // else the end meets the prepare
			n.hear(launcher.Prepared)
		}
		before := len(n.witness())
		var both sync.WaitGroup
		both.Go(func() { n.start(k, 0) })
		pause := time.Duration(rand.IntN(12000)) * time.Microsecond
		both.Go(func() {
			if i%2 == 0 {
				<-time.After(pause)
			}
			n.end(k, 0)
		})
		both.Wait()
		n.hear(launcher.Ended)
		for _, r := range n.entry(k).Ranks {
			if r.State != launcher.RankEnded || r.PID != 0 && syscall.Kill(r.PID, 0) == nil {
				t.Fatalf("round %d: ended, and rank %+v", i, r)
			}
		}
		if e := n.entry(k); e.Refused != "" {
			t.Fatalf("round %d: who was ended is said to have refused: %+v", i, e)
		}
		n.order(launcher.Order{Forget: &k})
		ran += len(n.witness()) - before
	}
	n.poll("an empty ledger", func() bool { return len(n.a.Ledger()) == 0 })
	if left := n.survivors(); len(left) > 0 {
		t.Errorf("survivors %v", left)
	}
	t.Logf("ranks ran in %d of %d rounds", ran, rounds)
}

func TestEndRacesForget(t *testing.T) {
	n := newNode(t)
	for range 50 {
		n.launch(n.as("true"))
		n.hear(launcher.Ended)
		n.order(launcher.Order{Forget: &key})
		<-time.After(time.Duration(rand.IntN(3000)) * time.Microsecond)
		n.end(key, 0) // of a leader that has not heard of the end
		n.hear(launcher.Ended)
		n.order(launcher.Order{Forget: &key})
		n.poll("an empty ledger", func() bool { return len(n.a.Ledger()) == 0 })
	}
}

func TestForgetOfARunningAttemptEndsIt(t *testing.T) {
	n := newNode(t)
	n.launch(n.as("trap '' TERM; sleep 60 & wait; wait", ranks(0, 3)))
	n.order(launcher.Order{Forget: &key})
	n.hear(launcher.Ended)
	n.poll("an empty ledger", func() bool { return len(n.a.Ledger()) == 0 })
	if left := n.survivors(); len(left) > 0 || len(n.shimPIDs()) > 0 {
		t.Errorf("survivors %v, shims %v", left, n.shimPIDs())
	}
}

func TestAStartThatFailsIsARefusalAndCanBeEnded(t *testing.T) {
	n := newNode(t)
	n.prepare(n.as("witness"))
	n.hear(launcher.Prepared)
	out := filepath.Join(n.cfg.LogDir, string(job), "1", "rank-0.out")
	must(t, os.Mkdir(out, 0o700)) // the shim cannot open it
	n.start(key, 0)
	if text := n.hear(launcher.Refused).Text; !strings.Contains(text, "start ranks: ") ||
		!strings.Contains(text, "rank-0.out") {
		t.Error(text)
	}
	n.end(key, 0)
	n.hear(launcher.Ended)
	if n.witness() != nil {
		t.Error("it ran")
	}
}

// Nobody told the prepared to start: the leader died, and its successor knows
// nothing of the job.
func TestThePreparedDoNotWaitForEver(t *testing.T) {
	n := newNode(t)
	as := n.as("witness")
	as.Spec.StartTimeout = 50 * time.Millisecond
	n.prepare(as)
	if text := n.hear(launcher.Refused).Text; !strings.Contains(text, "not started within 50ms") {
		t.Error(text)
	}
	n.hear(launcher.Ended)
}
