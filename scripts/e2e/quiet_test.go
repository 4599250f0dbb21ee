package e2e

import (
	"flag"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

var quietFor = flag.Duration("quiet-for", 0, "for how long TestNobodyDies loads eight hosts with which nothing is wrong")

// Eight hosts are busy and nothing is broken: ranks write on all of them, two
// hosts read it, others launch and ask. Nobody may be taken for dead, nobody be
// elected, and no launch fail, for as long as scripts/soak_quiet says.
func TestNobodyDies(t *testing.T) {
	if *quietFor == 0 {
		t.Skip("takes an hour: ./scripts/soak_quiet")
	}
	const nodes = 8
	l := up(t, nodes)
	l.on("spark1", "sparkrun", "status", "--wait-nodes", fmt.Sprint(nodes), "--timeout", "100s").must(t)
	const writes = `import sys, time
while True:
    for _ in range(20):
        print("step 1234 loss 0.12345678 lr 3e-4 tokens/s 12345.6 mem 45.6 GiB")
    sys.stdout.flush(); time.sleep(0.2)`
	l.on("spark2", "sparkrun", "launch", "exec", "-d", "--name", "writes", "--nodes", fmt.Sprint(nodes), "--nproc-per-node", "2", "--", python, "-I", "-S", "-c", writes).must(t)
	eventually(t, 2*time.Minute, "the ranks run", func() bool { return l.jobs("spark1")["writes"].State == "running" })
	for _, h := range []string{"spark3", "spark4"} {
		reader := l.start(h, "sh", "-c", "exec sparkrun logs -f writes >/dev/null 2>&1")
		t.Cleanup(func() { _ = reader.cmd.Process.Kill(); _ = reader.cmd.Wait() }) // the lab's end ends the other half
	}

	began := time.Now()
	first := l.view("spark1")
	over := make(chan struct{})
	var typing sync.WaitGroup
	var mu sync.Mutex
	var took times
	var failed []string
	launches := func(from, flags string, pause time.Duration) {
		for {
			select {
			case <-over:
				return
			case <-time.After(pause):
			}
			r := l.on(from, append(append([]string{"sparkrun", "launch", "exec"}, strings.Fields(flags)...), "--", "true")...)
			mu.Lock()
			if took = append(took, r.took); r.code != 0 {
				failed = append(failed, time.Now().Format(time.TimeOnly)+" "+r.String())
			}
			mu.Unlock()
		}
	}
	typing.Go(func() { launches("spark5", "--nodes 8", 3*time.Second) })
	typing.Go(func() { launches("spark6", "--nodes 2", time.Second) })
	typing.Go(func() { launches("spark7", "--nodes 1", time.Second) })

	away, restarted := 0, 0
	for lasts := time.Until(began.Add(*quietFor)); lasts > 0; lasts = time.Until(began.Add(*quietFor)) {
		time.Sleep(min(lasts, 10*time.Second))
		for _, h := range other(nodes) {
			if len(l.find(h, "sparkrun agent", "")) == 0 { // as the unit would; a disk that stands still ends it
				restarted++
				l.do("start", h, "--agent")
			}
		}
		if st := l.view("spark8"); st.Leader != "" {
			for _, n := range st.Nodes {
				if n.State != "ready" {
					away++
				}
			}
		}
		if minute := time.Since(began) / time.Minute; time.Since(began)-minute*time.Minute < 10*time.Second {
			mu.Lock()
			fmt.Printf("%s load %s: %d launches, %d failed, %d nodes down, %d dead by gossip, %d elections\n", time.Now().Format(time.TimeOnly), machineLoad(),
				len(took), len(failed), len(l.words("node down", began)), len(l.deaths(began)), l.view("spark1").Term-first.Term)
			mu.Unlock()
		}
	}
	close(over)
	typing.Wait()

	down, dead, now := l.words("node down", began), l.deaths(began), l.view("spark1")
	fmt.Printf("%d hosts, %s, load %s now\n%-14s%s\n%-14s%s\n", nodes, time.Since(began).Round(time.Second), machineLoad(), "", timesHead, "launches", took)
	for _, w := range append(down, dead...) {
		t.Errorf("nobody died, and %s says %s", w.host, w.line)
	}
	if now.Term != first.Term {
		t.Errorf("nobody died, and the term was %d and is %d", first.Term, now.Term)
	}
	if away > 0 || restarted > 0 {
		t.Errorf("%d times a node was seen that is not ready; %d agents ended", away, restarted)
	}
	for _, r := range failed {
		t.Errorf("a launch failed: %s", r)
	}
	if j := l.jobs("spark1")["writes"]; j.State != "running" {
		t.Errorf("the job that writes is %+v", j)
	}
	l.on("spark1", "sparkrun", "stop", "writes").must(t)
}

// deaths are those that gossip has told of since.
func (l *lab) deaths(since time.Time) (dead []word) {
	for _, w := range l.words("gossip", since) {
		if strings.Contains(w.line, "kind=dead") {
			dead = append(dead, w)
		}
	}
	return dead
}
