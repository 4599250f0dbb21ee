package job

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

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
