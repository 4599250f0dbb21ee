package preflight

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/login"
)

// Who lacks several things of the machine is told of all at once; behind one that is the user's to put right nothing
// else is looked at.
func TestChecksGoRowByRow(t *testing.T) {
	c := Case{
		Machine: Machine{RunDir: t.TempDir(), LogDir: "/proc", MemoryFloor: math.MaxInt64}, // which has no room
		User:    login.Self(), First: launcher.RankPlan{Argv: []string{"/bin/sh"}},
		Stage: launcher.Stage{Workdir: "/"},
	}
	c.Assignment.Spec.Secrets = []launcher.SealedSecret{{Name: "TOKEN"}}
	refused := func() []string {
		t.Helper()
		var r *RefusedError
		if err := c.Run(t.Context()); !errors.As(err, &r) {
			t.Fatalf("refused with %v", err)
		}
		return r.Checks
	}
	if d := cmp.Diff([]string{"disk", "memory"}, refused()); d != "" {
		t.Error(d)
	}
	c.MemoryFloor, c.LogDir = 0, c.RunDir
	if d := cmp.Diff([]string{"secrets"}, refused()); d != "" {
		t.Error(d)
	}
	c.MemoryFloor, c.Stage.Workdir, c.Stage.Files = math.MaxInt64, "/nowhere", []string{"it.py"}
	if d := cmp.Diff([]string{"working directory"}, refused()); d != "" {
		t.Error(d)
	}
	c.Yet = true
	if d := cmp.Diff([]string{"memory"}, refused()); d != "" {
		t.Errorf("what has yet to be brought is looked for:\n%s", d)
	}
}

// Who needs a file, and what brings it, depends on the stage and on how the command names the file. What has yet to be
// brought is left out; a full path is none of that, so that a dry run says of it what the launch would.
func TestFilesThatAreNotHere(t *testing.T) {
	dir := t.TempDir()
	for name, tc := range map[string]struct {
		stage launcher.Stage
		yet   bool
		want  string // empty: it is not refused
	}{
		"a model": {launcher.Stage{Where: launcher.OnHead, Files: []string{"/no/q.gguf"}}, false, "file /no/q.gguf: not found here: " +
			"the job's first machine alone needs it: copy it to this one, or name one that has it first in --on"},
		"a model beside --stage": {launcher.Stage{Where: launcher.OnHead, Files: []string{"/no/q.gguf"}}, true, "file /no/q.gguf: not found here: " +
			"the job's first machine alone needs it: copy it to this one, or name one that has it first in --on"},
		"a script": {launcher.Stage{Files: []string{"it.py"}}, false, "file " + dir + "/it.py: not found here: " +
			"have launch --stage bring it, or copy it to every node of the job"},
		"a script to be brought": {launcher.Stage{Files: []string{"it.py"}}, true, ""},
		"a script by its path": {launcher.Stage{Files: []string{"/no/it.py"}}, true, "file /no/it.py: not found here: " +
			"have launch --stage bring it, and name it without its folder, or copy it to every node of the job"},
		"a folder": {launcher.Stage{Where: launcher.OnHead, Files: []string{dir}}, false, "file " + dir + ": is a directory: name the file"},
	} {
		tc.stage.Workdir = dir
		c := Case{Stage: tc.stage, User: login.Self(), Yet: tc.yet}
		got := ""
		if err := files(t.Context(), &c); err != nil {
			got = err.Error()
		}
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s:\n%s", name, d)
		}
	}
}

// A job that would fill the disk is refused before a byte of it comes.
func TestStageTakesNoMoreThanThereIs(t *testing.T) {
	dir := t.TempDir()
	if err := RoomToStage(dir, 1<<60); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("an exbibyte: %v", err)
	}
	if err := RoomToStage(dir, 0); err != nil {
		t.Errorf("nothing: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What lies beside the caller and not on this machine is what --stage brings; a program of the system is not.
func TestStageIsNamedForWhatTheCallerHas(t *testing.T) {
	dir := t.TempDir()
	const bring = "have launch --stage bring "
	for name, tc := range map[string]struct {
		workdir, program string
		check            func(*Case) error
		want             bool
	}{
		"the folder of the launch": {"/no/such", "true", func(c *Case) error { return workdir(t.Context(), c) }, true},
		"a script beside it":       {dir, "./train.sh", func(c *Case) error { return program(t.Context(), c) }, true},
		"a full path":              {dir, "/no/train.sh", func(c *Case) error { return program(t.Context(), c) }, false},
		"a program of PATH":        {dir, "no-such-program", func(c *Case) error { return program(t.Context(), c) }, false},
	} {
		c := Case{
			User: login.Self(), Stage: launcher.Stage{Workdir: tc.workdir},
			First: launcher.RankPlan{Argv: []string{tc.program}, Env: []launcher.Setting{{Name: "PATH", Value: "/bin"}}},
		}
		err := tc.check(&c)
		if err == nil || strings.Contains(err.Error(), bring) != tc.want {
			t.Errorf("%s: refused with %v; --stage in it: want %v", name, err, tc.want)
		}
	}
}
