package e2e

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// tries is in how many tries ranks of mode `beats` were seen. No two of them may
// have lived at one time.
func (w testimony) tries(t *testing.T) int {
	t.Helper()
	first, last := map[int64]time.Time{}, map[int64]time.Time{}
	for _, s := range w.hear(t, "beat") {
		if at, seen := first[s.value]; !seen || s.at.Before(at) {
			first[s.value] = s.at
		}
		if s.at.After(last[s.value]) {
			last[s.value] = s.at
		}
	}
	for a := range first {
		for b := range first {
			if a < b && !last[a].Before(first[b]) {
				t.Errorf("try %d was there until %s after try %d had begun", a, last[a].Sub(first[b]), b)
			}
		}
	}
	return len(first)
}

// shortly is how long a network is broken: as long as the matrix asks for, or just
// longer than whatever waits for it here (--node-timeout 1s, a lost node in 3 s).
func shortly(d time.Duration) time.Duration {
	if *letter {
		return d
	}
	return 6 * time.Second
}

// beating launches a job that is tried again when a host of it is silent for 1 s.
func (f *field) beating(w testimony, name, on string) {
	f.t.Helper()
	f.launch("spark1", "-d --max-restarts 3 --node-timeout 1s --name "+name+" --on "+on, w.ranks("beats")).wait().must(f.t)
	w.await(f.t, "beat", strings.Count(on, ",")+1)
}

// healed plugs a host in again, and waits until jobs can use it: what sysfs tells of
// its ports comes a moment after their links.
func (f *field) healed(host string) {
	f.t.Helper()
	f.do("heal", host)
	eventually(f.t, 2*time.Minute, "jobs run on "+host+" again", func() bool {
		return f.on(host, "sparkrun", "launch", "exec", "--on", host+","+other(2, host)[0], "--", "true").code == 0
	})
}

// Row 21. A worker is cut off from everybody under a job. The next try waits until
// it has said that nothing runs there.
func workerPartitioned(t *testing.T, f *field, i int) {
	w := f.testimony(i)
	worker, name := other(3, f.anyLeader("spark1"))[0], fmt.Sprintf("split%d", i)
	f.beating(w, name, "spark1,spark2,spark3")
	f.do("cut", worker, "all")
	time.Sleep(shortly(20 * time.Second))
	if n := w.tries(t); n != 1 {
		t.Errorf("%d tries while %s could not say what runs there", n, worker)
	}
	f.healed(worker)
	eventually(t, 2*time.Minute, "the job goes on after the cut", func() bool { return w.tries(t) == 2 })
	f.on("spark1", "sparkrun", "stop", name).must(t)
	w.tries(t)
	f.found("tries never overlap", "two tries at one time")
}

// Row 22. A worker hears nobody, or nobody hears it.
func oneWay(t *testing.T, f *field, i int) {
	w := f.testimony(i)
	leader := f.anyLeader("spark1")
	worker, name := other(3, leader)[0], fmt.Sprintf("oneway%d", i)
	term := f.view(leader).Term
	f.beating(w, name, "spark1,spark2,spark3")
	way := []string{"in", "out"}[i%2]
	if !*letter { // its one round is either
		way = []string{"in", "out"}[rand.IntN(2)]
	}
	t.Logf("cut %s %s", worker, way)
	f.do("cut", worker, "all", way)
	lost, ready := 0, true
	span := shortly(time.Minute)
	for began := time.Now(); time.Since(began) < span; time.Sleep(50 * time.Millisecond) {
		now := f.state(leader, worker)
		if now == "" { // no answer
			continue
		}
		if ready && now != "ready" {
			lost++
		}
		ready = now == "ready"
	}
	if lost == 0 || lost > 1 {
		t.Errorf("%s was lost %d times in %s, want once", worker, lost, span)
	}
	if now := f.view(leader); now.Leader != leader || now.Term != term {
		t.Errorf("%s led in term %d, and now %s does in %d", leader, term, now.Leader, now.Term)
	}
	f.healed(worker)
	eventually(t, 2*time.Minute, "the job goes on after the cut", func() bool { return w.tries(t) == 2 })
	f.on(leader, "sparkrun", "stop", name).must(t)
	w.tries(t)
	f.found("one flap, tries never overlap", "flaps, or two tries at one time")
}

// Row 23. A pair loses the route between its machines: no attempt begins before they
// have met again.
func pairSplit(t *testing.T, f *field, i int) {
	w := f.testimony(i)
	p := &field{lab: pair(t), dir: f.dir}
	name := fmt.Sprintf("pair%d", i)
	p.beating(w, name, "spark1,spark2")
	p.do("cut", "spark2", "all")
	time.Sleep(shortly(30 * time.Second))
	if n := w.tries(t); n != 1 {
		t.Errorf("%d tries while the pair was split", n)
	}
	p.healed("spark2")
	eventually(t, 2*time.Minute, "the job goes on after the split", func() bool { return w.tries(t) == 2 })
	p.on("spark2", "sparkrun", "stop", name).must(t)
	w.tries(t)
	f.found("no try while split", "a try began while split")
}
