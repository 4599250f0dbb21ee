package e2e

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A rank that waits for a file server which never answers survives KILL: stop
// says so, its machine gets no jobs and says why, and is back by itself once the
// rank is gone. That lasts through an agent's death and a change of leader.
func TestUnkillableRank(t *testing.T) {
	server := filepath.Join(scratch(t), "hungfs")
	if out, err := exec.Command("go", "build", "-o", server, "../hungfs").CombinedOutput(); err != nil {
		t.Fatalf("build hungfs: %v\n%s", err, out)
	}
	l := up(t, 3)
	first := l.leader("spark1")
	rest := other(3, first)
	host, asked := rest[0], rest[1]
	l.on(host, "mkdir", "/run/hung").must(t)
	fs := l.start(host, "sh", "-c", "exec "+server+" /run/hung >/run/hung.log")
	says := func(what string) func() bool {
		return func() bool { return l.on(host, "grep", "-q", what, "/run/hung.log").code == 0 }
	}
	eventually(t, 30*time.Second, "the file server", says("mounted"))
	// Its shell is ended by TERM; the program below it is the one that stays.
	run := l.start(asked, "sparkrun", "launch", "exec", "--on", host+","+asked, "--name", "hung", "--grace", "1s", "--",
		"sh", "-c", `test $RANK = 0 || exec sleep 300; cat /run/hung/file; exit`)
	eventually(t, 30*time.Second, "a rank that waits for the file server", says("reading"))

	said := regexp.MustCompile(`rank 0: process \d+ \(cat\) cannot be killed: .*state D`)
	began := time.Now()
	stop := l.on(asked, "sparkrun", "stop", "hung")
	if stop.code == 0 || !said.MatchString(stop.err) || !strings.Contains(stop.err, "on "+host) || time.Since(began) > time.Minute {
		t.Errorf("a stop in vain: %s", stop)
	}
	if r := run.wait(); r.code == 0 || !said.MatchString(r.err) {
		t.Errorf("a launch whose rank stays: %s", r)
	}
	shown := l.on(first, "sparkrun", "ps", "hung").must(t)
	if !said.MatchString(shown.out) {
		t.Errorf("ps does not say which rank is left: %s", shown)
	}

	drained := func(when string) {
		t.Helper()
		eventually(t, time.Minute, host+" is drained "+when, func() bool { return l.state(asked, host) == "drained" })
		st := l.on(asked, "sparkrun", "status").must(t)
		if !said.MatchString(st.err) {
			t.Errorf("%s: status does not say why: %s", when, st)
		}
		if r := l.on(asked, "sparkrun", "launch", "exec", "--on", host, "--", "true"); r.code != 125 || !said.MatchString(r.err) {
			t.Errorf("%s: a job for a drained machine: %s", when, r)
		}
	}
	drained("after the stop")
	t.Logf("drained %s after the stop", time.Since(began).Round(100*time.Millisecond))
	l.on(asked, "sparkrun", "launch", "exec", "--nodes", "2", "--", "true").must(t)
	l.do("kill", host, "--agent")
	l.do("start", host, "--agent")
	drained("after its agent was killed")
	l.do("kill", first, "--agent")
	eventually(t, 30*time.Second, "another leader", func() bool { now := l.leader(asked); return now != "" && now != first })
	l.do("start", first, "--agent")
	drained("with another leader")

	l.on(host, "pkill", "-KILL", "-x", "hungfs").must(t) // its dying answers all
	fs.wait()
	eventually(t, time.Minute, host+" is back", func() bool { return l.state(asked, host) == "ready" })
	l.on(asked, "sparkrun", "launch", "exec", "--nodes", "3", "--", "true").must(t)
	l.assertNothingLeft("spark1", "spark2", "spark3")
}

// state is what `status` on one host calls another.
func (l *lab) state(asked, of string) string {
	l.t.Helper()
	var st struct {
		Nodes []struct{ Host, State string }
	}
	if r := l.on(asked, "sparkrun", "status", "--json"); json.Unmarshal([]byte(r.out), &st) != nil {
		return ""
	}
	for _, n := range st.Nodes {
		if n.Host == of {
			return n.State
		}
	}
	return ""
}
