package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// failedJob is a job whose rank 1 raised, which rank 0 noticed.
func failedJob(at time.Time) rendezvous.JobStatus {
	root := launcher.RankExit{Rank: 1, Host: "spark2", Time: at, Exit: launcher.Exit{Code: 1,
		Words: "RuntimeError: out of luck", Trace: "Traceback (most recent call last):\n  boom()\nRuntimeError: out of luck", Last: "bye"}}
	started := at.Add(-3 * time.Minute)
	return rendezvous.JobStatus{
		Job: rendezvous.Job{
			Spec: launcher.Spec{ID: "zvuddexrd9", Name: "train", Workload: "torchrun", User: "ada",
				Stages: []launcher.Stage{{Main: true, Argv: launcher.Lits("python3", "train.py", "--note", "two\nlines, \x1b[31mred")}}},
			Planned: started,
			Plan: rendezvous.Plan{Generation: 1, World: 2, Nodes: []rendezvous.Place{
				{Host: "spark1", Ranks: 1}, {Host: "spark2", FirstRank: 1, Ranks: 1}}},
			Outcome: &rendezvous.Outcome{End: rendezvous.Failed, ExitCode: 1, At: at, Started: &started, Root: &root,
				Cause: "rank 1 on spark2: exit 1: RuntimeError: out of luck",
				Exits: []launcher.RankExit{
					{Rank: 1, Host: "spark2", Time: at, Exit: root.Exit.Bare()},
					{Rank: 0, Host: "spark1", Time: at.Add(40 * time.Millisecond), Exit: launcher.Exit{Code: 1, LostPeer: true, Words: "Connection closed by peer"}},
					{Rank: 2, Host: "spark1", Time: at.Add(time.Second), Exit: launcher.Exit{Signal: 15, ByUs: true}},
				}},
		},
		State: rendezvous.State(rendezvous.Failed), Started: &started,
	}
}

func TestDescribeAFailedJob(t *testing.T) {
	now := time.Date(2026, 3, 1, 14, 0, 30, 0, time.FixedZone("CET", 3600))
	want := `job zvuddexrd9 (train): torchrun of ada, failed, exit code 1
  $ python3 train.py --note 'two⏎lines, �[31mred'
  spark1: rank 0
  spark2: rank 1
  placed 4m ago (2026-03-01 13:56:30), ran for 3m, ended 60s ago (2026-03-01 13:59:30)
rank 1 on spark2: exit 1: RuntimeError: out of luck; the gang was ended
trace of rank 1:
  Traceback (most recent call last):
    boom()
  RuntimeError: out of luck
then rank 0 on spark1: exit 1: Connection closed by peer (0.04 s later)`
	if d := cmp.Diff(want, strings.Join(describe(failedJob(now.Add(-time.Minute).UTC()), now), "\n")); d != "" {
		t.Error(d)
	}
}

// A job that Ctrl-Z has stopped says so, and what wakes it.
func TestDescribeASuspendedJob(t *testing.T) {
	j := failedJob(time.Now())
	j.Outcome, j.State, j.Suspended = nil, rendezvous.StateRuns, []string{"spark1", "spark2"}
	if text := strings.Join(describe(j, time.Now()), "\n"); !strings.Contains(text, "\n  suspended on spark1,spark2, as by Ctrl-Z: `fg`") {
		t.Error(text)
	}
}

// Ranks that were left to run on were not ended, unless by the time limit.
func TestSentenceOfThoseThatContinue(t *testing.T) {
	spec := launcher.Spec{ID: "zvuddexrd9", OnFailure: launcher.ContinueOnFailure}
	failed := rendezvous.Outcome{End: rendezvous.Failed, ExitCode: 7, Cause: "rank 1 on spark2: exit 7"}
	late := rendezvous.Outcome{End: rendezvous.Failed, ExitCode: launcher.ExitTimedOut, Cause: "the time limit of 5s has passed (--timeout)"}
	for want, got := range map[string]string{
		"rank 1 on spark2: exit 7; the other ranks were left to end by themselves": sentence(failed, spec, 2),
		"rank 1 on spark2: exit 7":                                        sentence(failed, spec, 1),
		"the time limit of 5s has passed (--timeout); the gang was ended": sentence(late, spec, 2),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A job's command line is cut where it would fill the screen.
func TestCommandLineIsBounded(t *testing.T) {
	got := commandLine(launcher.Spec{Stages: []launcher.Stage{{Main: true, Argv: launcher.Lits("sh", "-c", strings.Repeat("ä", 10_000))}}})
	if len(got) > commandBytes+len("…") || !strings.HasPrefix(got, "sh -c 'ä") || !strings.HasSuffix(got, "ä…") {
		t.Errorf("%d bytes: %.40q", len(got), got)
	}
}

// What a job's user has chosen does not steer the terminal of who looks at it.
func TestOthersWordsAreTame(t *testing.T) {
	if got := plain.Text("a\x1b[31m\ab\u009bc\td\ne\r"); got != "a?[31m?b?c\td\ne?" {
		t.Errorf("%q", got)
	}
	j := failedJob(time.Now())
	j.Outcome.Cause = "working directory /tmp/\x1b]0;x\a: not found here"
	if got := strings.Join(describe(j, time.Now()), "\n"); strings.ContainsAny(got, "\x1b\a") {
		t.Errorf("%q", got)
	}
}

// Without a trace the last lines tell, and a long trace keeps to the screen.
func TestWhy(t *testing.T) {
	j := failedJob(time.Now())
	j.Outcome.Root.Exit.Trace = ""
	if got := strings.Join(why(*j.Outcome, j.Spec), "\n"); !strings.HasPrefix(got, "the last lines of rank 1:\n  bye\nthen ") {
		t.Errorf("without a trace: %s", got)
	}
	j.Outcome.Root.Exit.Trace = strings.Repeat("frame\n", 100) + "the end"
	if got := why(*j.Outcome, j.Spec); len(got) > whyLines+4 || !strings.Contains(strings.Join(got, "\n"), "the end") {
		t.Errorf("a long trace takes %d lines", len(got))
	}
	if got := why(rendezvous.Outcome{End: rendezvous.Stopped}, launcher.Spec{}); len(got) != 0 {
		t.Errorf("a stopped job is explained by %q", got)
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
	jobs := []rendezvous.JobStatus{job("aaaa1", "train", true), job("aaaa2", "train", false), job("bbbb1", "train", true), job("train2", "x", true)}
	for text, want := range map[string]launcher.JobID{"aaaa1": "aaaa1", "train": "aaaa2", "bb": "bbbb1", "x": "train2"} {
		if j, err := pick(jobs, text); err != nil || j.Spec.ID != want {
			t.Errorf("%s: %s, %v, want %s", text, j.Spec.ID, err, want)
		}
	}
	for text, want := range map[string]string{"none": "ps --all", "": "name one", "aaaa": "it could be aaaa1, aaaa2"} {
		if j, err := pick(jobs, text); !errors.Is(err, rendezvous.ErrNoJob) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %s, %v, want %q", text, j.Spec.ID, err, want)
		}
	}
}

// A rank that left in time and well may be whom the others waited for.
func TestWhyNamesWhoHadEnded(t *testing.T) {
	j := failedJob(time.Now())
	for _, rank := range []int{3, 5, 6, 7} {
		j.Outcome.Exits = append(j.Outcome.Exits, launcher.RankExit{Rank: rank, Host: "spark1", Time: time.Now()})
	}
	if got := why(*j.Outcome, j.Spec); got[len(got)-1] != "ranks 3,5-7 had ended with 0 before" {
		t.Errorf("%q", got)
	}
	openMPI := j.Spec
	openMPI.Stages = []launcher.Stage{{Main: true, MPI: &launcher.MPI{Family: launcher.OpenMPI}}}
	if got := strings.Join(why(*j.Outcome, openMPI), "\n"); strings.Contains(got, "had ended") {
		t.Errorf("of mpirun's daemons it says %q", got)
	}
	j.Outcome, j.Done = nil, []int{1}
	if got := strings.Join(describe(j, time.Now()), "\n"); !strings.Contains(got, "\n  rank 1 ended with 0, while the others go on") {
		t.Error(got)
	}
}

// Of ranks that were lost with their machine its disk has the last words.
func TestLastLinesOfALostMachine(t *testing.T) {
	j := failedJob(time.Now())
	j.Outcome.Root, j.Outcome.Cause = nil, "spark2 restarted"
	var asked wire.LogsRequest
	answer := func(fn func(wire.LogChunk) error) error {
		return errors.Join(fn(wire.LogChunk{Job: j.Spec.ID, Rank: 1, Host: "spark2", Stream: wire.Stdout, Data: []byte("step 41\nstep 42\n")}),
			fn(wire.LogChunk{Job: j.Spec.ID, Rank: 1, Host: "spark2", Stream: wire.Stderr, Data: []byte("no end")}))
	}
	g := &fakeGangs{logs: func(_ context.Context, _ int, r wire.LogsRequest, fn func(wire.LogChunk) error) error {
		asked = r
		return answer(fn)
	}}
	want := []string{"the last lines of rank 1, as spark2 has them:", "  [1] step 41", "  [1] step 42", "  [1] no end"}
	if d := cmp.Diff(want, lastOfLost(t.Context(), g, j)); d != "" {
		t.Error(d)
	}
	if asked.Job != "zvuddexrd9" || asked.Generation != 1 || len(asked.Hosts) != 1 || asked.Hosts[0] != "spark2" || *asked.From.Lines != launcher.MaxLastLines {
		t.Errorf("asked %+v", asked)
	}
	answer = func(fn func(wire.LogChunk) error) error {
		return fn(wire.LogChunk{Host: "spark2", Note: "spark2 does not answer", Away: true})
	}
	if got := lastOfLost(t.Context(), g, j); len(got) != 1 || !strings.HasSuffix(got[0], "on spark2, which does not answer") {
		t.Errorf("of a machine that is away: %q", got)
	}
	for _, o := range []rendezvous.Outcome{
		{End: rendezvous.Completed}, {End: rendezvous.Stopped, Cause: "spark2 was asked"}, {End: rendezvous.Failed, Cause: "spark20 restarted"},
		{End: rendezvous.Failed, Cause: "spark2 restarted", Root: &launcher.RankExit{}},
	} {
		j.Outcome = &o
		if got := lastOfLost(t.Context(), g, j); got != nil {
			t.Errorf("%+v: %q", o, got)
		}
	}
}
