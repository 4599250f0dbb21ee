package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Every voter loses its raft folder. A snapshot brings the cluster back under a
// new epoch: members and history are there, what ran goes on, nothing is started
// twice, a launch works. (That a launch of before, sent again, is not started
// cmd/node's TestRestore shows, which can choose its id.)
func TestRestore(t *testing.T) {
	t.Parallel()
	l, w := up(t, 3), newStartFile(t)
	l.on("spark1", "sparkrun", "launch", "exec", "--name", "history", "--", "sh", "-c", w.says()).must(t)
	l.on("spark1", "sparkrun", "launch", "-d", "exec", "--nodes", "3", "--name", "goes-on", "--env", "N=100000", "--", "sh", "-c", w.says()+counted).must(t)
	file := filepath.Join(scratch(t), "a.snap")
	l.on("spark2", "sparkrun", "raft", "snapshot", file).must(t)
	if r := l.on("spark3", "sparkrun", "raft", "restore", "--yes", file); r.code != 1 || !strings.Contains(r.err, "leads") {
		t.Errorf("a restore beside a leader: %s", r)
	}

	for _, h := range other(3) {
		l.do("kill", h, "--agent")
	}
	for _, h := range other(3) {
		l.on(h, "rm", "-r", "/var/lib/sparkrun/raft").must(t)
	}
	for _, h := range other(3) {
		l.do("start", h, "--agent")
	}
	eventually(t, time.Minute, "nobody leads, and it is said why", func() bool {
		r := l.on("spark2", "sparkrun", "raft", "status")
		return r.code == 0 && strings.Contains(r.out, "no leader") && strings.Contains(r.out, "blank") && strings.Contains(r.err, "raft restore FILE")
	})
	r := l.on("spark2", "sparkrun", "raft", "restore", "--yes", file).must(t)
	if !strings.Contains(r.out, "spark2 leads, in epoch 2") {
		t.Errorf("restore: %s", r)
	}
	l.on("spark1", "sparkrun", "status", "--wait-nodes", "3", "--timeout", "60s").must(t)
	eventually(t, time.Minute, "three vote again", func() bool {
		return strings.Count(l.on("spark1", "sparkrun", "raft", "status").out, " voter ") == 2
	})
	jobs := l.jobs("spark3")
	if jobs["history"].State != "completed" {
		t.Errorf("the history: %+v", jobs["history"])
	}
	eventually(t, time.Minute, "what ran goes on", func() bool { return l.jobs("spark3")["goes-on"].State == "running" })
	l.on("spark3", "sparkrun", "launch", "exec", "--nodes", "3", "--", "sh", "-c", w.says()).must(t)
	l.on("spark3", "sparkrun", "stop", "goes-on").must(t)
	w.startedOnce()
	l.assertNothingLeft("spark1", "spark2", "spark3")
}
