package job

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// A terminal that is watched has no line that is cut: columns are left out, the URL last.
func TestPsFits(t *testing.T) {
	a := &app.App{OutTTY: true, Environ: []string{"TERM=xterm"}, Columns: func() int { return 80 }}
	v, err := psAll(a, apptest.SomeServices(), psOptions{watch: true})
	if err != nil || !strings.Contains(v.Text, "http://127.0.0.1:8000") {
		t.Errorf("%v\n%s", err, v.Text)
	}
	for line := range strings.Lines(v.Text) {
		if n := len([]rune(line)) - 1; n > 80 {
			t.Errorf("a line of %d: %s", n, line)
		}
	}
}

func TestPs(t *testing.T) {
	var lines []wire.JobLine
	for _, j := range apptest.SomeJobs().Jobs {
		lines = append(lines, wire.JobsResponse{}.Line(j))
	}
	waits := wire.JobLine{JobID: "cccc", Workload: "exec", State: "waiting", Line: 2, Planned: lines[1].Planned}
	lines[1].Suspended = []string{"spark1"}
	orphan := wire.JobLine{JobID: "dddd", Workload: "exec", State: rendezvous.StatePlanned, Hosts: []string{"spark1"},
		Attempt: 2, Attempts: 3, Planned: lines[1].Planned,
		Away: []string{"spark1"}, AwaySince: map[string]time.Time{"spark1": lines[1].Planned.Add(50 * time.Second)}}
	got := jobRows(append(lines, waits, orphan), lines[1].Planned.Add(90*time.Second))
	want := [][]string{
		{"JOB", "NAME", "WORKLOAD", "NODES", "STATE", "AGE", "EXIT"},
		{"aaaa", "-", "exec", "spark1,spark2,spark3,+3", "failed", "61m", "7"},
		{"bbbb", "train", "torchrun", "spark1,spark2", "running (suspended) (spark2 away)", "90s", "-"},
		{"cccc", "-", "exec", "-", "waiting (number 2 in the queue)", "90s",
			"-"}, // no column is left empty: scripts cut at blanks
		{"dddd", "-", "exec", "spark1", "unknown (attempt 2 of 3) (spark1 away 40s)", "90s", "-"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
