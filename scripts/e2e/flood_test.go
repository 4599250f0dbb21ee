package e2e

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var halfOpen = flag.Int("halfopen", 600, "TestFloodFromAStranger: half-open handshakes in all; the bar is 5000")

// flood holds that many connections open, to each host in turn: half of them say nothing, the others begin a handshake.
const flood = `
import resource, socket, sys, time
n, path, to = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
resource.setrlimit(resource.RLIMIT_NOFILE, (n + 100, n + 100))
held = []
for i in range(n):
    s = socket.create_connection((to[i % len(to)], 7940), timeout=60)
    if i // len(to) % 2:
        try: s.sendall(bytes([22, 3, 1, 2, 0]))
        except OSError: pass # closed already
    held.append(s)
open(path, "w").write(str(len(held)))
time.sleep(600)
`

// A machine that is no member holds thousands of handshakes open, to every node. A job's ranks and the cluster go on,
// users are served, each node has written down who it was, in few lines, and has nothing left of it afterwards.
func TestFloodFromAStranger(t *testing.T) {
	l := up(t, 4)
	dir := scratch(t)
	l.on("spark4", "sparkrun", "leave", "--yes").must(t)
	l.on("spark1", "sparkrun", "status", "--wait-nodes", "3", "--timeout", "45s").must(t)
	members := []string{"spark1", "spark2", "spark3"}
	job := strings.TrimSpace(l.on("spark1", "sparkrun", "launch", "-d", "--nodes", "3", "exec", "--", "sleep", "600").must(t).out)
	before := map[string]footprint{}
	for _, h := range members {
		before[h] = l.footprint(h)
	}

	done := filepath.Join(dir, "flooded")
	began := time.Now()
	r := l.start("spark4", python, "-c", flood, strconv.Itoa(*halfOpen), done, "172.30.0.11", "172.30.0.12", "172.30.0.13")
	served := 0
	for flooded := false; !flooded; served++ {
		_, err := os.Stat(done)
		flooded = err == nil // and one more launch then
		l.on("spark2", "sparkrun", "launch", "--nodes", "3", "exec", "--", "true").must(t)
		if time.Since(began) > 2*time.Minute {
			t.Fatalf("%d connections were not made in two minutes: %s", *halfOpen, l.on("spark4", "ss", "-tn"))
		}
	}
	t.Logf("%d half-open handshakes in %s, %d launches on three nodes meanwhile", *halfOpen, time.Since(began).Round(100*time.Millisecond), served)
	for _, h := range members {
		lines := 0
		eventually(t, time.Minute, h+" has written down who it was", func() bool {
			lines = 0
			b, err := os.ReadFile("/proc/" + l.init(h) + "/root/var/lib/sparkrun/audit.log")
			check(t, err)
			for text := range bytes.Lines(b) {
				var a struct{ What, From, Outcome, Why string }
				check(t, json.Unmarshal(text, &a))
				if a.What == "handshake" && a.Outcome == "refused" && strings.HasPrefix(a.From, "172.30.0.14:") && a.Why != "" {
					lines++
				}
			}
			return lines > 0
		})
		if lines > 200 {
			t.Errorf("%s: a stranger has had %d lines written", h, lines)
		}
	}
	if st := l.on("spark3", "sparkrun", "status", "--wait-nodes", "3", "--timeout", "45s").must(t); strings.Count(st.out, " ready ") != 3 {
		t.Errorf("status: %s", st)
	}
	if ps := l.on("spark3", "sparkrun", "ps").must(t); !strings.Contains(ps.out, job) || !strings.Contains(ps.out, "running") {
		t.Errorf("the job of before: %s", ps)
	}
	check(t, r.cmd.Process.Kill())
	for _, h := range members {
		eventually(t, time.Minute, h+" has let go of it", func() bool {
			for name := range l.openOf(h) {
				if strings.Contains(name, "172.30.0.14") {
					return false
				}
			}
			return true
		})
		now := l.footprint(h)
		t.Logf("%s: %d MB before, %d after, %d at most", h, before[h].rssMB, now.rssMB, now.peakMB)
	}
	l.on("spark1", "sparkrun", "stop", job, "--kill").must(t)
}
