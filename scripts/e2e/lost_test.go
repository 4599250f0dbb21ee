package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/scripts/e2e/witness"
)

// Two jobs share a machine, one with another in reserve, one that may shrink. Its agent's death is nothing to them; when
// its power is gone for good each goes on elsewhere, once, and only when somebody has said so. The ranks say when they lived.
func TestJobsOutliveAMachine(t *testing.T) {
	t.Parallel()
	buildWitness(t)
	l := up(t, 4)
	leader := l.view("spark1").Leader
	rest := other(4, leader)
	lost, spare, third := rest[0], rest[1], rest[2]
	jobs := map[string]struct {
		flags       []string
		dir         string
		first, next []string // hosts of the two tries
	}{
		"spared": {[]string{"--nodes", "2", "--on", strings.Join([]string{lost, leader, spare}, ","), "--spare", "1"},
			scratch(t), []string{lost, leader}, []string{leader, spare}},
		"shrinks": {[]string{"--nodes", "2:3", "--on", strings.Join([]string{lost, leader, third}, ",")},
			scratch(t), []string{lost, leader, third}, []string{leader, third}},
	}
	// lived gives when the ranks of a generation lived, by host.
	lived := func(dir string, generation uint64) (hosts []string, first, last int64) {
		t.Helper()
		all, err := witness.Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range all {
			if r.Generation != generation {
				continue
			}
			if !slices.Contains(hosts, r.Host) {
				hosts = append(hosts, r.Host)
			}
			if first == 0 || r.Boot < first {
				first = r.Boot
			}
			last = max(last, r.Boot)
		}
		slices.Sort(hosts)
		return hosts, first, last
	}
	runsOn := func(dir string, generation uint64, want []string) bool {
		hosts, _, _ := lived(dir, generation)
		slices.Sort(want)
		return slices.Equal(hosts, want)
	}
	for name, j := range jobs {
		args := append([]string{"sparkrun", "launch", "exec", "-d", "--name", name, "--max-restarts", "3", "--node-timeout", "3s", "--grace", "1s"}, j.flags...)
		l.on(leader, append(args, "--", witnessBinary, "rank", j.dir)...).must(t)
	}
	for name, j := range jobs {
		eventually(t, time.Minute, name+" runs", func() bool { return runsOn(j.dir, 1, j.first) })
	}

	l.do("kill", lost, "--agent")
	time.Sleep(5 * time.Second) // longer than the node time-out: a machine whose agent alone is gone is there
	l.do("start", lost, "--agent")
	l.on(leader, "sparkrun", "status", "--wait-nodes", "4", "--timeout", "60s").must(t)
	for name, j := range jobs {
		if hosts, _, _ := lived(j.dir, 2); len(hosts) > 0 {
			t.Errorf("%s was tried again on %v because an agent died", name, hosts)
		}
	}

	l.do("kill", lost)
	for name := range jobs {
		eventually(t, 2*time.Minute, name+" waits for a word about "+lost, func() bool {
			return strings.Contains(l.on(leader, "sparkrun", "ps", name).out, "mark-dead "+lost)
		})
	}
	for name, j := range jobs {
		if hosts, _, _ := lived(j.dir, 2); len(hosts) > 0 {
			t.Errorf("%s was tried again on %v while %s may have been running it", name, hosts, lost)
		}
	}
	eventually(t, time.Minute, lost+" is taken for dead", func() bool { return l.on(leader, "sparkrun", "mark-dead", lost).code == 0 })
	for name, j := range jobs {
		eventually(t, time.Minute, name+" goes on without "+lost, func() bool { return runsOn(j.dir, 2, j.next) })
		_, _, last := lived(j.dir, 1)
		if _, first, _ := lived(j.dir, 2); first <= last {
			t.Errorf("%s: the second try began %s before the first one's last sign of life", name, time.Duration(last-first))
		}
	}
	l.do("start", lost)
	l.on(leader, "sparkrun", "status", "--wait-nodes", "4", "--timeout", "60s").must(t)
	l.on(lost, "sparkrun", "stop", "--kill", "spared", "shrinks").must(t)
	for name, j := range jobs {
		if hosts, _, _ := lived(j.dir, 3); len(hosts) > 0 {
			t.Errorf("%s was tried a third time, on %v", name, hosts)
		}
	}
	l.assertNothingLeft("spark1", "spark2", "spark3", "spark4")
}
