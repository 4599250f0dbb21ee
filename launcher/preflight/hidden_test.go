package preflight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/login"
)

// What is closed to root's eyes, as a FUSE mount of the user's is, is no reason to refuse: only a process of the
// user's can tell what is there. A folder that is closed to the user alone is one.
func TestClosedToRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root mounts")
	}
	ada := login.User{Name: "ada", UID: 12345, GID: 12345, Switches: true}
	dir := t.TempDir()
	fuse, closed := filepath.Join(dir, "fuse"), filepath.Join(dir, "closed")
	must(t, os.Mkdir(fuse, 0o755))
	must(t, os.Mkdir(closed, 0o700))
	must(t, os.WriteFile(filepath.Join(closed, "train"), nil, 0o755))
	for up := dir; up != os.TempDir(); up = filepath.Dir(up) {
		must(t, os.Chmod(up, 0o755))
	}
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	must(t, err)
	t.Cleanup(func() { dev.Close() })
	// Without allow_other the kernel refuses all but its user itself, before it asks whoever serves it: nobody does.
	err = unix.Mount("ada", fuse, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=12345,group_id=12345", dev.Fd()))
	must(t, err)
	t.Cleanup(func() { _ = unix.Unmount(fuse, unix.MNT_DETACH) })
	if _, err := os.Stat(filepath.Join(fuse, "train")); !errors.Is(err, unix.EACCES) {
		t.Fatalf("root looks into it: %v", err)
	}

	for name, tc := range map[string]struct {
		argv    string
		path    string
		workdir string
		check   func(context.Context, *Case) error
		refused bool
	}{
		"in PATH":                      {"train", "/nowhere:" + fuse + ":/bin", "/", program, false},
		"by its path":                  {fuse + "/train", "", "/", program, false},
		"beside the workdir":           {"./train", "", fuse + "/work", program, false},
		"the workdir":                  {"", "", fuse + "/work", workdir, false},
		"a file":                       {fuse + "/train", "", "/", files, false},
		"in PATH, closed to her":       {"train", "/nowhere:" + closed + ":/bin", "/", program, true},
		"by its path, closed to her":   {closed + "/train", "", "/", program, true},
		"the workdir, closed to her":   {"", "", closed, workdir, true},
		"a file that is closed to her": {closed + "/train", "", "/", files, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := Case{User: ada, Stage: launcher.Stage{Workdir: tc.workdir, Files: []string{tc.argv}},
				First: launcher.RankPlan{Argv: []string{tc.argv}, Env: []launcher.Setting{{Name: "PATH", Value: tc.path}}}}
			if err := tc.check(t.Context(), &c); (err != nil) != tc.refused {
				t.Errorf("refused: %v", err)
			}
		})
	}
}
