package follow

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Ranks that were left to run on were not ended, unless by the time limit.
func TestSentenceOfThoseThatContinue(t *testing.T) {
	spec := launcher.Spec{ID: "zvuddexrd9", OnFailure: launcher.ContinueOnFailure}
	failed := rendezvous.Outcome{End: rendezvous.Failed, ExitCode: 7, Cause: "rank 1 on spark2: exit 7"}
	late := rendezvous.Outcome{End: rendezvous.Failed, ExitCode: launcher.ExitTimedOut,
		Cause: "the time limit of 5s has passed (--timeout)"}
	for want, got := range map[string]string{
		"rank 1 on spark2: exit 7; the other ranks were left to end by themselves": Sentence(failed, spec, 2),
		"rank 1 on spark2: exit 7":                                       Sentence(failed, spec, 1),
		"the time limit of 5s has passed (--timeout); the job was ended": Sentence(late, spec, 2),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Without a trace the last lines tell, and a long trace keeps to the screen.
func TestWhy(t *testing.T) {
	j := apptest.FailedJob(time.Now())
	j.Outcome.Root.Exit.Trace = ""
	if got := strings.Join(Why(*j.Outcome, j.Spec), "\n"); !strings.HasPrefix(got,
		"the last lines of rank 1:\n  bye\nthen ") {
		t.Errorf("without a trace: %s", got)
	}
	j.Outcome.Root.Exit.Trace = strings.Repeat("frame\n", 100) + "the end"
	if got := Why(*j.Outcome, j.Spec); len(got) > whyLines+4 || !strings.Contains(strings.Join(got, "\n"), "the end") {
		t.Errorf("a long trace takes %d lines", len(got))
	}
	j.Outcome.Root.Exit.Trace = "the end"
	j.Outcome.Exits = append(j.Outcome.Exits[:2], launcher.RankExit{Rank: 3, Host: "spark4"})
	j.Spec.Stages[0].Agents = true
	want := []string{"trace of torchrun's agent 1:", "  the end",
		"then torchrun's agent 0 on spark1: exit 1: Connection closed by peer (0.04 s later)",
		"torchrun's agent 3 had ended with 0 before"}
	if d := cmp.Diff(want, Why(*j.Outcome, j.Spec)); d != "" {
		t.Errorf("of torchrun's agents: %s", d)
	}
	j.Outcome.Exits, j.Outcome.Root.Exit = nil, launcher.Exit{Signal: 9}
	if got := strings.Join(Why(*j.Outcome, j.Spec), "\n"); !strings.Contains(got, "out of memory: on spark2 `sudo dmesg") {
		t.Errorf("of SIGKILL it says %q", got)
	}
	j.Outcome.Root.Exit.Words = "out of memory: the kernel's OOM killer ended it"
	if got := Why(*j.Outcome, j.Spec); len(got) != 0 {
		t.Errorf("of a SIGKILL that is explained: %q", got)
	}
	if got := Why(rendezvous.Outcome{End: rendezvous.Stopped}, launcher.Spec{}); len(got) != 0 {
		t.Errorf("a stopped job is explained by %q", got)
	}
}

// Of ranks that were lost with their machine its disk has the last words.
func TestLastLinesOfALostMachine(t *testing.T) {
	j := apptest.FailedJob(time.Now())
	j.Outcome.Root, j.Outcome.Cause = nil, "spark2 restarted"
	var asked wire.LogsRequest
	answer := func(fn func(wire.LogChunk) error) error {
		return errors.Join(fn(wire.LogChunk{Job: j.Spec.ID, Rank: 1, Host: "spark2", Stream: wire.Stdout,
			Data: []byte("step 41\nstep 42\n")}),
			fn(wire.LogChunk{Job: j.Spec.ID, Rank: 1, Host: "spark2", Stream: wire.Stderr, Data: []byte("no end")}))
	}
	g := &apptest.FakeRunner{OnLogs: func(_ context.Context, _ int, r wire.LogsRequest,
		fn func(wire.LogChunk) error) error {
		asked = r
		return answer(fn)
	}}
	want := []string{"the last lines of rank 1, as spark2 has them:", "  [1] step 41", "  [1] step 42", "  [1] no end"}
	if d := cmp.Diff(want, LastOfLost(t.Context(), apptest.Agent(g), j)); d != "" {
		t.Error(d)
	}
	if asked.Job != "zvuddexrd9" || asked.Generation != 1 || len(asked.Hosts) != 1 || asked.Hosts[0] != "spark2" ||
		*asked.From.Lines != launcher.MaxLastLines {
		t.Errorf("asked %+v", asked)
	}
	answer = func(fn func(wire.LogChunk) error) error {
		return fn(wire.LogChunk{Host: "spark2", Note: "spark2 does not answer", Away: true})
	}
	if got := LastOfLost(t.Context(), apptest.Agent(g), j); len(got) != 1 ||
		!strings.HasSuffix(got[0], "on spark2, which does not answer") {
		t.Errorf("of a machine that is away: %q", got)
	}
	for _, o := range []rendezvous.Outcome{
		{End: rendezvous.Completed}, {End: rendezvous.Stopped, Cause: "spark2 was asked"},
		{End: rendezvous.Failed, Cause: "spark20 restarted"},
		{End: rendezvous.Failed, Cause: "spark2 restarted", Root: &launcher.RankExit{}},
	} {
		j.Outcome = &o
		if got := LastOfLost(t.Context(), apptest.Agent(g), j); got != nil {
			t.Errorf("%+v: %q", o, got)
		}
	}
}

// What a machine refuses without knowing of flags is told with the flag.
func TestRefusalsNameFlags(t *testing.T) {
	for _, c := range [][3]string{
		{"vllm", "spark1: port serve.api: bind to port 8000: address already in use",
			"--port N is another port for the server"},
		{"vllm", `spark1: program "vllm": not found in PATH (/bin)`, "--vllm PATH names the program"},
		{"trtllm", `spark1: program "trtllm-serve": not found in PATH (/bin)`, "--trtllm-serve PATH"},
		{"exo", `spark1: program "exo": not found in PATH (/bin)`, "--exo PATH names the program by its full path"},
		{"exec", "spark1: port serve.api: bind to port 8000: address already in use", ""},
	} {
		if got := flagFor(c[1], c[0]); (got == "") != (c[2] == "") || !strings.HasPrefix(got, c[2]) {
			t.Errorf("%s: %q, want %q", c[1], got, c[2])
		}
	}
}
