package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var smallJobs = flag.Int("jobs", 10, "how many jobs TestAgentsStaySmall runs")

// What an agent may hold, in MB of resident memory: idle, also after 1,000 jobs, and while ranks write 50 MB/s that
// somebody does not read.
const mostMB = 64

// givenBack is within what an agent gives back what a burst of jobs took.
const givenBack = 6 * time.Minute

// footprint is what an agent holds of its host.
type footprint struct {
	threads, rssMB, peakMB int
	anonMB                 int // of rssMB: what is not its program's or another file's
	open                   descriptors
	left                   string // files of jobs, and groups
}

// footprint looks at a host. The peak is that since the look before.
func (l *lab) footprint(host string) footprint {
	l.t.Helper()
	const script = `p=$(pgrep -of 'sparkrun agent') || exit
echo $(ls /proc/$p/task | wc -l) $(awk '/^(VmHWM|VmRSS|RssAnon)/{print $2}' /proc/$p/status)
echo 5 > /proc/$p/clear_refs
find /run/sparkrun/jobs -mindepth 1`
	out := l.on(host, "sh", "-c", script).must(l.t).out
	var f footprint
	line, left, _ := strings.Cut(out, "\n")
	if _, err := fmt.Sscan(line, &f.threads, &f.peakMB, &f.rssMB, &f.anonMB); err != nil {
		l.t.Fatalf("%s: %v in %q", host, err, out)
	}
	for _, kB := range []*int{&f.peakMB, &f.rssMB, &f.anonMB} {
		*kB = *kB * 1024 / 1e6
	}
	f.open, f.left = l.openOf(host), left+l.groups(host)
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

// over says in words which figures are above what an agent of so many may hold after jobs.
func (was footprint) over(now footprint, jobs, members int) (over []string) {
	connections, rest, names := was.open.more(now.open)
	if connections > jobs/2 || rest > 0 {
		over = append(over, fmt.Sprintf("descriptors: %d connections between agents and %d others are new: %s", connections, rest, strings.Join(names, ", ")))
	}
	if now.rssMB > mostMB+members/2 { // a leader keeps half a MB of each (cluster.memberMemory)
		over = append(over, fmt.Sprintf("memory: %d MB, of it %d anonymous; before %d, %d", now.rssMB, now.anonMB, was.rssMB, was.anonMB))
	}
	if now.left != "" {
		over = append(over, "left of jobs: "+now.left)
	}
	return over
}

// Jobs come and go: their hosts' agents hold what they held before, and weigh what they may.
//
//	go test ./scripts/e2e -run AgentsStaySmall -jobs 1000 -timeout 30m
//
// A connection between agents need not be a job's: raft keeps up to three to each peer, from when it first has use for them,
// for as long as both live, and a new leader makes its own. So a few new ones are nothing, fewer than one a job; and
// where the leader has changed meanwhile, all is done again from what there is then.
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
	for try := 1; ; try++ {
		jobs(8)
		// Output that is followed leaves an inotify instance, which the next reader gets.
		l.on("spark2", "sparkrun", "launch", "exec", "--nodes", "3", "--", "sleep", "1").must(t)
		l.assertNothingLeft(hosts...)
		leadership := l.leadership("spark2")
		before := map[string]footprint{}
		for _, h := range hosts {
			before[h] = l.footprint(h)
		}
		jobs(*smallJobs)
		l.assertNothingLeft(hosts...)
		tooMuch := map[string][]string{}
		for _, h := range hosts {
			was, now := before[h], l.footprint(h)
			over := was.over(now, *smallJobs, len(hosts))
			for began := time.Now(); over != nil && time.Since(began) < givenBack && l.leadership("spark2") == leadership; {
				time.Sleep(2 * time.Second)
				now = l.footprint(h)
				over = was.over(now, *smallJobs, len(hosts))
			}
			connections, _, _ := was.open.more(now.open)
			t.Logf("%s after %d jobs: %d connections more, %d threads, %d MB; before %d threads, %d MB", h, *smallJobs, connections, now.threads, now.rssMB, was.threads, was.rssMB)
			if over != nil {
				tooMuch[h] = over
			}
		}
		if is := l.leadership("spark2"); len(tooMuch) > 0 && is != leadership && try < 5 {
			t.Logf("the leader has changed (%s, %s), so all is done again; there was too much of %v", leadership, is, tooMuch)
			continue
		}
		for _, h := range hosts {
			// Go keeps as many threads as its busiest moment had. A thread that does not come back has a goroutine, too.
			if n := l.footprint(h).threads; n > 40 {
				t.Errorf("%s has %d threads", h, n)
			}
			for _, figure := range tooMuch[h] {
				t.Errorf("%s holds too much: %s", h, figure)
			}
		}
		return
	}
}

// leadership names who leads, and raft's term. It differs from any other where nobody could say.
func (l *lab) leadership(host string) string {
	l.t.Helper()
	r := l.on(host, "sparkrun", "raft", "status", "--json")
	var st struct {
		Leader string
		Term   uint64
	}
	if r.code != 0 || json.Unmarshal([]byte(r.out), &st) != nil || st.Leader == "" {
		return "unknown at " + time.Now().String()
	}
	return fmt.Sprintf("%s in term %d", st.Leader, st.Term)
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
	if peak > mostMB {
		t.Errorf("an agent held %d MB while a reader was stopped, more than %d", peak, mostMB)
	}
	l.on("spark2", "pkill", "-CONT", "-f", "^sparkrun launch").must(t)
	l.on("spark2", "pkill", "-INT", "-f", "^sparkrun launch").must(t)
	run.wait()
}
