package why

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// That others wait for one that loads or saves is said, and is no finding.
func TestWhoLoadsIsTold(t *testing.T) {
	e := running()
	saves(&e, 5<<20, 0.25)
	want := "rank 0 on spark1 writes 5 MiB/s, /ckpt/7.pt (it waits for the disk for 25 % of the time): ranks 1, 2 wait for it"
	if looked := e.looked(); len(Rank(e)) > 0 || !slices.Contains(looked, want) {
		t.Errorf("%+v, %q, want %q", Rank(e), looked, want)
	}
}

// Of a job that starts it is said which machine does what, and for how long; asked for a machine, for which job.
func TestWhereAStartStandsIsTold(t *testing.T) {
	e := running()
	begins("pulls llm:7: 3 GiB of 20 GiB", 90*time.Second, false)(&e)
	if want := "spark2 pulls llm:7: 3 GiB of 20 GiB, for 1m30s"; !slices.Contains(e.looked(), want) {
		t.Errorf("%q, want %q", e.looked(), want)
	}
	e.Node, e.Job = &e.Nodes[1], nil
	if want := "job aaaa: spark2 pulls llm:7: 3 GiB of 20 GiB, for 1m30s"; !slices.Contains(e.looked(), want) {
		t.Errorf("%q, want %q", e.looked(), want)
	}
}

// What a cgroup's limit does to a rank is told with the limit, and how it goes away.
func TestLimitIsNamed(t *testing.T) {
	for file, want := range map[string]string{
		"/sys/fs/cgroup/memory/why/memory.limit_in_bytes": "echo -1 > /sys/fs/cgroup/memory/why/memory.limit_in_bytes   # on spark2",
		"/sys/fs/cgroup/why/memory.max":                   "echo max > /sys/fs/cgroup/why/memory.max   # on spark2",
		"/sys/fs/cgroup/a.slice/a.scope/memory.high":      "systemctl set-property --runtime a.scope MemoryHigh=infinity   # on spark2",
	} {
		e := running()
		atLimit(900, 800)(&e.Looks[1].Ranks[0])
		e.Looks[1].Ranks[0].Group.LimitFile = file
		f := Rank(e)[0]
		if d := cmp.Diff(want, f.Remedy); d != "" || !strings.Contains(f.Text, "its cgroup's limit of 40 MiB") ||
			!slices.ContainsFunc(f.Evidence, func(l string) bool { return strings.HasPrefix(l, "set by "+file) }) {
			t.Errorf("%+v: %s", f, d)
		}
	}
}
