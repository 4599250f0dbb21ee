package e2e

import (
	"debug/elf"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var smallJobs = flag.Int("jobs", 10, "how many jobs TestAgentsStaySmall runs")

// What an agent may hold, in MB of resident memory: idle, also after 1,000 jobs, and while ranks write 50 MB/s that
// somebody does not read. Its program's own pages are 21 of them.
const (
	idleMB = 35
	busyMB = 64
)

// The linker drops methods that nothing calls, unless something linked in looks
// methods up by a name it is given, as text/template does: then it keeps them all,
// and an agent has 4 MB more of its program in memory.
func TestUnusedMethodsAreDropped(t *testing.T) {
	f, err := elf.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	has := func(name string) bool {
		return slices.ContainsFunc(symbols, func(s elf.Symbol) bool { return s.Name == name })
	}
	if !has("main.main") {
		t.Fatal("the program has no symbols to look at")
	}
	// One that nothing here calls.
	if has("reflect.(*Value).MethodByName") {
		t.Error("the program has methods that nothing calls: see usageOf in cmd/sparkrun/app.go")
	}
	var loaded uint64
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD {
			loaded += p.Filesz
		}
	}
	t.Logf("%.1f MB are loaded of the program", float64(loaded)/1e6)
}

// footprint is what an agent holds of its host.
type footprint struct {
	fds, threads, rssMB, peakMB int
	left                        string // files of jobs, and groups
}

// footprint looks at a host. The peak is that since the look before.
func (l *lab) footprint(host string) footprint {
	l.t.Helper()
	const script = `p=$(pgrep -of 'sparkrun agent') || exit
echo $(ls /proc/$p/fd | wc -l) $(ls /proc/$p/task | wc -l) $(awk '/^VmRSS|^VmHWM/{print $2}' /proc/$p/status | sort -n)
echo 5 > /proc/$p/clear_refs
find /run/sparkrun/jobs -mindepth 1`
	out := l.on(host, "sh", "-c", script).must(l.t).out
	var f footprint
	line, left, _ := strings.Cut(out, "\n")
	if _, err := fmt.Sscan(line, &f.fds, &f.threads, &f.rssMB, &f.peakMB); err != nil {
		l.t.Fatalf("%s: %v in %q", host, err, out)
	}
	f.rssMB, f.peakMB, f.left = f.rssMB*1024/1e6, f.peakMB*1024/1e6, left+l.groups(host)
	return f
}

// groups are the cgroups of a host's jobs, seen from outside of it.
func (l *lab) groups(host string) string {
	l.t.Helper()
	var found []string
	for _, hierarchy := range []string{"", "unified/", "freezer/"} {
		here, err := filepath.Glob("/sys/fs/cgroup/" + hierarchy + "sparkrun-lab/" + l.name + "/" + host + "/sparkrun/*-*")
		if err != nil {
			l.t.Fatal(err)
		}
		found = append(found, here...)
	}
	return strings.Join(found, "\n")
}

// Jobs come and go: their hosts' agents hold what they held before, and weigh what they may.
//
//	go test ./scripts/e2e -run AgentsStaySmall -jobs 1000 -timeout 30m
func TestAgentsStaySmall(t *testing.T) {
	l := up(t, 3)
	hosts := []string{"spark1", "spark2", "spark3"}
	jobs := func(n int) {
		t.Helper()
		for n > 0 {
			batch := min(n, 100) // within what a command may take
			n -= batch
			l.on("spark2", "sh", "-c", fmt.Sprintf("seq %d | xargs -P 4 -I{} sparkrun launch exec --nodes 3 -- true", batch)).must(t)
		}
	}
	jobs(8)
	l.assertNothingLeft(hosts...)
	before := map[string]footprint{}
	for _, h := range hosts {
		before[h] = l.footprint(h)
	}
	jobs(*smallJobs)
	l.assertNothingLeft(hosts...)
	for _, h := range hosts {
		was, now := before[h], footprint{}
		small := func() bool {
			now = l.footprint(h)
			// Of threads only the kernel's busy moments decide how many there are: they are bounded, not counted.
			return now.fds <= was.fds && now.threads <= 40 && now.rssMB <= idleMB && now.left == ""
		}
		// What a burst of jobs took is given back in the minutes after it.
		for began := time.Now(); !small() && time.Since(began) < 6*time.Minute; {
			time.Sleep(2 * time.Second)
		}
		t.Logf("%s after %d jobs: %d descriptors, %d threads, %d MB; before %d, %d, %d", h, *smallJobs, now.fds, now.threads, now.rssMB, was.fds, was.threads, was.rssMB)
		if !small() {
			t.Errorf("%s holds %+v, before %+v", h, now, was)
		}
	}
}

// Nobody reads what ranks write: they go on, and no agent on the way keeps it in its memory.
func TestAgentsStaySmallWhileReaderIsStopped(t *testing.T) {
	const total = 150 // MB, in 3 s: 50 MB/s
	l := up(t, 2, "--topology", "pair")
	const rank = `import os, time
line = b'x' * 99 + b'\n'
for _ in range(30):
    os.write(1, line * 6250); time.sleep(0.1)
time.sleep(1000)`
	run := l.start("spark2", "sparkrun", "launch", "exec", "--on", "spark1", "--nproc-per-node", "8", "--", python, "-c", rank)
	written := func() (mb int) {
		out := l.on("spark1", "sh", "-c", "cat /var/lib/sparkrun/logs/*/1/rank-*.out 2>/dev/null | wc -c").must(t).out
		if _, err := fmt.Sscan(out, &mb); err != nil {
			t.Fatalf("%v in %q", err, out)
		}
		return mb / 1e6
	}
	eventually(t, time.Minute, "output", func() bool { return written() > 0 })
	l.on("spark2", "pkill", "-STOP", "-f", "^sparkrun launch").must(t)
	if l.groups("spark1") == "" {
		t.Error("a job that runs has no cgroup: they are looked for in the wrong place")
	}
	peak := 0
	look := func() {
		for _, h := range []string{"spark1", "spark2"} {
			peak = max(peak, l.footprint(h).peakMB)
		}
	}
	eventually(t, 2*time.Minute, "all of the output", func() bool { look(); return written() >= total })
	look()
	t.Logf("at most %d MB resident", peak)
	if peak > busyMB {
		t.Errorf("an agent held %d MB while a reader was stopped, more than %d", peak, busyMB)
	}
	l.on("spark2", "pkill", "-CONT", "-f", "^sparkrun launch").must(t)
	l.on("spark2", "pkill", "-INT", "-f", "^sparkrun launch").must(t)
	run.wait()
}
