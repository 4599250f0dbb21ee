package durable

import (
	"errors"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestReplace(t *testing.T) {
	for name, write := range map[string]func(string, []byte, fs.FileMode) error{"Write": Write, "Swap": Swap} {
		path := filepath.Join(t.TempDir(), "file")
		for _, text := range []string{"a longer text", "short"} {
			if err := write(path, []byte(text), 0o640); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			check(t, path, text, 0o640)
		}
	}
}

func TestCreateLeavesWhatIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := Create(path, []byte("first"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Create(path, []byte("second"), 0o600); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second one: %v", err)
	}
	check(t, path, "first", 0o600)
}

// A write that fails leaves the old content and nothing beside it.
func TestFailureLeavesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.Mkdir(path, 0o700); err != nil { // no file can take its place
		t.Fatal(err)
	}
	if err := Write(path, []byte("text"), 0o600); err == nil {
		t.Error("a folder was replaced by a file")
	}
	if names, err := os.ReadDir(filepath.Dir(path)); err != nil || len(names) != 1 {
		t.Errorf("beside it lie %v, %v", names, err)
	}
	if err := Write(filepath.Join(path, "none", "file"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a folder that is not there: %v", err)
	}
}

// What a crash has left is removed by the next write; what another process writes at this moment is not.
func TestLeftovers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	beside := func(name string) string { return filepath.Join(filepath.Dir(path), name) }
	old, young, others := beside(".file.new-1"), beside(".file.new-2"), beside(".another.new-3")
	kept := []string{beside(".file.new-x"), beside("file.new-4"), beside(".profile")}
	for _, p := range append(kept, old, young, others) {
		if err := os.WriteFile(p, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	crash := time.Now().Add(-2 * leftover)
	for _, p := range append(kept, old, others) {
		if err := os.Chtimes(p, crash, crash); err != nil {
			t.Fatal(err)
		}
	}
	if err := Write(path, []byte("whole"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{old, others} {
		if _, err := os.Stat(p); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is old: %v", p, err)
		}
	}
	for _, p := range append(kept, young) {
		if err := os.Remove(p); err != nil {
			t.Errorf("it is no leftover: %v", err)
		}
	}
	check(t, path, "whole", 0o600)
}

// A full disk is an error, and leaves the old content.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := Write(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	limitFileSize(t, 4096)
	if err := Write(path, make([]byte, 8192), 0o600); err == nil {
		t.Error("more was written than there is room for")
	}
	check(t, path, "old", 0o600)
}

func check(t *testing.T, path, text string, mode fs.FileMode) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || string(got) != text {
		t.Errorf("content %q, %v; want %q", got, err, text)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != mode {
		t.Errorf("mode %v, %v; want %v", st.Mode(), err, mode)
	}
	if names, err := os.ReadDir(filepath.Dir(path)); err != nil || len(names) != 1 {
		t.Errorf("beside it lie %v, %v", names, err)
	}
}

// limitFileSize stands for a full disk: a write past the limit fails with EFBIG where a full disk's fails with ENOSPC.
func limitFileSize(t *testing.T, bytes uint64) {
	t.Helper()
	signal.Ignore(unix.SIGXFSZ)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: bytes, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
			t.Error(err)
		}
		signal.Reset(unix.SIGXFSZ)
	})
}
