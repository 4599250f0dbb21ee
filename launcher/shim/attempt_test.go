package shim

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
	"golang.org/x/sys/unix"
)

func TestFourRanks(t *testing.T) {
	b := spawn(t)
	b.start(
		b.sh(4, "echo out four; echo err four >&2"),
		b.sh(5, "exit 3"),
		b.sh(6, "kill -SEGV $$"),
		b.sh(7, `printf 'raw \001\377 bytes, no newline'; exit 255`),
	)
	es := b.events()
	want := map[int]launcher.Exit{4: {}, 5: {Code: 3}, 6: {Signal: 11}, 7: {Code: 255}}
	if d := cmp.Diff(want, exits(es)); d != "" {
		t.Errorf("exits (-want +got):\n%s", d)
	}
	seen := map[int]Kind{}
	for i, e := range es {
		if e.Seq != i+1 {
			t.Errorf("event %d has number %d", i+1, e.Seq)
		}
		switch e.Kind {
		case Started:
			seen[e.Rank] = Started
		case Exited:
			if seen[e.Rank] != Started || e.PID == 0 {
				t.Errorf("rank %d exited without a start, PID %d", e.Rank, e.PID)
			}
		}
	}
	if es[0].Kind != Starting || es[len(es)-1].Kind != Ended {
		t.Errorf("first event %s, last %s", es[0].Kind, es[len(es)-1].Kind)
	}
	for file, want := range map[[2]string]string{
		{"4", "out"}: "out four\n", {"4", "err"}: "err four\n", {"7", "out"}: "raw \x01\xff bytes, no newline",
		{"5", "err"}: "",
	} {
		got, err := os.ReadFile(filepath.Join(b.cfg.LogDir, "rank-"+file[0]+"."+file[1]))
		if err != nil || string(got) != want {
			t.Errorf("rank %s %s: %q, %v, want %q", file[0], file[1], got, err, want)
		}
	}
	replayed, err := Replay(b.dir)
	must(t, err)
	if d := cmp.Diff(es, replayed); d != "" {
		t.Errorf("told and journalled differ:\n%s", d)
	}
	must(t, b.c.Release(b.ctx))
	if left, _ := filepath.Glob(filepath.Join(b.dir, socketName)); len(left) > 0 || len(b.shims()) > 0 {
		t.Errorf("after Release: %v, shims %v", left, b.shims())
	}
}

func TestOutputIsComplete(t *testing.T) {
	b := spawn(t)
	const mega = 10 << 20
	b.start(b.sh(0, fmt.Sprintf("yes 'a line of text' | head -c %d & yes 'and another' | head -c %d >&2; wait", mega,
		mega)))
	b.events()
	for stream, text := range map[string]string{"out": "a line of text\n", "err": "and another\n"} {
		want := strings.Repeat(text, mega/len(text)+1)[:mega]
		if got := b.log(0, stream); sha256.Sum256([]byte(got)) != sha256.Sum256([]byte(want)) {
			t.Errorf("%s: %d bytes differ from the %d written", stream, len(got), mega)
		}
	}
}

func TestEndLeavesNobody(t *testing.T) {
	const stubborn = "trap '' TERM; "
	for _, tc := range []struct {
		name, script string
		grace        time.Duration
		early        bool // ends before the grace does
	}{
		{"obeys", "say up; exec sleep 1000", 30 * time.Second, true},
		{"setsid and double fork",
			"(setsid sh -c 'sleep 1001 & setsid sleep 1002 & say2() { :; }; echo up > $GATE; sleep 1003' &) ; sleep 1000", 30 * time.Second, true},
		{"ignores TERM", stubborn + "say up; while :; do sleep 1000; done", 400 * time.Millisecond, false},
		{"its orphans ignore TERM",
			"(setsid sh -c \"trap '' TERM; echo up > $GATE; while :; do sleep 1000; done\" &); sleep 1000",
			400 * time.Millisecond, false},
		{"stopped", "say up; kill -STOP $$; sleep 1000", 30 * time.Second, true},
		{"forks for ever", stubborn + "f() { sleep 0.01; (setsid sh -c \"trap '' TERM; $1\" &) ; }; say up; while :; do (sleep 1000 &); sleep 0.005; done", 200 * time.Millisecond, false},
		{"leaves an orphan on its way out",
			"trap '(setsid sleep 1005 &); exit 0' TERM; say up; while :; do sleep 0.02; done", 30 * time.Second, true},
		{"no grace", stubborn + "say up; while :; do sleep 1000; done", 0, false},
		{"empties its environment", "setsid env -i sleep 1004 & say up; sleep 1000", 30 * time.Second, true},
	} {
		for _, cg := range []string{"", "shim-test-" + fmt.Sprint(os.Getpid())} {
			if cg != "" && !asRoot() {
				continue
			}
			t.Run(tc.name+"/cgroup="+cg, func(t *testing.T) {
				b := spawn(t, func(c *Config) { c.Cgroup = cg })
				b.start(b.sh(0, tc.script), b.sh(1, "exec sleep 1000"))
				b.hear()
				began := time.Now()
				must(t, b.c.End(b.ctx, tc.grace))
				es := b.events()
				b.noneAlive()
				took := time.Since(began)
				if tc.early && took > tc.grace/2 || !tc.early && (took < tc.grace || took > tc.grace+20*time.Second) {
					t.Errorf("took %s with a grace of %s", took, tc.grace)
				}
				for rank, e := range exits(es) {
					if !e.ByUs {
						t.Errorf("rank %d: %+v, want it to be by us", rank, e)
					}
				}
				if tr := es[0].Trace; cg != "" {
					if _, err := os.Stat(tr.Cgroup); tr.Cgroup == "" || !errors.Is(err, os.ErrNotExist) {
						t.Errorf("cgroup %q stays: %v", tr.Cgroup, err)
					}
				}
			})
		}
	}
}

// A shell dies by TERM at once; the program under it has the whole grace.
func TestGraceIsForChildrenToo(t *testing.T) {
	b := spawn(t)
	b.start(b.sh(0, `sh -c 'trap "sleep 2.5; echo saved; exit 0" TERM; echo up > $GATE; while :; do sleep 0.05; done'; true`))
	b.hear()
	must(t, b.c.End(b.ctx, 20*time.Second))
	b.events()
	if got := b.log(0, "out"); got != "saved\n" {
		t.Errorf("output %q, want what the child wrote in its grace", got)
	}
}

// A Ctrl-C is INT, which Python makes a KeyboardInterrupt; what does not mind it gets TERM within the same grace.
func TestInterruptThenTerm(t *testing.T) {
	b := spawn(t)
	b.start(b.sh(0, `trap 'echo saved; exit 0' INT; trap 'echo TERM' TERM; say up; while :; do sleep 0.05; done`),
		b.sh(1, `trap '' INT; trap 'echo ended; exit 0' TERM; say up; while :; do sleep 0.05; done`))
	b.hear()
	b.hear()
	began := time.Now()
	must(t, b.c.Interrupt(b.ctx, 2*time.Second))
	must(t, b.c.Interrupt(b.ctx, time.Hour)) // repeated, it changes nothing
	b.events()
	if one, two := b.log(0, "out"), b.log(1, "out"); one != "saved\n" || two != "ended\n" {
		t.Errorf("outputs %q and %q", one, two)
	}
	if took := time.Since(began); took < time.Second {
		t.Errorf("TERM came after %s of a grace of 2 s", took)
	}
}

func TestEndIsOnlyShortened(t *testing.T) {
	b := spawn(t)
	b.start(b.sh(0, "trap '' TERM; say up; while :; do sleep 1000; done"))
	b.hear()
	began := time.Now()
	for _, grace := range []time.Duration{time.Hour, 300 * time.Millisecond, 2 * time.Hour} {
		must(t, b.c.End(b.ctx, grace))
	}
	es := b.events()
	if took := time.Since(began); took < 300*time.Millisecond || took > 20*time.Second {
		t.Errorf("took %s, want 300ms", took)
	}
	if d := cmp.Diff(map[int]launcher.Exit{0: {Signal: 9, ByUs: true}}, exits(es)); d != "" {
		t.Error(d)
	}
}

// Whoever is dead when the end is ordered has died by himself.
func TestOwnDeathBeforeEnd(t *testing.T) {
	b := spawn(t)
	b.start(b.sh(0, "say $$; exit 9"), b.sh(1, "exec sleep 1000"))
	b.hear()
	b.until(func(e Event) bool { return e.Kind == Exited })
	must(t, b.c.End(b.ctx, time.Second))
	want := map[int]launcher.Exit{0: {Code: 9}, 1: {Signal: 15, ByUs: true}}
	if d := cmp.Diff(want, exits(b.events())); d != "" {
		t.Error(d)
	}
}

func TestEndOnFailure(t *testing.T) {
	b := spawn(t, func(c *Config) { c.EndOnFailure = true; c.Grace = time.Minute })
	b.start(b.sh(0, "exec sleep 1000"), b.sh(1, "exit 7"))
	es := b.events()
	want := map[int]launcher.Exit{0: {Signal: 15, ByUs: true}, 1: {Code: 7}}
	if d := cmp.Diff(want, exits(es)); d != "" {
		t.Error(d)
	}
	if why := es[len(es)-1].Why; why != "rank 1: exit 7" {
		t.Errorf("why %q", why)
	}
}

func TestFailureAloneEndsNobody(t *testing.T) {
	b := spawn(t)
	b.start(b.sh(0, "read x < /dev/null; exec sleep 1000"), b.sh(1, "exit 7"))
	b.until(func(e Event) bool { return e.Kind == Exited })
	if n := len(b.alive()); n != 1 {
		t.Errorf("%d ranks live, want 1", n)
	}
}

func TestLeftovers(t *testing.T) {
	within := func(t *testing.T, from, to time.Time, low, high time.Duration) {
		t.Helper()
		if d := to.Sub(from); d < low || d > high {
			t.Errorf("after %s, want %s to %s", d, low, high)
		}
	}
	left := func(t *testing.T, es []Event, rank int) {
		t.Helper()
		var told []string
		for _, e := range es {
			if e.Kind == Left {
				told = append(told, fmt.Sprint(e.Rank, " ", e.Why))
			}
		}
		if want := fmt.Sprint(rank, " left 1 process behind (sleep): ended"); len(told) != 1 || told[0] != want {
			t.Errorf("told %q, want %q", told, want)
		}
	}
	t.Run("holding the output", func(t *testing.T) {
		b := spawn(t)
		b.start(b.sh(0, "(setsid sleep 1001 &); echo done"), b.sh(1, "exec sleep 1000"))
		var es []Event
		b.until(func(e Event) bool { es = append(es, e); return e.Kind == Exited && e.Rank == 0 })
		left(t, es, 0)
		if n := len(b.alive()); n != 1 {
			t.Errorf("%d processes live, want rank 1 alone", n)
		}
		exit := exits([]Event{b.until(func(e Event) bool { return e.Kind == Exited })})
		if d := cmp.Diff(map[int]launcher.Exit{0: {}}, exit); d != "" || b.log(0, "out") != "done\n" {
			t.Errorf("output %q, exit %s", b.log(0, "out"), d)
		}
	})
	t.Run("holding nothing", func(t *testing.T) {
		b := spawn(t)
		b.start(b.sh(0, "(setsid sleep 1001 >/dev/null 2>&1 &); exit 4"))
		es := b.events()
		b.noneAlive()
		left(t, es, 0)
		within(t, es[len(es)-3].Time, es[len(es)-1].Time, OutputWait, OutputWait+20*time.Second)
	})
	t.Run("brief", func(t *testing.T) {
		b := spawn(t)
		b.start(b.sh(0, "(setsid sh -c 'sleep 0.3; echo last words' &); exit 0"))
		es := b.events()
		if got := b.log(0, "out"); got != "last words\n" {
			t.Errorf("output %q", got)
		}
		within(t, es[0].Time, es[len(es)-1].Time, 0, 20*time.Second)
	})
	t.Run("held by a stranger", func(t *testing.T) {
		b := spawn(t)
		b.start(b.sh(0, "say $$; read x < "+gate2(b)+"; echo last >&2; exit 5"), b.sh(1, "exec sleep 1000"))
		f, err := os.OpenFile("/proc/"+b.hear()+"/fd/2", os.O_WRONLY, 0)
		must(t, err)
		defer f.Close()
		must(t, os.WriteFile(gatePath(b), []byte("go\n"), 0))
		e := b.until(func(e Event) bool { return e.Kind == Exited })
		within(t, e.Time, time.Now(), OutputWait, OutputWait+outputCut+20*time.Second)
		if got := b.log(0, "err"); got != "last\n" {
			t.Errorf("output %q", got)
		}
	})
}

// gate2 is the other direction: the rank waits for the test.
func gate2(b *bench) string {
	must(b.t, unix.Mkfifo(gatePath(b), 0o666))
	return gatePath(b)
}

func gatePath(b *bench) string { return filepath.Join(filepath.Dir(b.dir), "gate2") }

func TestConcurrentStartsExecOnce(t *testing.T) {
	b := spawn(t)
	witness := filepath.Join(filepath.Dir(b.dir), "witness")
	rank := func(i int) Rank { return b.sh(i, "echo $RANK >> "+witness) }
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := b.c.Start(b.ctx, []Rank{rank(0), rank(1)}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	b.events()
	must(t, b.c.Start(b.ctx, []Rank{rank(2)}))
	got, _ := os.ReadFile(witness)
	if len(got) != 4 || strings.Count(string(got), "0\n") != 1 || strings.Count(string(got), "1\n") != 1 {
		t.Errorf("witness %q, want each rank once", got)
	}
}

func TestEndBeforeStart(t *testing.T) {
	b := spawn(t)
	must(t, b.c.End(b.ctx, time.Second))
	err := b.c.Start(b.ctx, []Rank{b.sh(0, "say ran")})
	if !errors.Is(err, ErrEnded) {
		t.Errorf("Start: %v, want %v", err, ErrEnded)
	}
	if es := b.events(); len(es) != 1 || es[0].Kind != Ended {
		t.Errorf("events %+v", es)
	}
}

func TestEndRacesStart(t *testing.T) {
	fds := func() int {
		d, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(d)
	}
	before := 0
	for round := range 25 {
		b := spawn(t)
		witness := filepath.Join(filepath.Dir(b.dir), "witness")
		var ranks []Rank
		for i := range 6 {
			ranks = append(ranks, b.sh(i, "echo $RANK >> "+witness+"; (setsid sleep 1001 &); exec sleep 1000"))
		}
		var wg sync.WaitGroup
		var startErr error
		wg.Go(func() { startErr = b.c.Start(b.ctx, ranks) })
		wg.Go(func() {
			time.Sleep(time.Duration(round) * 300 * time.Microsecond) // spreads the race over the start
			if err := b.c.End(b.ctx, time.Duration(round%2)*time.Minute); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		es := b.events()
		b.noneAlive()
		if len(kinds(es, Ended)) != 1 || es[len(es)-1].Kind != Ended {
			t.Errorf("round %d: not ended once and last: %+v", round, es)
		}
		ran, _ := os.ReadFile(witness)
		switch {
		case startErr == nil && len(kinds(es, Exited)) != len(ranks):
			t.Errorf("round %d: %d exits of %d ranks", round, len(kinds(es, Exited)), len(ranks))
		case startErr != nil && (!errors.Is(startErr, ErrEnded) || len(ran) > 0):
			t.Errorf("round %d: start said %v, and %q ran", round, startErr, ran)
		}
		for i := range ranks {
			if n := strings.Count(string(ran), fmt.Sprintln(i)); n > 1 {
				t.Errorf("round %d: rank %d ran %d times", round, i, n)
			}
		}
		must(t, b.c.Release(b.ctx))
		b.gate.Close()
		if round == 0 {
			before = fds()
		}
	}
	if after := fds(); after > before {
		t.Errorf("%d descriptors before, %d after 24 more attempts", before, after)
	}
}

func TestExecFailures(t *testing.T) {
	b := spawn(t)
	base := filepath.Dir(b.dir)
	file := func(name, text string, mode os.FileMode) string {
		must(t, os.WriteFile(filepath.Join(base, name), []byte(text), mode))
		return filepath.Join(base, name)
	}
	file("plain", "no program", 0o644)
	argv := [][]string{
		{"pyhton3", "-V"},
		{"/no/such/program"},
		{"plain"},
		{file("lost", "#!/no/such/interpreter\n", 0o755)},
		{file("garbage", "\x7fELF but not really", 0o755)},
		{"/bin/true"},
		{"/bin/sh", "-c", "exit 2"},
	}
	var ranks []Rank
	for i, a := range argv {
		ranks = append(ranks, Rank{Rank: i, Argv: a, Env: []string{b.id, "PATH=/usr/bin:" + base}, Dir: "/"})
	}
	ranks[5].Dir = "/no/such/folder"
	b.start(ranks...)
	want := map[int]launcher.Exit{
		0: {Error: `exec "pyhton3": not found`},
		1: {Error: `exec "/no/such/program": not found`},
		2: {Error: `exec "plain": permission denied: make it executable`},
		3: {Error: fmt.Sprintf(`exec %q: its interpreter (the #! line, or the loader) is not found`, argv[3][0])},
		4: {Error: fmt.Sprintf(`exec %q: not a program for this machine (no #! line, or another architecture)`, argv[4][0])},
		5: {Error: `exec "/bin/true": working folder "/no/such/folder": not found`},
		6: {Code: 2},
	}
	if d := cmp.Diff(want, exits(b.events())); d != "" {
		t.Error(d)
	}
}

func TestRanksInheritNothing(t *testing.T) {
	b := spawn(t)
	before, _ := os.ReadFile("/proc/self/oom_score_adj")
	b.start(b.sh(0, `
		for f in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24; do
			if [ -e /proc/$$/fd/$f ]; then echo fd $f; fi
		done
		readlink /proc/$$/fd/0
		while read line; do case $line in SigBlk*|SigIgn*) echo "$line"; esac; done < /proc/$$/status
		echo oom $(cat /proc/$$/oom_score_adj)
		env -u PATH -u GATE -u RANK -u TEST_ID -u PWD -u _ | grep -v SPARKRUN_GANG=abcd234567.1/
		[ "$(ps -o sid= -p $$ | tr -d ' ')" = $$ ] && echo own session`))
	b.events()
	ignored, _ := exec.Command("grep", "-E", "SigBlk|SigIgn", "/proc/self/status").Output()
	want := "fd 0\nfd 1\nfd 2\n/dev/null\n" + string(ignored) + "oom " + string(before) + "own session\n"
	if got := b.log(0, "out"); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// A signal may come before the order to start, as from who sees ranks of other nodes run.
func TestSignalBeforeTheStart(t *testing.T) {
	b := spawn(t)
	must(t, b.c.Signal(b.ctx, 1, syscall.SIGSTOP))
	b.start(b.sh(0, "exec sleep 1000"), b.sh(1, "say up; exec sleep 1000"))
	pid := b.until(func(e Event) bool { return e.Kind == Started && e.Rank == 1 }).PID
	b.awaits(t, "rank 1 is suspended", func() bool {
		p, _ := proc.Here.Stat(pid)
		return p.Stopped()
	})
	must(t, b.c.Signal(b.ctx, 1, syscall.SIGCONT))
	if got := b.hear(); got != "up" {
		t.Errorf("heard %q", got)
	}
	must(t, b.c.End(b.ctx, 0))
	b.events()
}

// It is kept as well for a rank of a later step.
func TestSignalBeforeALaterStep(t *testing.T) {
	b := spawn(t)
	must(t, b.c.Signal(b.ctx, 1, syscall.SIGSTOP))
	must(t, b.c.StartMore(b.ctx, []Rank{b.sh(0, "exec sleep 1000")}))
	must(t, b.c.StartMore(b.ctx, []Rank{b.sh(1, "say up; exec sleep 1000")}))
	pid := b.until(func(e Event) bool { return e.Kind == Started && e.Rank == 1 }).PID
	b.awaits(t, "rank 1 is suspended", func() bool {
		p, _ := proc.Here.Stat(pid)
		return p.Stopped()
	})
	must(t, b.c.End(b.ctx, 0))
	b.events()
}

func TestSignals(t *testing.T) {
	b := spawn(t)
	const script = "trap 'say $RANK usr1' USR1; trap 'say $RANK usr2; exit 0' USR2; say up; while :; do sleep 0.02; done"
	b.start(b.sh(0, script), b.sh(1, script), b.sh(2, "exit 0"))
	b.hear()
	b.hear()
	b.until(func(e Event) bool { return e.Kind == Exited && e.Rank == 2 })
	must(t, b.c.Signal(b.ctx, 1, syscall.SIGUSR1))
	if got := b.hear(); got != "1 usr1" {
		t.Errorf("heard %q", got)
	}
	if err := b.c.Signal(b.ctx, 2, syscall.SIGUSR1); !errors.Is(err, ErrNoRank) {
		t.Errorf("signal to an ended rank: %v", err)
	}
	must(t, b.c.Signal(b.ctx, AllRanks, syscall.SIGUSR2))
	for _, e := range exits(b.events()) {
		if e != (launcher.Exit{}) {
			t.Errorf("exit %+v, want 0 by itself", e)
		}
	}
}
