package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
)

// Fault 7: the agent dies by kill -9 under a job. Same processes, and neither
// an exit code nor a byte is lost.
func TestClientKilled(t *testing.T) {
	b := set(t)
	script := "say $$; read x < " + gate2(b) + "; yes line | head -c 1000000; exit 5"
	p := b.killableClient(b.sh(3, script))
	pid, _ := strconv.Atoi(b.hear())
	must(t, p.Kill())
	_, err := p.Wait()
	must(t, err)

	b.c, err = Attach(b.ctx, b.dir)
	must(t, err)
	if b.c.Key() != b.cfg.Key {
		t.Errorf("key %s", b.c.Key())
	}
	if e := b.until(func(e Event) bool { return e.Kind == Started }); e.PID != pid || e.Rank != 3 {
		t.Errorf("rank %d has PID %d, want 3 and %d", e.Rank, e.PID, pid)
	}
	must(t, os.WriteFile(gatePath(b), []byte("go\n"), 0))
	if d := cmp.Diff(map[int]launcher.Exit{3: {Code: 5}}, exits(b.events())); d != "" {
		t.Error(d)
	}
	if got := b.log(3, "out"); got != strings.Repeat("line\n", 200000) {
		t.Errorf("%d bytes of output, want 1000000", len(got))
	}
	must(t, b.c.Release(b.ctx))
	if _, err := Attach(b.ctx, b.dir); !errors.Is(err, ErrGone) {
		t.Errorf("Attach after Release: %v", err)
	}
}

func TestDieWithClient(t *testing.T) {
	b := set(t, func(c *Config) { c.DieWithClient = true; c.Grace = 200 * time.Millisecond })
	p := b.killableClient(b.sh(0, "trap '' TERM; (setsid sleep 1001 &); say up; while :; do sleep 1000; done"))
	b.hear()
	shim := b.shim()
	must(t, p.Kill())
	_, err := p.Wait()
	must(t, err)
	b.gone(shim) // by itself: nobody will release it
	b.noneAlive()
	es, err := Replay(b.dir)
	must(t, err)
	if last := es[len(es)-1]; last.Kind != Ended || last.Why != "the client is gone" {
		t.Errorf("last event %+v", last)
	}
}

// The context of Spawn is for the spawning, not for the attempt.
func TestHoldOutlivesItsContext(t *testing.T) {
	b := set(t, func(c *Config) { c.DieWithClient = true })
	ctx, cancel := context.WithCancel(b.ctx)
	c, err := Spawn(ctx, Program{Exe: SelfExe}, b.dir, b.cfg)
	must(t, err)
	b.c = c
	cancel()
	b.start(b.sh(0, "say up; read x < "+gate2(b)+"; exit 3"))
	b.hear()
	must(t, os.WriteFile(gatePath(b), []byte("go\n"), 0))
	if d := cmp.Diff(map[int]launcher.Exit{0: {Code: 3}}, exits(b.events())); d != "" {
		t.Error(d)
	}
	must(t, b.c.Close()) // nothing is left to be released
	<-b.c.reaped
}

// Fault 8, the shim's side: killed at any moment of the start. Each rank runs
// at most once, whoever comes after; and Reap finds even what the shim had no
// time to write down.
func TestShimKilledDuringStart(t *testing.T) {
	again, never := 0, 0
	for round := range 20 {
		b := spawn(t)
		witness := filepath.Join(filepath.Dir(b.dir), "witness")
		var ranks []Rank
		for i := range 4 {
			ranks = append(ranks, b.sh(i, "echo $RANK >> "+witness+"; (setsid sleep 1001 &); exec sleep 1000"))
		}
		shim := b.shim()
		var wg sync.WaitGroup
		wg.Go(func() { _ = b.c.Start(b.ctx, ranks) }) // it may or may not get there
		if round < 10 {
			time.Sleep(time.Duration(round) * 600 * time.Microsecond) // spreads the kills over the start
		} else {
			b.until(func(e Event) bool { return e.Seq > round%5 }) // one after each line of the journal
		}
		must(t, unix.Kill(shim, unix.SIGKILL))
		<-b.c.reaped
		wg.Wait()
		c, err := Spawn(b.ctx, Program{Exe: SelfExe}, b.dir, b.cfg)
		switch {
		case errors.Is(err, ErrMayHaveRun):
			never++
			must(t, Reap(b.ctx, b.dir))
		case err == nil:
			again++
			b.c = c
			must(t, c.Start(b.ctx, ranks))
			must(t, c.End(b.ctx, 0))
			b.events()
			must(t, c.Release(b.ctx))
		default:
			t.Fatal(err)
		}
		b.noneAlive()
		ran, _ := os.ReadFile(witness)
		for i := range ranks {
			if n := strings.Count(string(ran), fmt.Sprintln(i)); n > 1 {
				t.Errorf("round %d: rank %d ran %d times", round, i, n)
			}
		}
	}
	t.Logf("killed before the start %d times, after %d", again, never)
	if never == 0 {
		t.Error("no kill fell into a start")
	}
}

// The shim itself dies by kill -9.
func TestShimKilled(t *testing.T) {
	for _, cg := range []string{"", "shim-reap-" + fmt.Sprint(os.Getpid())} {
		if cg != "" && !asRoot() {
			continue
		}
		t.Run("cgroup="+cg, func(t *testing.T) {
			b := spawn(t, func(c *Config) { c.Cgroup = cg })
			b.start(
				b.sh(0, "trap '' TERM; (setsid sh -c 'sleep 1001 & echo up > $GATE; sleep 1002' &); while :; do sleep 1000; done"),
				b.sh(1, "(env -i PATH=$PATH GATE=$GATE sh -c 'sleep 1003 & echo up > $GATE; sleep 1004' &) ; exec sleep 1000"),
				b.sh(2, "exit 6"))
			b.hear()
			b.hear()
			b.until(func(e Event) bool { return e.Kind == Exited })
			if err := Reap(b.ctx, b.dir); !errors.Is(err, ErrAlive) {
				t.Errorf("Reap under a living shim: %v", err)
			}
			var inSession []int
			procs, _ := proc.Here.All()
			for _, p := range procs {
				for _, e := range kinds(mustReplay(t, b.dir), Started) {
					if p.Session == e.PID {
						inSession = append(inSession, p.PID)
					}
				}
			}
			b.killShim()
			if err := b.c.Start(b.ctx, []Rank{b.sh(0, "say again")}); !errors.Is(err, ErrGone) {
				t.Errorf("Start of a dead shim: %v", err)
			}
			if _, err := Spawn(b.ctx, Program{Exe: SelfExe}, b.dir, b.cfg); !errors.Is(err, ErrMayHaveRun) {
				t.Errorf("Spawn after a death: %v, want %v", err, ErrMayHaveRun)
			}
			if len(b.alive()) < 4 || len(inSession) < 4 {
				t.Fatalf("only %d survivors, %d in sessions: nothing to reap", len(b.alive()), len(inSession))
			}
			must(t, Reap(b.ctx, b.dir))
			b.noneAlive()
			for _, pid := range inSession {
				if p, ok := proc.Here.Stat(pid); ok && !p.Dead() {
					t.Errorf("%d survived, whose environment was emptied", pid)
				}
			}
			es := mustReplay(t, b.dir)
			if d := cmp.Diff(map[int]launcher.Exit{2: {Code: 6}}, exits(es)); d != "" || es[len(es)-1].Kind != Ended {
				t.Errorf("journal %+v: %s", es, d)
			}
			must(t, Reap(b.ctx, b.dir)) // again: nothing to do
			if _, err := Spawn(b.ctx, Program{Exe: SelfExe}, b.dir, b.cfg); !errors.Is(err, ErrMayHaveRun) {
				t.Errorf("Spawn after Reap: %v, want %v", err, ErrMayHaveRun)
			}
		})
	}
}

func mustReplay(t *testing.T, dir string) []Event {
	t.Helper()
	es, err := Replay(dir)
	must(t, err)
	return es
}

// A shim that dies before Start has run nothing: another may take its place.
func TestShimKilledBeforeStart(t *testing.T) {
	b := spawn(t)
	b.killShim()
	<-b.c.reaped
	if _, err := Attach(b.ctx, b.dir); !errors.Is(err, ErrGone) {
		t.Errorf("Attach: %v, want %v", err, ErrGone)
	}
	must(t, Reap(b.ctx, b.dir))
	b.spawn()
	b.start(b.sh(0, "exit 4"))
	if d := cmp.Diff(map[int]launcher.Exit{0: {Code: 4}}, exits(b.events())); d != "" {
		t.Error(d)
	}
}

// A line cut short by the shim's death was told to nobody; yet no other shim
// may start here.
func TestTornJournal(t *testing.T) {
	b := set(t)
	must(t, os.MkdirAll(b.dir, 0o700))
	must(t, os.WriteFile(filepath.Join(b.dir, journalName), []byte(`{"seq":1,"ki`), 0o600))
	if es := mustReplay(t, b.dir); len(es) != 0 {
		t.Errorf("events %+v", es)
	}
	if _, err := Spawn(b.ctx, Program{Exe: SelfExe}, b.dir, b.cfg); !errors.Is(err, ErrMayHaveRun) {
		t.Errorf("Spawn: %v, want %v", err, ErrMayHaveRun)
	}
}

func TestConcurrentSpawnsMakeOneShim(t *testing.T) {
	b := set(t)
	var wg sync.WaitGroup
	clients := make([]*Client, 8)
	for i := range clients {
		wg.Go(func() {
			c, err := Spawn(b.ctx, Program{Exe: SelfExe}, b.dir, b.cfg)
			if err != nil {
				t.Error(err)
			}
			clients[i] = c
		})
	}
	wg.Wait()
	b.shim()
	owners := 0
	for _, c := range clients {
		if c != nil && c.reaped != nil {
			owners++
			b.c = c
		}
	}
	if owners != 1 {
		t.Fatalf("%d clients started it", owners)
	}
	for _, c := range clients {
		must(t, c.Start(b.ctx, []Rank{b.sh(0, "say $$")}))
	}
	if es := b.events(); len(kinds(es, Started)) != 1 {
		t.Errorf("events %+v", es)
	}
	other := b.cfg
	other.Key.Generation++
	if _, err := Spawn(b.ctx, Program{Exe: SelfExe}, b.dir, other); err == nil {
		t.Error("a shim of another generation was taken for ours")
	}
	must(t, b.c.Release(b.ctx))
}

func TestStartTimeout(t *testing.T) {
	b := spawn(t, func(c *Config) { c.StartTimeout = 50 * time.Millisecond })
	<-b.c.reaped
	es := mustReplay(t, b.dir)
	if len(es) != 1 || es[0].Kind != Ended || es[0].Why != "not started within 50ms" {
		t.Errorf("events %+v", es)
	}
	if err := b.c.Start(b.ctx, []Rank{b.sh(0, "say ran")}); !errors.Is(err, ErrGone) {
		t.Errorf("Start: %v", err)
	}
}

func TestTermToShim(t *testing.T) {
	b := spawn(t, func(c *Config) { c.Grace = 200 * time.Millisecond })
	b.start(b.sh(0, "trap '' TERM; say up; while :; do sleep 1000; done"))
	b.hear()
	for _, s := range []syscall.Signal{unix.SIGHUP, unix.SIGINT} {
		must(t, unix.Kill(b.shim(), s))
	}
	must(t, b.c.Signal(b.ctx, 0, syscall.SIGCONT)) // it answers: they didn't end it
	must(t, unix.Kill(b.shim(), unix.SIGTERM))
	es := b.events()
	<-b.c.reaped
	b.noneAlive()
	if d := cmp.Diff(map[int]launcher.Exit{0: {Signal: 9, ByUs: true}}, exits(es)); d != "" {
		t.Error(d)
	}
}

func TestRelease(t *testing.T) {
	b := spawn(t)
	if err := b.c.Release(b.ctx); !errors.Is(err, ErrRunning) {
		t.Errorf("Release before the end: %v", err)
	}
	b.start(b.sh(0, "exit 0"))
	all := b.events()
	var again []Event
	must(t, b.c.Events(b.ctx, 3, func(e Event) error { again = append(again, e); return nil }))
	if d := cmp.Diff(all[2:], again); d != "" {
		t.Errorf("events from 3 on:\n%s", d)
	}
	must(t, b.c.Release(b.ctx))
	if err := b.c.Release(b.ctx); !errors.Is(err, ErrGone) {
		t.Errorf("second Release: %v", err)
	}
}

func TestLongFolder(t *testing.T) {
	b := set(t)
	b.dir = filepath.Join(b.dir, strings.Repeat("long", 30), strings.Repeat("longer", 20))
	b.spawn()
	c, err := Attach(b.ctx, b.dir)
	must(t, err)
	must(t, c.Start(b.ctx, []Rank{b.sh(0, "exit 8")}))
	if d := cmp.Diff(map[int]launcher.Exit{0: {Code: 8}}, exits(b.events())); d != "" {
		t.Error(d)
	}
	must(t, c.Release(b.ctx))
	if left, _ := filepath.Glob(filepath.Join(b.dir, socketName)); len(left) > 0 {
		t.Error("the socket stays")
	}
}

func TestRefusedConfig(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no job":        func(c *Config) { c.Key.Job = "" },
		"log folder":    func(c *Config) { c.LogDir = "logs" },
		"grace":         func(c *Config) { c.Grace = -1 },
		"user alone":    func(c *Config) { c.UID = new(uint32) },
		"cgroup path":   func(c *Config) { c.Cgroup = "../x" },
		"cgroup hidden": func(c *Config) { c.Cgroup = "..x" },
	} {
		b := set(t, change)
		if _, err := Spawn(b.ctx, Program{Exe: SelfExe}, b.dir, b.cfg); !errors.Is(err, launcher.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b := set(t, func(c *Config) { c.LogDir = "/proc/no/logs" })
	if _, err := Spawn(b.ctx, Program{Exe: SelfExe}, b.dir, b.cfg); !errors.Is(err, ErrRefused) ||
		!strings.Contains(err.Error(), "log folder") {
		t.Errorf("a folder that can't be made: %v", err)
	}
	b = set(t)
	if _, err := Spawn(b.ctx, Program{Exe: "/bin/false"}, b.dir, b.cfg); err == nil ||
		!strings.Contains(err.Error(), "died during its start") {
		t.Errorf("a program that is no shim: %v", err)
	}
}

// A start that can't keep output is refused before anything runs, and may be
// tried again.
func TestStartWithoutOutputFile(t *testing.T) {
	b := spawn(t)
	blocked := filepath.Join(b.cfg.LogDir, "rank-1.err")
	must(t, os.Mkdir(blocked, 0o700))
	ranks := []Rank{b.sh(0, "exit 0"), b.sh(1, "exit 0")}
	if err := b.c.Start(b.ctx, ranks); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), blocked) {
		t.Errorf("Start: %v", err)
	}
	must(t, os.Remove(blocked))
	b.start(ranks...)
	if n := len(kinds(b.events(), Started)); n != 2 {
		t.Errorf("%d ranks started", n)
	}
}

// Fault 18: the disk is full. Here a limit of file sizes stands for it.
func TestFullLogFolder(t *testing.T) {
	b := spawn(t)
	b.start(b.sh(0, "echo first; read x < "+gate2(b)+"; yes gone | head -c 300000; exit 3"))
	var limit unix.Rlimit
	must(t, unix.Prlimit(b.shim(), unix.RLIMIT_FSIZE, nil, &limit))
	limit.Cur = 64 << 10
	must(t, unix.Prlimit(b.shim(), unix.RLIMIT_FSIZE, &limit, nil))
	must(t, os.WriteFile(gatePath(b), []byte("go\n"), 0))
	es := b.events()
	if d := cmp.Diff(map[int]launcher.Exit{0: {Code: 3}}, exits(es)); d != "" {
		t.Error(d)
	}
	kept := int64(len(b.log(0, "out")))
	lost := kinds(es, OutputLost)
	want := &Lost{Stream: "out", Offset: kept, Bytes: 300000 + 6 - kept, Error: "file too large"}
	if len(lost) == 0 || kept != 64<<10 {
		t.Fatalf("%d bytes kept, losses %+v", kept, lost)
	}
	if d := cmp.Diff(want, lost[len(lost)-1].Lost); d != "" {
		t.Error(d)
	}
}

func TestCredentials(t *testing.T) {
	if !asRoot() {
		return // without privilege there is nothing to set: TestAsNobody runs the rest so
	}
	id := uint32(65534)
	b := spawn(t, func(c *Config) { c.UID, c.GID, c.Groups = &id, &id, []uint32{100, 101} })
	b.start(Rank{Rank: 0, Argv: []string{"sh", "-c", "id -u; id -g; id -G"}, Env: []string{b.id}, Dir: "/"},
		Rank{Rank: 1, Argv: []string{"/bin/true"}, Env: []string{b.id}, Dir: "/root"})
	es := b.events()
	if got := b.log(0, "out"); got != "65534\n65534\n65534 100 101\n" {
		t.Errorf("ran as %q", got)
	}
	if st, _ := os.Stat("/root"); st.Mode()&0o005 == 0 {
		if got := exits(es)[1].Error; got != `exec "/bin/true" in "/root": permission denied for uid 65534` {
			t.Errorf("a folder closed to the user: %q", got)
		}
	}
}

// PATH is searched as the user's shell would: what is closed to the user hides nothing behind it, though root may
// run it; with limits, too, which are set on the way to the exec.
func TestPathIsTheUsers(t *testing.T) {
	if !asRoot() {
		return
	}
	top, err := os.MkdirTemp("/var/tmp", "shim-path-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(top) })
	must(t, os.Chmod(top, 0o755))
	path := "PATH="
	for _, dir := range []string{"closed", "mine", "open"} {
		must(t, os.Mkdir(filepath.Join(top, dir), 0o755))
		must(t, os.WriteFile(filepath.Join(top, dir, "prog"), []byte("#!/bin/sh\necho "+dir+"\n"), 0o755))
		path += filepath.Join(top, dir) + ":"
	}
	must(t, os.Chmod(filepath.Join(top, "closed"), 0o700))
	must(t, os.Chmod(filepath.Join(top, "mine", "prog"), 0o700))
	id := uint32(65534)
	b := spawn(t, func(c *Config) { c.UID, c.GID = &id, &id })
	limited := launcher.RankOptions{Ulimits: []launcher.Ulimit{{Name: "core"}}}
	b.start(Rank{Rank: 0, Argv: []string{"prog"}, Env: []string{b.id, path}, Dir: "/"},
		Rank{Rank: 1, Argv: []string{"prog"}, Env: []string{b.id, path}, Dir: "/", RankOptions: limited},
		Rank{Rank: 2, Argv: []string{"prog"}, Env: []string{b.id, "PATH=" + filepath.Join(top, "closed")}, Dir: "/"})
	es := exits(b.events())
	for rank := range 2 {
		if got := b.log(rank, "out"); got != "open\n" {
			t.Errorf("rank %d ran %q", rank, got)
		}
	}
	if got := es[2].Error; got != `exec "prog" in "/": permission denied for uid 65534` {
		t.Errorf("closed: %q", got)
	}
}

// Everything that a user without privilege can do is tested as one too: an engine of containers they
// cannot start.
func TestAsNobody(t *testing.T) {
	if !asRoot() {
		return // this run is that one
	}
	tmp, err := os.MkdirTemp("", "shim-nobody-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(tmp) })
	must(t, os.Chown(tmp, 65534, 65534))
	cmd := exec.Command(SelfExe, "-test.run=^Test", "-test.count=1",
		"-test.skip=^(TestAsNobody|Test.*Container.*|TestEngineThatIsAway)$")
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "HOME="+tmp)
	cmd.Dir = "."
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534, Groups: []uint32{}}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}
