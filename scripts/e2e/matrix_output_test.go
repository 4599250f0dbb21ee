package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Row 11. The launch dies, then an attach to the job, then the agent through
// which its output is read: what each has shown goes on from where it was.
func launchKilled(t *testing.T, f *field, i int) {
	const lines = 4000
	w := f.testimony(i)
	name := fmt.Sprintf("written%d", i)
	killed := func(host string, r *running, args string, enough int) string {
		t.Helper()
		eventually(t, time.Minute, args+" shows output", func() bool {
			heard := w.hear(t, "wrote")
			if len(heard) > 0 {
				t.Fatalf("the rank has ended before %s could be killed", args)
			}
			return f.sizeOf("spark2", name) >= int64(enough)
		})
		for _, pid := range f.find(host, args, "") {
			_ = syscall.Kill(pid, syscall.SIGKILL) // the lab's own ways in end with it
		}
		r.wait()
		return r.out.String()
	}
	launch := f.launch("spark3", "--on spark2 --output raw --name "+name, w.ranks("writes", lines))
	first := killed("spark3", launch, "sparkrun launch", 20_000)
	second := killed("spark1", f.start("spark1", "sparkrun", "attach", name, "--tail", "5"), "sparkrun attach", 120_000)
	shown := filepath.Join(f.dir, name)
	follow := f.start("spark1", "sh", "-c", "sparkrun logs -f --output raw "+name+" >"+shown)
	eventually(t, time.Minute, "logs shows output", func() bool {
		st, err := os.Stat(shown)
		return err == nil && st.Size() > 0
	})
	if len(f.find("spark2", w.path, "RANK=0")) == 0 {
		t.Error("the rank has ended with its launch")
	}
	f.do("kill", "spark1", "--agent")
	f.do("start", "spark1", "--agent")
	follow.wait().must(t)
	third, err := os.ReadFile(shown)
	if err != nil {
		t.Fatal(err)
	}
	w.await(t, "wrote", 1)

	var want bytes.Buffer
	for n := range lines {
		fmt.Fprintf(&want, "%d %s\n", n, strings.Repeat("x", n*7919%200))
	}
	if !strings.HasPrefix(want.String(), first) || first == "" {
		t.Errorf("the launch showed %d bytes that are no beginning of the output", len(first))
	}
	// The last line may be in part what it had when it was killed.
	whole := second[:strings.LastIndexByte(second, '\n')+1]
	if part := strings.ReplaceAll(whole, "[0] ", ""); part == "" || !strings.Contains("\n"+want.String(), "\n"+part) {
		t.Errorf("attach showed %d bytes that are no part of the output: %.300q", len(second), second)
	}
	if !bytes.Equal(third, want.Bytes()) {
		t.Errorf("logs -f over a restart of its agent: %d bytes, want %d (%x, want %x)", len(third), want.Len(), sha256.Sum256(third), sha256.Sum256(want.Bytes()))
	}
	if after := f.on("spark3", "sparkrun", "logs", "--output", "raw", name).must(t).out; after != want.String() {
		t.Errorf("logs: %d bytes, want %d", len(after), want.Len())
	}
	if j := f.jobs("spark3")[name]; j.State != "completed" {
		t.Errorf("job %+v, want it completed", j)
	}
	f.on(f.leader("spark3"), "sparkrun", "status", "--wait-nodes", "3", "--timeout", "45s").must(t)
	f.found(fmt.Sprintf("%d bytes, each once", want.Len()), "the output differs")
}

// logDir is where a job's output lies on a host, as this machine sees it.
func (f *field) logDir(host, name string) string {
	id := f.jobs("spark1")[name].ID
	on := f.find(host, "sparkrun agent", "")
	if id == "" || len(on) == 0 {
		return ""
	}
	return fmt.Sprintf("/proc/%d/root/var/lib/sparkrun/logs/%s/1", on[0], id)
}

// sizeOf is how much of a job's output lies on a host.
func (f *field) sizeOf(host, name string) (sum int64) {
	parts, _ := filepath.Glob(f.logDir(host, name) + "/rank-*.out*")
	for _, p := range parts {
		if st, err := os.Stat(p); err == nil && !strings.HasSuffix(p, ".times") {
			sum += st.Size()
		}
	}
	return sum
}

// Row 18. A disk of 16 MiB for the output of a host, partly taken by somebody
// else: two ranks write 40 MiB on it; every second time room is made. Then they
// write 2 MiB more.
func logFolderFull(t *testing.T, f *field, i int) {
	const disk, blocks, world = "/var/lib/sparkrun/logs", 320, 2 // of 64 KiB, each
	w := f.testimony(i)
	name := fmt.Sprintf("poured%d", i)
	f.on("spark2", "sh", "-c", "mount -t tmpfs -o size=16m tmpfs "+disk+" && head -c 6M /dev/zero >"+disk+"/somebody").must(t)
	defer func() { f.on("spark2", "umount", "-l", disk).must(t) }()

	go1 := filepath.Join(f.dir, fmt.Sprintf("go%d", i))
	run := f.launch("spark3", "--on spark2 --nproc-per-node 2 --output raw --name "+name, w.ranks("pours", blocks, go1))
	defer func() { _ = os.WriteFile(go1, nil, 0o644) }()
	for _, s := range w.await(t, "poured", world) {
		f.measured("a write", time.Duration(s.value), time.Second)
	}
	// Full to the last byte now. The cluster's record doesn't mind.
	f.on("spark2", "sh", "-c", "dd if=/dev/zero of="+disk+"/somebody2 bs=64k 2>/dev/null; true").must(t)
	f.on("spark1", "sparkrun", "launch", "exec", "--on", "spark1,spark3", "--", "true").must(t)
	if r := f.on("spark3", "sparkrun", "launch", "exec", "--on", "spark2", "--", "true"); r.code != 125 || !strings.Contains(r.err, "spark2") || !strings.Contains(r.err, disk) {
		t.Errorf("a launch whose output has no room: want 125 and the folder named, got %s", r)
	}
	roomIsMade := i%2 == 0
	if roomIsMade {
		f.on("spark2", "rm", disk+"/somebody", disk+"/somebody2").must(t)
	}
	if err := os.WriteFile(go1, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, s := range w.await(t, "poured", 2*world) {
		f.measured("a write", time.Duration(s.value), time.Second)
	}
	r := run.wait().must(t)
	kept := f.sizeOf("spark2", name)
	if int64(len(r.out)) != kept {
		t.Errorf("launch showed %d bytes, and %d are kept", len(r.out), kept)
	}
	for rank := range world {
		if told := regexp.MustCompile(fmt.Sprintf(`spark2: rank %d: \S+ \S+ of its stdout were lost at byte \d+: `, rank)); !told.MatchString(r.err) {
			t.Errorf("launch does not tell of the loss of rank %d: %.2000s", rank, r.err)
		}
	}
	if roomIsMade {
		f.assertCountedLoss(name, world*(blocks+16)<<16, kept)
	}
}

// assertCountedLoss checks that what is kept and what was counted as lost are
// what ranks wrote, to the byte.
func (f *field) assertCountedLoss(name string, wrote, kept int64) {
	f.t.Helper()
	b, err := os.ReadFile(f.logDir("spark2", name) + "/lost.json")
	if err != nil {
		f.t.Fatal(err)
	}
	var told []struct {
		Lost struct {
			Bytes int64 `json:"bytes"`
		} `json:"lost"`
	}
	if err := json.Unmarshal(b, &told); err != nil {
		f.t.Fatal(err)
	}
	lost := int64(0)
	for _, g := range told {
		lost += g.Lost.Bytes
	}
	if kept+lost != wrote || kept == 0 || lost == 0 {
		f.t.Errorf("%d bytes are kept and %d counted as lost, %d were written: %s", kept, lost, wrote, b)
	}
}

// Row 33. Eight ranks write 50 MB/s in all, once while nobody reads, once while
// the command that reads is stopped. What this machine has to do beside slows
// them now and then, a reader that holds them up would do so each time.
func readerStopped(t *testing.T, f *field, i int) {
	const world, rate = 8, 50_000_000 / 8
	seconds, tries, most := 2, 1, int64(96<<20)
	if *letter {
		seconds, tries, most = 15, 3, 64<<20
	}
	slowest := func(kind, flags string, stopped bool) time.Duration {
		w := testimony{f.testimony(i).path + kind}
		ranks := w.ranks("paced", seconds, rate)
		line := fmt.Sprintf("sparkrun launch exec --on spark2 --nproc-per-node %d --output raw %s %s | wc -c", world, flags, strings.Join(ranks, " "))
		run := f.start("spark3", "sh", "-c", line)
		w.await(t, "up", world)
		var cli []int
		if stopped {
			// Not the shell, whose command line has the same words in it.
			eventually(t, time.Minute, "the reader", func() bool { cli = f.reader("spark3"); return len(cli) == 1 })
			if err := syscall.Kill(cli[0], syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
		}
		worst := time.Duration(0)
		for _, s := range w.await(t, "wrote", world) {
			worst = max(worst, time.Duration(s.value))
		}
		for _, pid := range cli {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
		r := run.wait().must(t)
		n, _ := strconv.Atoi(strings.TrimSpace(r.out))
		if want := world * seconds * rate / 100 * 100; stopped && n != want {
			t.Errorf("the reader had %d bytes once it was woken, want %d", n, want)
		}
		return worst
	}
	held, slowed := int64(0), math.Inf(1)
	for try := range tries {
		base := slowest(fmt.Sprint("a", try), "-d", false)
		var agents []int
		for _, h := range []string{"spark2", "spark3"} {
			agents = append(agents, f.find(h, "sparkrun agent", "")...)
		}
		for _, pid := range agents {
			resetMemoryPeak(t, pid)
		}
		stopped := slowest(fmt.Sprint("b", try), "", true)
		slowed = min(slowed, 100*(stopped.Seconds()/base.Seconds()-1))
		for _, pid := range agents {
			held = max(held, memoryPeak(t, pid))
		}
		if slowed < 5 {
			break
		}
	}
	if ratio := float64(held); ratio > f.ratio {
		f.ratio, f.worst = ratio, fmt.Sprintf("slowed %.1f %%, agent %d MiB", slowed, held>>20)
	}
	if *letter && slowed >= 5 {
		t.Errorf("ranks were %.1f %% slower with a stopped reader than without one, or more, %d times", slowed, tries)
	}
	if held > most {
		t.Errorf("an agent held %d MiB", held>>20)
	}
}

func (f *field) reader(host string) (pids []int) {
	for _, p := range f.table(host) {
		if strings.HasPrefix(p.args, "sparkrun launch") {
			pids = append(pids, p.pid)
		}
	}
	return pids
}
