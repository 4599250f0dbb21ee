package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Folders that are deeper than the agent has descriptors are removed all the same.
func TestDeepFoldersAreRemoved(t *testing.T) {
	top := filepath.Join(t.TempDir(), "job")
	must(t, os.Mkdir(top, 0o700))
	at, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	for range 1500 {
		must(t, unix.Mkdirat(at, "d", 0o700))
		next, err := unix.Openat(at, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		must(t, err)
		must(t, unix.Close(at))
		at = next
	}
	must(t, unix.Close(at))
	var had unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &had))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 500, Max: had.Max}))
	err = removeTree(top)
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &had))
	must(t, err)
	if _, err := os.Lstat(top); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}

	// A link goes, and nothing that it leads to.
	kept := t.TempDir()
	must(t, os.Mkdir(filepath.Join(kept, "sub"), 0o700))
	must(t, os.Symlink(kept, top))
	must(t, removeTree(top))
	if _, err := os.Stat(filepath.Join(kept, "sub")); err != nil {
		t.Error(err)
	}
}
