package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// counted is a rank that prints 1..n, a line each 50 ms.
const counted = `i=0; while [ $i -lt $N ]; do i=$((i+1)); echo $i; sleep 0.05; done`

// assertCounted checks that a rank's lines are 1..n, each once and in order.
func assertCounted(t *testing.T, r result, rank, n int) {
	t.Helper()
	got := 0
	for line := range strings.Lines(r.out) {
		if text, ok := strings.CutPrefix(line, fmt.Sprintf("[%d] ", rank)); ok {
			if got++; text != fmt.Sprintf("%d\n", got) {
				t.Fatalf("rank %d: line %d is %q", rank, got, text)
			}
		}
	}
	if got != n {
		t.Errorf("rank %d: %d lines, want %d", rank, got, n)
	}
}

// The host that leads loses power: another leads and launches within 3 s, jobs
// on the others do not notice, and the old leader comes back as a follower.
func TestLeaderLosesPower(t *testing.T) {
	l := up(t, 3)
	old := l.leader("spark1")
	rest := other(3, old)
	run := l.start(rest[1], "sparkrun", "launch", "exec", "--on", strings.Join(rest, ","), "--env", "N=120", "--", "sh", "-c", counted)
	eventually(t, 30*time.Second, "the job runs", func() bool { return strings.Contains(l.on(rest[0], "sparkrun", "ps").out, "running") })

	l.do("kill", old)
	off := time.Now()
	r := l.on(rest[0], "sparkrun", "launch", "exec", "--nodes", "2", "--", "hostname").must(t)
	t.Logf("launched again %s after the power went", time.Since(off).Round(10*time.Millisecond))
	if took := time.Since(off); took > 15*time.Second {
		t.Errorf("a launch from %s ended %s after %s lost power, want about 3 s: %s", rest[0], took, old, r)
	}
	if now := l.leader(rest[0]); now == "" || now == old {
		t.Errorf("leader is %q", now)
	}
	l.do("start", old)
	l.on(old, "sparkrun", "status", "--wait-nodes", "3", "--timeout", "45s").must(t)
	if now := l.leader(old); now == old {
		t.Errorf("%s leads again at once", old)
	}
	l.on(old, "sparkrun", "launch", "exec", "--nodes", "3", "--", "true").must(t)

	r = run.wait().must(t)
	assertCounted(t, r, 0, 120)
	assertCounted(t, r, 1, 120)
}

// An agent dies under a job, on a worker and on the launcher's own host: same
// processes, whole output, right exit code.
func TestAgentKilled(t *testing.T) {
	l := up(t, 3)
	for _, host := range []string{"spark2", "spark3"} { // spark3 launches
		run := l.start("spark3", "sparkrun", "launch", "exec", "--nodes", "3", "--env", "N=80", "--name", "job-"+host, "--",
			"sh", "-c", counted+"; exit $((RANK+4))")
		eventually(t, 30*time.Second, "the job runs", func() bool { return l.jobs("spark1")["job-"+host].State == "running" })
		before := l.processes(host)
		l.do("kill", host, "--agent")
		time.Sleep(500 * time.Millisecond)
		l.do("start", host, "--agent")
		l.on("spark1", "sparkrun", "status", "--wait-nodes", "3", "--timeout", "45s").must(t)
		if a, b := pidsOf(before), pidsOf(l.processes(host)); len(a) != 2 || !slices.Equal(a, b) {
			t.Errorf("shim and rank on %s were %v, and are %v after the restart", host, a, b)
		}
		r := run.wait()
		if r.code < 4 || r.code > 6 {
			t.Errorf("agent of %s killed: want 4, 5 or 6, got %s", host, r)
		}
		for rank := range 3 {
			// The first rank to exit ends the attempt: the others may miss the end.
			if n := strings.Count(r.out, fmt.Sprintf("[%d] ", rank)); n < 75 {
				t.Errorf("agent of %s killed: rank %d printed %d lines", host, rank, n)
			} else {
				assertCounted(t, r, rank, n)
			}
		}
		l.assertNothingLeft("spark1", "spark2", "spark3")
	}
}

// pidsOf picks the shim and the rank from a list of processes; not what the rank
// has forked, which has its name until it execs.
func pidsOf(processes string) (out []string) {
	var shims []string
	for _, m := range regexp.MustCompile(`(?m)^(\d+) +(\d+) +\S+ +(sparkrun shim|sh -c)`).FindAllStringSubmatch(processes, -1) {
		shim := m[3] == "sparkrun shim"
		if shim {
			shims = append(shims, m[1])
		}
		if shim || slices.Contains(shims, m[2]) {
			out = append(out, m[1])
		}
	}
	return out
}

// The leader's agent is killed between submits and their answers, again and
// again: no rank is ever started twice, no acknowledged job is lost. The ranks
// themselves bear witness, in a folder outside sparkrun.
func TestSubmitsUnderDyingLeaders(t *testing.T) {
	t.Parallel()
	witness := scratch(t)
	l := up(t, 3)
	type submit struct {
		name string
		r    result
	}
	var mu sync.Mutex
	var all []submit
	for round := range *rounds {
		leader := ""
		eventually(t, 30*time.Second, "somebody leads", func() bool {
			leader = l.leader("spark1")
			return leader != ""
		})
		from := other(3, leader)
		var wg sync.WaitGroup
		for i, host := range from {
			name := fmt.Sprintf("r%d-%d", round, i)
			run := l.start(host, "sparkrun", "launch", "exec", "--nodes", "2", "--name", name, "--on", strings.Join(from, ","), "--",
				"sh", "-c", "echo $$ >>"+witness+"/"+name+".$RANK; sleep 0.2")
			wg.Go(func() {
				r := run.wait()
				mu.Lock()
				all = append(all, submit{name, r})
				mu.Unlock()
			})
		}
		time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond) // anywhere in a submit, which takes about 40 ms
		l.do("kill", leader, "--agent")
		l.do("start", leader, "--agent")
		wg.Wait()
	}
	acked := 0
	for _, s := range all {
		starts := make([]int, 2)
		for rank := range 2 {
			b, err := os.ReadFile(filepath.Join(witness, fmt.Sprintf("%s.%d", s.name, rank)))
			if err == nil {
				starts[rank] = strings.Count(string(b), "\n")
			}
			if starts[rank] > 1 {
				t.Errorf("job %s: rank %d was started %d times", s.name, rank, starts[rank])
			}
		}
		if s.r.code == 0 {
			acked++
			if starts[0] != 1 || starts[1] != 1 {
				t.Errorf("job %s was reported done and its ranks were started %v times", s.name, starts)
			}
		} else {
			t.Errorf("job %s: %s", s.name, s.r)
		}
	}
	ended := l.jobs("spark1")
	for _, s := range all {
		if j, known := ended[s.name]; !known || j.ExitCode == nil {
			t.Errorf("job %s is lost: %+v", s.name, j)
		}
	}
	t.Logf("%d leaders killed under %d submits: %d ended well", *rounds, len(all), acked)
	l.assertNothingLeft("spark1", "spark2", "spark3")
}

// A pair whose only voter is gone: ranks live, reads work, a launch says in one
// line what is wrong and what helps.
func TestPairWithoutItsVoter(t *testing.T) {
	t.Parallel()
	l := up(t, 2, "--topology", "pair")
	l.on("spark1", "sparkrun", "launch", "exec", "-d", "--on", "spark2", "--name", "goes-on", "--env", "N=1000", "--", "sh", "-c", counted).must(t)
	eventually(t, 30*time.Second, "the job runs", func() bool { return l.jobs("spark2")["goes-on"].State == "running" })
	eventually(t, 30*time.Second, "spark2 has the record", func() bool {
		return strings.Contains(l.on("spark2", "sparkrun", "status").out, "standby")
	})
	l.do("kill", "spark1")

	r := l.on("spark2", "sparkrun", "launch", "exec", "--", "true")
	if r.code != 125 || strings.Count(strings.TrimSpace(r.err), "\n") > 1 || !strings.Contains(r.err, "spark1") ||
		!strings.Contains(r.err, "only voter") || !strings.Contains(r.err, "start its agent") {
		t.Errorf("a launch without a voter: %s", r)
	}
	r = l.on("spark2", "sparkrun", "ps")
	if r.code != 0 || !strings.Contains(r.out, "goes-on") || !strings.Contains(r.out, "running") || !strings.Contains(r.err, "no leader") {
		t.Errorf("ps without a voter: %s", r)
	}
	first := l.on("spark2", "sparkrun", "logs", "goes-on").must(t)
	second := first
	eventually(t, 30*time.Second, "the rank goes on", func() bool {
		second = l.on("spark2", "sparkrun", "logs", "goes-on")
		return len(second.out) > len(first.out)
	})

	l.do("start", "spark1")
	l.on("spark2", "sparkrun", "status", "--wait-nodes", "2", "--timeout", "45s").must(t)
	l.on("spark2", "sparkrun", "stop", "goes-on").must(t)
	l.assertNothingLeft("spark2")
}

// Every agent is killed and started, and a node comes back under another
// address: nobody has to join again.
func TestRestartsNeedNoJoin(t *testing.T) {
	t.Parallel()
	l := up(t, 3)
	for _, h := range other(3) {
		l.do("kill", h, "--agent")
	}
	for _, h := range other(3) {
		l.do("start", h, "--agent")
	}
	l.on("spark2", "sparkrun", "status", "--wait-nodes", "3", "--timeout", "45s").must(t)

	moving := other(3, l.leader("spark1"))[0]
	l.on(moving, "sh", "-c", "ip addr flush dev enP7s7 && ip addr add 172.30.0.99/24 dev enP7s7").must(t)
	// Gossip takes its time: the old address is dead after 3-5 s, free for another
	// after 5 s more, and who was refused tries again within 19 s.
	eventually(t, 40*time.Second, moving+" is found under its new address", func() bool {
		out := l.on(l.leader("spark1"), "sparkrun", "status").out
		return regexp.MustCompile(moving + ` +172\.30\.0\.99 +ready`).MatchString(out)
	})
	l.on("spark1", "sparkrun", "launch", "exec", "--nodes", "3", "--", "true").must(t)
}

// A node that dies while a job starts: the launch says so, nothing stays.
func TestNodeDiesBetweenPrepareAndStart(t *testing.T) {
	l := up(t, 3)
	victim := other(3, l.leader("spark1"))[0]
	// The victim prepares while its agent is stopped: it answers no more, as if
	// it had died at that very moment, and so cannot have been prepared.
	l.on(victim, "pkill", "-STOP", "-f", "sparkrun agent").must(t)
	run := l.start(l.leader("spark1"), "sparkrun", "launch", "exec", "--nodes", "3", "--", "sleep", "300")
	time.Sleep(200 * time.Millisecond)
	l.do("kill", victim)
	r := run.wait()
	if r.code != 125 || !strings.Contains(r.err, victim) || r.took > 20*time.Second {
		t.Errorf("want 125 naming %s, got %s", victim, r)
	}
	l.assertNothingLeft(other(3, victim)...)
}

// A node that is gone is known within 3 s, and a paused one is no node.
func TestLossIsKnown(t *testing.T) {
	l := up(t, 3)
	leader := l.leader("spark1")
	victim := other(3, leader)[0]
	l.do("cut", victim, "all")
	took := eventually(t, 30*time.Second, victim+" is away", func() bool {
		return regexp.MustCompile(victim + ` +\S+ +away`).MatchString(l.on(leader, "sparkrun", "status").out)
	})
	t.Logf("known after %s", took.Round(10*time.Millisecond))
	l.do("heal", victim)
	l.on(leader, "sparkrun", "status", "--wait-nodes", "3", "--timeout", "45s").must(t)
}

// The launcher itself is killed without a word: the job goes on.
func TestLauncherKilled(t *testing.T) {
	l := up(t, 2)
	run := l.start("spark2", "sparkrun", "launch", "exec", "--nodes", "2", "--name", "orphan", "--env", "N=60", "--", "sh", "-c", counted)
	eventually(t, 30*time.Second, "the job runs", func() bool { return l.jobs("spark1")["orphan"].State == "running" })
	l.on("spark2", "pkill", "-KILL", "-f", "sparkrun launch").must(t)
	run.cmd.Process.Signal(syscall.SIGKILL)
	run.wait()
	r := l.on("spark1", "sparkrun", "logs", "-f", "orphan").must(t)
	assertCounted(t, r, 0, 60)
	assertCounted(t, r, 1, 60)
	if j := l.jobs("spark1")["orphan"]; j.State != "completed" {
		t.Errorf("job %+v", j)
	}
}
