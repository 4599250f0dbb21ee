package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/scripts/e2e/witness"
)

// A host is cut off on all its networks, for good. Its ranks have a lease: its shim
// ends them by itself, and the next try begins elsewhere only when they are gone, with
// nobody's word. The ranks themselves say when they lived.
func TestPartitionEndsRanks(t *testing.T) {
	t.Parallel()
	buildWitness(t)
	l, dir := up(t, 3), scratch(t)
	leader := l.view("spark1").Leader
	rest := other(3, leader)
	lost, spare := rest[0], rest[1]
	run := l.start(leader, "sparkrun", "launch", "exec", "--nodes", "2", "--on", strings.Join([]string{lost, leader, spare}, ","),
		"--spare", "1", "--max-restarts", "1", "--on-partition", "end", "--node-timeout", "10s", "--grace", "1s", "--name", "leased", "--",
		"sh", "-c", `[ $TORCHELASTIC_RESTART_COUNT = 0 ] || life="--life 1s"; exec `+witnessBinary+` rank `+dir+` $life`)
	records := func() []witness.Record {
		t.Helper()
		all, err := witness.Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	of := func(generation uint64, kind witness.Kind, host string) (found []witness.Record) {
		for _, r := range records() {
			if r.Generation == generation && r.Kind == kind && (host == "" || r.Host == host) {
				found = append(found, r)
			}
		}
		return found
	}
	eventually(t, time.Minute, "the first try runs", func() bool { return len(of(1, witness.Start, "")) == 2 })
	if out := l.on(leader, "sparkrun", "ps", "--json").must(t).out; !strings.Contains(out, `"on_partition":"end"`) && !strings.Contains(out, `"on_partition": "end"`) {
		t.Errorf("ps --json: %s", out)
	}
	time.Sleep(11 * time.Second) // a lease that is renewed ends nobody
	l.do("cut", lost, "all")
	cut := witness.Now()
	run.wait().must(t)

	var last int64 // sign of life of the first try on the host that was cut off
	for _, r := range records() {
		if r.Generation == 1 && r.Host == lost {
			last = max(last, r.Boot)
		}
	}
	again := of(2, witness.Start, "")
	if len(again) != 2 || len(of(2, witness.Start, lost)) != 0 || len(of(2, witness.Exit, "")) != 2 {
		t.Fatalf("the second try: %+v", again)
	}
	for _, r := range again {
		if r.Boot <= last {
			t.Errorf("rank %d of the second try began %s before the first one had ended on %s", r.Rank, time.Duration(last-r.Boot), lost)
		}
	}
	t.Logf("the last sign of life on %s came %s after the cut, the second try %s after it", lost,
		time.Duration(last-cut).Round(time.Millisecond), time.Duration(again[0].Boot-cut).Round(time.Millisecond))
	exits := of(1, witness.Exit, lost)
	if len(exits) != 1 || exits[0].Boot < cut || exits[0].Code != 128+15 {
		t.Errorf("the first try on %s was to end by TERM after the cut at %d: %+v", lost, cut, exits)
	}
	if left := l.processes(lost); strings.Contains(left, witnessBinary) {
		t.Errorf("left on %s while it is cut off:\n%s", lost, left)
	}
	l.do("heal", lost)
	l.on(leader, "sparkrun", "status", "--wait-nodes", "3", "--timeout", "45s").must(t)
	l.assertNothingLeft("spark1", "spark2", "spark3")
}
