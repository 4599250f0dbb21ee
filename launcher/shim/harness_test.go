package shim

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
)

// The test binary is also the shim, and a client that can be killed.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "shim" {
		syscall.Exit(Main(os.Args[2])) // os.Exit takes a second in a race build
	}
	if len(os.Args) == 3 && os.Args[1] == "client" {
		os.Exit(clientMain(os.Args[2]))
	}
	code := m.Run()
	if err := closeEngine(); err != nil {
		fmt.Println(err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// clientMain spawns and starts as told on stdin, says so, and stays.
func clientMain(dir string) int {
	var in struct {
		Cfg   Config
		Ranks []Rank
	}
	ctx := context.Background()
	err := json.NewDecoder(os.Stdin).Decode(&in)
	if err == nil {
		var c *Client
		if c, err = Spawn(ctx, Program{Exe: SelfExe}, dir, in.Cfg); err == nil {
			err = c.Start(ctx, in.Ranks)
		}
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("started")
	select {}
}

// bench is one attempt under test.
type bench struct {
	t    testing.TB
	ctx  context.Context
	cfg  Config
	dir  string
	id   string // in every rank's environment: finds survivors whatever the shim says
	gate *os.File
	in   *bufio.Reader
	c    *Client
}

// set prepares an attempt without spawning its shim.
func set(t testing.TB, change ...func(*Config)) *bench {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	base := t.TempDir()
	b := &bench{
		t: t, ctx: ctx, dir: filepath.Join(base, "shim"),
		id: fmt.Sprintf("TEST_ID=%s-%d", filepath.Base(base), time.Now().UnixNano()),
		cfg: Config{
			Key:    launcher.Key{Job: "abcd234567", Generation: 1},
			LogDir: filepath.Join(base, "logs"),
		},
	}
	for _, f := range change {
		f(&b.cfg)
	}
	fifo := filepath.Join(base, "gate")
	must(t, unix.Mkfifo(fifo, 0o666))
	must(t, os.Chmod(fifo, 0o666))
	gate, err := os.OpenFile(fifo, os.O_RDWR|unix.O_NONBLOCK, 0)
	must(t, err)
	b.gate, b.in = gate, bufio.NewReader(gate)
	t.Cleanup(func() {
		defer cancel()
		gate.Close()
		for _, pid := range b.shims() {
			_ = unix.Kill(pid, unix.SIGKILL)
			b.gone(pid)
		}
		if b.c != nil && b.c.reaped != nil {
			<-b.c.reaped
		}
		for _, pid := range b.alive() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if b.c != nil {
			b.c.Close()
		}
		if _, bench := t.(*testing.B); !bench { // whose runner has goroutines of its own
			goleak.VerifyNone(t, goleak.IgnoreAnyFunction(engineWait))
		}
		if log, _ := os.ReadFile(filepath.Join(b.dir, logName)); bytes.Contains(log, []byte("DATA RACE")) ||
			bytes.Contains(log, []byte("panic")) {
			t.Error("the shim raced or panicked")
		}
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(b.dir, logName))
			journal, _ := os.ReadFile(filepath.Join(b.dir, journalName))
			t.Logf("shim.log:\n%s\njournal:\n%s", log, journal)
		}
	})
	return b
}

// spawn is set with a living shim.
func spawn(t testing.TB, change ...func(*Config)) *bench {
	t.Helper()
	b := set(t, change...)
	b.spawn()
	return b
}

func (b *bench) spawn() {
	b.t.Helper()
	c, err := Spawn(b.ctx, Program{Exe: SelfExe}, b.dir, b.cfg)
	must(b.t, err)
	b.c = c
}

// sh is a rank that runs a shell script. `say WORDS` in it is heard by hear.
func (b *bench) sh(rank int, script string) Rank {
	return Rank{
		Rank: rank, LocalRank: rank,
		Argv: []string{"/bin/sh", "-c", "say() { echo \"$@\" > \"$GATE\"; }\n" + script},
		Env:  []string{b.id, "PATH=" + os.Getenv("PATH"), "GATE=" + b.gate.Name(), "RANK=" + strconv.Itoa(rank)},
		Dir:  "/",
	}
}

func (b *bench) start(ranks ...Rank) {
	b.t.Helper()
	must(b.t, b.c.Start(b.ctx, ranks))
}

// hear waits for what one of the ranks says.
func (b *bench) hear() string {
	b.t.Helper()
	must(b.t, b.gate.SetReadDeadline(time.Now().Add(20*time.Second)))
	line, err := b.in.ReadString('\n')
	must(b.t, err)
	return strings.TrimSuffix(line, "\n")
}

// events are all of them, to the end.
func (b *bench) events() []Event {
	b.t.Helper()
	var es []Event
	must(b.t, b.c.Events(b.ctx, 0, func(e Event) error { es = append(es, e); return nil }))
	return es
}

// until gives the first event that f takes.
func (b *bench) until(f func(Event) bool) (found Event) {
	b.t.Helper()
	stop := fmt.Errorf("found")
	err := b.c.Events(b.ctx, 0, func(e Event) error {
		if f(e) {
			found = e
			return stop
		}
		return nil
	})
	if err != stop {
		b.t.Fatalf("the event never came: %v", err)
	}
	return found
}

func (b *bench) log(rank int, stream string) string {
	b.t.Helper()
	got, err := os.ReadFile(filepath.Join(b.cfg.LogDir, fmt.Sprintf("rank-%d.%s", rank, stream)))
	must(b.t, err)
	return string(got)
}

// alive lists the living processes that the ranks left or are, by what the
// test itself put into their environment.
func (b *bench) alive() []int {
	var pids []int
	procs, _ := proc.Here.All()
	for _, p := range procs {
		if yes, _ := proc.Here.HasEnv(p, b.id); yes && !p.Dead() {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

func (b *bench) noneAlive() {
	b.t.Helper()
	for _, pid := range b.alive() {
		cmd, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		b.t.Errorf("survivor %d: %q", pid, cmd)
	}
}

// shims lists the shims of this bench's folder.
func (b *bench) shims() []int {
	var pids []int
	procs, _ := proc.Here.All()
	for _, p := range procs {
		cmd, _ := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/cmdline")
		if !p.Dead() && bytes.Equal(cmd, []byte("sparkrun\x00shim\x00"+b.dir+"\x00")) {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

func (b *bench) shim() int {
	b.t.Helper()
	pids := b.shims()
	if len(pids) != 1 {
		b.t.Fatalf("%d shims, want 1", len(pids))
	}
	return pids[0]
}

// gone waits for the death of any process.
func (b *bench) gone(pid int) {
	b.t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	_, err = ignoreEINTR(func() (int, error) { return unix.Poll(poll, 20000) })
	if err != nil || poll[0].Revents == 0 {
		b.t.Fatalf("process %d lives on: %v", pid, err)
	}
}

func (b *bench) killShim() {
	b.t.Helper()
	pid := b.shim()
	must(b.t, unix.Kill(pid, unix.SIGKILL))
	b.gone(pid)
}

func exits(es []Event) map[int]launcher.Exit {
	m := map[int]launcher.Exit{}
	for _, e := range es {
		if e.Kind == Exited {
			m[e.Rank] = *e.Exit
		}
	}
	return m
}

func kinds(es []Event, k Kind) (found []Event) {
	for _, e := range es {
		if e.Kind == k {
			found = append(found, e)
		}
	}
	return found
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// killableClient runs clientMain and returns once it has started the ranks.
func (b *bench) killableClient(ranks ...Rank) *os.Process {
	b.t.Helper()
	in, err := json.Marshal(map[string]any{"Cfg": b.cfg, "Ranks": ranks})
	must(b.t, err)
	r, w, err := os.Pipe()
	must(b.t, err)
	outR, outW, err := os.Pipe()
	must(b.t, err)
	defer func() { r.Close(); outR.Close() }()
	p, err := os.StartProcess(SelfExe, []string{"sparkrun", "client", b.dir}, &os.ProcAttr{
		Files: []*os.File{r, outW, os.Stderr}, Env: []string{}, Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	must(b.t, err)
	outW.Close()
	_, err = w.Write(in)
	must(b.t, err)
	w.Close()
	line, err := bufio.NewReader(outR).ReadString('\n')
	if line != "started\n" {
		b.t.Fatalf("client says %q, %v", line, err)
	}
	return p
}

func asRoot() bool { return os.Geteuid() == 0 }
