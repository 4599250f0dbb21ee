package job

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/follow"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

func TestDescribeAFailedJob(t *testing.T) {
	now := time.Date(2026, 3, 1, 14, 0, 30, 0, time.FixedZone("CET", 3600))
	want := `job zvuddexrd9 (train): torchrun of ada, failed, exit code 1
  $ python3 train.py --note 'two⏎lines, ?[31mred'
  spark1: rank 0
  spark2: rank 1
  placed 4m ago (2026-03-01 13:56:30), ran for 3m, ended 60s ago (2026-03-01 13:59:30)
rank 1 on spark2: exit 1: RuntimeError: out of luck; the job was ended
trace of rank 1:
  Traceback (most recent call last):
    boom()
  RuntimeError: out of luck
then rank 0 on spark1: exit 1: Connection closed by peer (0.04 s later)`
	if d := cmp.Diff(want, strings.Join(describe(apptest.FailedJob(now.Add(-time.Minute).UTC()), now), "\n")); d != "" {
		t.Error(d)
	}
}

// A job that Ctrl-Z has stopped says so, and what wakes it.
func TestDescribeASuspendedJob(t *testing.T) {
	j := apptest.FailedJob(time.Now())
	j.Outcome, j.State, j.Suspended = nil, rendezvous.StateRuns, []string{"spark1", "spark2"}
	if text := strings.Join(describe(j, time.Now()), "\n"); !strings.Contains(text,
		"\n  suspended on spark1,spark2, as by Ctrl-Z: `fg`") {
		t.Error(text)
	}
}

// What a job's user has chosen does not steer the terminal of who looks at it.
func TestOthersWordsAreTame(t *testing.T) {
	if got := plain.Text("a\x1b[31m\ab\u009bc\td\ne\r"); got != "a?[31m?b?c\td\ne?" {
		t.Errorf("%q", got)
	}
	j := apptest.FailedJob(time.Now())
	j.Outcome.Cause = "working directory /tmp/\x1b]0;x\a: not found here"
	if got := strings.Join(describe(j, time.Now()), "\n"); strings.ContainsAny(got, "\x1b\a") {
		t.Errorf("%q", got)
	}
}

func TestPickAJob(t *testing.T) {
	job := func(id launcher.JobID, name string, ended bool) rendezvous.JobStatus {
		j := rendezvous.JobStatus{Job: rendezvous.Job{Spec: launcher.Spec{ID: id, Name: name}}}
		if ended {
			j.Outcome = &rendezvous.Outcome{}
		}
		return j
	}
	jobs := wire.JobsResponse{Jobs: []rendezvous.JobStatus{job("aaaa1", "train", true), job("aaaa2", "train", false),
		job("bbbb1", "train", true), job("train2", "x", true)}}
	for text, want := range map[string]launcher.JobID{"aaaa1": "aaaa1", "train": "aaaa2", "bb": "bbbb1", "x": "train2"} {
		if j, err := pick(jobs, text); err != nil || j.Spec.ID != want {
			t.Errorf("%s: %s, %v, want %s", text, j.Spec.ID, err, want)
		}
	}
	for text, want := range map[string]string{"none": "ps --all", "": "give one", "aaaa": "it could be aaaa1, aaaa2"} {
		if j, err := pick(jobs, text); !errors.Is(err, rendezvous.ErrNoJob) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %s, %v, want %q", text, j.Spec.ID, err, want)
		}
	}
}

// A rank that left in time and well may be whom the others waited for.
func TestWhyNamesWhoHadEnded(t *testing.T) {
	j := apptest.FailedJob(time.Now())
	for _, rank := range []int{3, 5, 6, 7} {
		j.Outcome.Exits = append(j.Outcome.Exits, launcher.RankExit{Rank: rank, Host: "spark1", Time: time.Now()})
	}
	if got := follow.Why(*j.Outcome, j.Spec); got[len(got)-1] != "ranks 3,5-7 had ended with 0 before" {
		t.Errorf("%q", got)
	}
	openMPI := j.Spec
	openMPI.Stages = []launcher.Stage{{Main: true, MPI: &launcher.MPI{Family: launcher.OpenMPI}}}
	if got := strings.Join(follow.Why(*j.Outcome, openMPI), "\n"); strings.Contains(got, "had ended") {
		t.Errorf("of mpirun's daemons it says %q", got)
	}
	j.Outcome, j.Done = nil, []int{1}
	if got := strings.Join(describe(j, time.Now()), "\n"); !strings.Contains(got,
		"\n  rank 1 ended with 0, while the others go on") {
		t.Error(got)
	}
}
