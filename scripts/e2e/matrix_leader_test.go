package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func fileLines(t testing.TB, path string) []string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Fields(string(b))
}

// startedOnce holds ranks in mode `starts` against what they should be: each there
// once, in one try.
func (w testimony) startedOnce(t *testing.T, ranks int) {
	t.Helper()
	starts := map[int]int{}
	for _, s := range w.hear(t, "start") {
		starts[s.rank]++
	}
	for rank := range ranks {
		if starts[rank] != 1 {
			t.Errorf("rank %d was started %d times", rank, starts[rank])
		}
	}
}

// agentOf gives the process of a host's agent.
func (f *field) agentOf(host string) int {
	f.t.Helper()
	pids := f.find(host, "sparkrun agent", "")
	if len(pids) != 1 {
		f.t.Fatalf("agents of %s: %v", host, pids)
	}
	return pids[0]
}

// restart starts a host's agent, and waits until all hosts are ready.
func (f *field) restart(hosts ...string) {
	f.t.Helper()
	for _, h := range hosts {
		f.do("start", h, "--agent")
	}
	f.on(hosts[0], "sparkrun", "status", "--wait-nodes", "3", "--timeout", "60s").must(f.t)
}

// Row 12. The leader's agent dies just after it has acknowledged a submit.
func leaderKilled(t *testing.T, f *field, i int) {
	leader := f.anyLeader("spark1")
	rest := other(3, leader)
	name := fmt.Sprintf("acked%d", i)
	agent := f.agentOf(leader)
	f.on(rest[0], "sparkrun", "launch", "-d", "--name", name, "exec", "--nodes", "1", "--", "true").must(t)
	began := time.Now()
	_ = syscall.Kill(agent, syscall.SIGKILL)
	reaped(t, agent)
	f.anyLeader(rest[0], leader)
	f.measured("another leads after", time.Since(began), 3*time.Second)
	if _, known := f.jobs(rest[1])[name]; !known {
		t.Errorf("job %s was acknowledged, and is not known to the next leader", name)
	}
	f.restart(leader)
}

// Row 14. The leader's machine stands still for half a minute, somewhere in the
// starts of jobs; others lead meanwhile. What it had in hand is obeyed by nobody.
func leaderStopped(t *testing.T, f *field, i int) {
	still := 30 * time.Second
	if !*letter {
		still = 6 * time.Second // an election and the jobs' ends are long over
	}
	leader := f.anyLeader("spark1")
	rest := other(3, leader)
	var jobs []*running
	var all []testimony
	for j := range 4 {
		w := f.testimony(100*i + j)
		all = append(all, w)
		jobs = append(jobs, f.launch(rest[j%2], "--nodes 2 --on "+strings.Join(rest, ","), w.ranks("starts", 0.3)))
		time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond)
	}
	agent := f.agentOf(leader)
	time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond)
	if err := syscall.Kill(agent, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	awake := sync.OnceFunc(func() { _ = syscall.Kill(agent, syscall.SIGCONT) })
	defer awake()
	for _, j := range jobs {
		if r := j.wait(); r.code != 0 {
			t.Errorf("a job that was being started when the leader was stopped: %s", r)
		}
	}
	time.Sleep(time.Until(began.Add(still)))
	awake()
	f.on(leader, "sparkrun", "status", "--wait-nodes", "3", "--timeout", "60s").must(t)
	f.launch(leader, "--nodes 3", []string{"--", "true"}).wait().must(t) // behind all that was in its queues
	for _, w := range all {
		w.startedOnce(t, 2)
	}
	f.found("each rank once", "a rank was started twice, or never")
}

// Row 15. A follower loses its whole record. It has caught up when it votes again
// and the leader records with no other's help: the third host's agent stands still.
func followerWiped(t *testing.T, f *field, _ int) {
	leader := f.anyLeader("spark1")
	wiped, third := other(3, leader)[0], other(3, leader)[1]
	f.do("kill", wiped, "--agent")
	f.on(wiped, "sh", "-c", "rm -r /var/lib/sparkrun/raft/*").must(t)
	began, said := time.Now(), len(f.log(leader))
	f.restart(wiped)
	f.hasRole(leader, wiped, "voter") // it has lost its vote, and is taken in anew
	for line := range strings.Lines(f.log(leader)[said:]) {
		if strings.Contains(line, `"node down" node=`+wiped) && !strings.Contains(line, "does not answer") { // a busy machine may be silent
			t.Errorf("%s was taken for lost as it was taken in: %s", wiped, line)
		}
	}
	agent := f.agentOf(third)
	if err := syscall.Kill(agent, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(agent, syscall.SIGCONT)
	f.on(leader, "sparkrun", "launch", "exec", "--on", leader+","+wiped, "--", "true").must(t)
	f.measured("caught up after", time.Since(began), 30*time.Second)
	_ = syscall.Kill(agent, syscall.SIGCONT)
	f.on(leader, "sparkrun", "status", "--wait-nodes", "3", "--timeout", "60s").must(t)
}

// Row 24. A leader that is cut off is asked for jobs while others record new ones.
// Its answers are without them only if they say that no leader stands behind them.
func isolatedLeaderRead(t *testing.T, f *field, i int) {
	leader := f.anyLeader("spark1")
	rest := other(3, leader)
	type answer struct {
		asked time.Time
		r     result
	}
	var answers []answer
	stop := make(chan struct{})
	var asking sync.WaitGroup
	asking.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				at := time.Now()
				answers = append(answers, answer{at, f.on(leader, "sparkrun", "ps", "--all")})
			}
		}
	})
	f.do("cut", leader, "all")
	acked := map[string]time.Time{}
	for j := range 5 {
		name := fmt.Sprintf("unseen%d-%d", i, j)
		f.on(rest[j%2], "sparkrun", "launch", "-d", "--name", name, "exec", "--on", rest[0], "--", "true").must(t)
		acked[name] = time.Now()
	}
	last := time.Now()
	time.Sleep(time.Second) // for answers after the last one
	f.healed(leader)
	close(stop)
	asking.Wait()
	alone, after := 0, 0
	for _, a := range answers {
		if a.asked.After(last) {
			after++
		}
		if a.r.code != 0 || a.r.err != "" {
			alone++
			continue
		}
		for name, at := range acked {
			if a.asked.After(at) && !strings.Contains(a.r.out, name) {
				t.Errorf("%s answered, %s after %s was acknowledged elsewhere, without it and without a word: %s", leader, a.asked.Sub(at), name, a.r)
			}
		}
	}
	if after == 0 || alone == 0 {
		t.Errorf("of %d answers %d say that no leader gave them, %d were asked for after the last submit", len(answers), alone, after)
	}
	f.found("no stale answer", "a stale answer")
}

// Row 30. All agents die under a job and are started again; TestSixteenAgentsRestart
// does so with sixteen.
func allRestart(t *testing.T, f *field, i int) {
	w := f.testimony(i)
	name := fmt.Sprintf("through%d", i)
	f.launch("spark1", "-d --max-restarts 3 --nodes 3 --name "+name, w.ranks("beats")).wait().must(t)
	w.await(t, "beat", 3)
	var agents []int
	for _, h := range hosts {
		agents = append(agents, f.agentOf(h))
	}
	for _, pid := range agents {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	reaped(t, agents...)
	began := time.Now()
	f.restart(hosts...)
	f.measured("all ready after", time.Since(began), time.Minute)
	eventually(t, time.Minute, "the job is known to run", func() bool { return f.jobs("spark2")[name].State == "running" })
	f.on("spark3", "sparkrun", "stop", name).must(t)
	if n := w.tries(t); n != 1 {
		t.Errorf("the job had %d tries", n)
	}
}
