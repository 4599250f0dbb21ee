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
	c.MemoryFloor, c.Stage.Workdir, c.Stage.Files = math.MaxInt64, "/nowhere", []string{"/nowhere/it.py"}
	if d := cmp.Diff([]string{"working directory"}, refused()); d != "" {
		t.Error(d)
	}
	c.Yet = true
	if d := cmp.Diff([]string{"memory"}, refused()); d != "" {
		t.Errorf("what has yet to be brought is looked for:\n%s", d)
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
