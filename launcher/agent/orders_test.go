package agent

import (
	"errors"
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
			if d := cmp.Diff(&tt.want, n.hear(launcher.Exited).Exit); d != "" {
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
	if ev := n.hear(launcher.Exited); ev.Exit.Status() != launcher.ExitOwnFailure || !strings.Contains(ev.Exit.Error, "interpreter") {
		t.Errorf("exit %+v", ev.Exit)
	}
	n.hear(launcher.Ended)
	if n.heard(launcher.Started) != 0 {
		t.Error("told as started: no rank was exec'd")
	}
}

func TestRefusalsNameTheThingAndTheRemedy(t *testing.T) {
	stage := func(f func(*launcher.Stage)) func(*launcher.Assignment) {
		return func(a *launcher.Assignment) { f(&a.Spec.Stages[0]) }
	}
	tests := map[string]struct {
		change func(*launcher.Assignment)
		want   []string
	}{
		"no such program":      {stage(func(s *launcher.Stage) { s.Argv = launcher.Lits("pyhton3") }), []string{`program "pyhton3"`, "not found in PATH (/usr/local/sbin:", "install it"}},
		"no such path":         {stage(func(s *launcher.Stage) { s.Argv = launcher.Lits("/opt/x/python") }), []string{`program "/opt/x/python": not found`, "install it"}},
		"program is a folder":  {stage(func(s *launcher.Stage) { s.Argv = launcher.Lits("./folder") }), []string{`program "./folder": is a directory`, "name the file"}},
		"not executable":       {stage(func(s *launcher.Stage) { s.Argv = launcher.Lits("./plain") }), []string{`program "./plain": not executable`, "chmod +x"}},
		"not executable, PATH": {stage(func(s *launcher.Stage) { s.Argv = launcher.Lits("plain"); addPath(s) }), []string{`program "plain": /`, "/plain: not executable", "chmod +x"}},
		"no such script":       {stage(func(s *launcher.Stage) { s.Files = []string{"train.py"} }), []string{"script /", "/train.py: not found", "copy it to every node"}},
		"script is a folder":   {stage(func(s *launcher.Stage) { s.Files = []string{"folder"} }), []string{"/folder: is a directory", "name the file"}},
		"no such workdir":      {stage(func(s *launcher.Stage) { s.Workdir = "/no/such/place" }), []string{"working directory /no/such/place: not found", "--workdir"}},
		"workdir is a file":    {stage(func(s *launcher.Stage) { s.Workdir = "/etc/passwd" }), []string{"working directory /etc/passwd: is no directory", "--workdir"}},
		"workdir below a file": {stage(func(s *launcher.Stage) { s.Workdir = "/etc/passwd/x" }), []string{"working directory /etc/passwd/x: not a directory"}},
		"no such user":         {func(a *launcher.Assignment) { a.Spec.User = "nobodyatall" }, []string{`user "nobodyatall"`, "not known on this node", "create"}},
		"user by number":       {func(a *launcher.Assignment) { a.Spec.User = "0" }, []string{`user "0"`, "not known"}},
		"user with a colon":    {func(a *launcher.Assignment) { a.Spec.User = "root:x" }, []string{`user "root:x"`, "not known"}},
		"another boot":         {func(a *launcher.Assignment) { a.Boot = "yesterday" }, []string{"earlier boot"}},
		"id with a path":       {func(a *launcher.Assignment) { a.Job = "../../etc" }, []string{"job id", "invalid"}},
		"id with a slash":      {func(a *launcher.Assignment) { a.Job = "ab/cd" }, []string{"job id", "invalid"}},
		"no generation":        {func(a *launcher.Assignment) { a.Generation = 0 }, []string{"generation 0"}},
		"ranks below zero":     {func(a *launcher.Assignment) { a.Ranks = -1 }, []string{"-1 ranks"}},
		"ranks without number": {func(a *launcher.Assignment) { a.Ranks = 0 }, []string{"0 ranks"}},
		"ranks beyond reason":  {func(a *launcher.Assignment) { a.World = 1 << 40; a.Ranks = 1 << 40 }, []string{"ranks from 0"}},
		"ranks out of world":   {func(a *launcher.Assignment) { a.FirstRank = 1 }, []string{"world of 1"}},
		"no stage":             {func(a *launcher.Assignment) { a.Spec.Stages = nil }, []string{"0 main stages"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			must(t, os.Mkdir(filepath.Join(n.base, "folder"), 0o755))
			must(t, os.WriteFile(filepath.Join(n.base, "plain"), nil, 0o644))
			as := n.as("witness")
			tt.change(&as)
			as.Spec.ID = as.Job
			for range 2 { // asked again it says it again
				n.prepare(as)
				text := n.hear(launcher.Refused).Text
				for _, want := range tt.want {
					if !strings.Contains(text, want) {
						t.Errorf("%q lacks %q", text, want)
					}
				}
			}
			if _, err := n.a.Explain(n.ctx, as); err == nil && !strings.Contains(name, "boot") {
				t.Error("a dry run lets it pass")
			}
			if len(n.shimPIDs()) > 0 {
				t.Error("a shim was left for it")
			}
			if logs, _ := os.ReadDir(n.cfg.LogDir); len(logs) > 0 {
				t.Error("a folder for output was left for it")
			}
			n.start(as.Key, 0)
			n.end(as.Key, 0)
			n.hear(launcher.Ended)
			if n.heard(launcher.Prepared)+n.heard(launcher.Started) > 0 || n.witness() != nil {
				t.Error("it was started all the same")
			}
		})
	}
}

func addPath(s *launcher.Stage) {
	s.Env = append(s.Env, launcher.Var{Name: "PATH", Value: launcher.Lit(s.Workdir + ":/usr/bin:/bin")})
}

func TestAFabricThatCannotBeReadIsARefusal(t *testing.T) {
	n := newNode(t, func(c *Config) {
		c.Fabric = func(launcher.Assignment) ([]launcher.Setting, error) { return nil, errors.New("rocep1s0f0: no GID") }
	})
	n.prepare(n.as("true"))
	if text := n.hear(launcher.Refused).Text; !strings.Contains(text, "fabric environment: rocep1s0f0: no GID") {
		t.Error(text)
	}
}

func TestFences(t *testing.T) {
	n := newNode(t)
	order := func(f launcher.Fence) error {
		as := n.as("true")
		return n.a.Order(launcher.Order{Fence: f, Prepare: &as})
	}
	for _, f := range []launcher.Fence{{}, {Epoch: 1, Term: 2}, {Epoch: 0, Term: 99}} {
		if err := n.a.Raise(f); !errors.Is(err, launcher.ErrStaleFence) {
			t.Errorf("raise %s: %v", f, err)
		}
		if err := order(f); !errors.Is(err, launcher.ErrStaleFence) {
			t.Errorf("order under %s: %v", f, err)
		}
	}
	must(t, n.a.Raise(fence)) // the same leader comes back
	higher := launcher.Fence{Epoch: 1, Term: 4}
	if err := order(higher); !errors.Is(err, launcher.ErrStaleFence) {
		t.Errorf("obeyed a leader that was never let in: %v", err)
	}
	must(t, n.a.Raise(higher))
	if err := order(fence); !errors.Is(err, launcher.ErrStaleFence) {
		t.Errorf("obeyed the leader of before: %v", err)
	}
	n.rec.stop()
	n.a.Close()
	a, err := Open(n.cfg)
	must(t, err)
	n.a, n.rec = a, record(a)
	if err := a.Raise(fence); !errors.Is(err, launcher.ErrStaleFence) {
		t.Errorf("a restart forgot the fence: %v", err)
	}
	must(t, order(higher))
	n.hear(launcher.Prepared)
}

func TestABrokenFenceKeepsTheAgentFromStarting(t *testing.T) {
	n := newNode(t)
	n.drop()
	path := filepath.Join(n.cfg.RunDir, "fence.json")
	must(t, os.WriteFile(path, []byte("{"), 0o600))
	if _, err := Open(n.cfg); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "remove the file") {
		t.Errorf("error %v", err)
	}
	must(t, os.Remove(path))
}

func TestOpenWantsAWholeConfig(t *testing.T) {
	n := newNode(t)
	for name, change := range map[string]func(*Config){
		"relative run folder": func(c *Config) { c.RunDir = "run" },
		"relative log folder": func(c *Config) { c.LogDir = "logs" },
		"no fabric":           func(c *Config) { c.Fabric = nil },
		"no logger":           func(c *Config) { c.Logger = nil },
	} {
		c := n.cfg
		change(&c)
		if _, err := Open(c); err == nil {
			t.Errorf("%s: opened", name)
		}
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
	if text := n.hear(launcher.Refused).Text; !strings.Contains(text, "generation 2 of job "+string(job)+" has not ended") {
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
	n.poll("the try to go", func() bool { return len(n.a.Ledger()) == 0 })
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
	if dirs, _ := os.ReadDir(filepath.Join(n.cfg.RunDir, "jobs")); len(dirs) > 0 {
		t.Errorf("it left %v", dirs)
	}
	release()
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
		n.end(key, 0) // of a leader that has not heard of the end
		n.hear(launcher.Ended)
		n.order(launcher.Order{Forget: &key})
		n.poll("an empty ledger", func() bool { return len(n.a.Ledger()) == 0 })
	}
}

func TestForgetOfARunningTryEndsIt(t *testing.T) {
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
	if text := n.hear(launcher.Refused).Text; !strings.Contains(text, "start ranks: ") || !strings.Contains(text, "rank-0.out") {
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
	if text := n.hear(launcher.Refused).Text; !strings.Contains(text, "never told to start, for 50ms") {
		t.Error(text)
	}
	n.hear(launcher.Ended)
}
