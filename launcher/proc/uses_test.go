package proc

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestUses(t *testing.T) {
	dir := t.TempDir()
	wanted, other := filepath.Join(dir, "abcdef"), filepath.Join(dir, "elsewhere/abcdef")
	if err := errors.Join(os.WriteFile(wanted, []byte("text"), 0o600), os.Mkdir(filepath.Dir(other), 0o700),
		os.WriteFile(other, []byte("text"), 0o600)); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(wanted, &st); err != nil {
		t.Fatal(err)
	}
	uses := func(want string) {
		t.Helper()
		if got := Here.Uses(os.Getpid(), map[string]uint64{"abcdef": st.Ino, "none": 1}); got != want {
			t.Errorf("it uses %q, want %q", got, want)
		}
	}
	same, err := os.Open(other) // of the same name
	if err != nil {
		t.Fatal(err)
	}
	defer same.Close()
	uses("")
	f, err := os.Open(wanted)
	if err != nil {
		t.Fatal(err)
	}
	uses(wanted)
	b, err := unix.Mmap(int(f.Fd()), 0, 4, unix.PROT_READ, unix.MAP_PRIVATE)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	uses(wanted)
	if err := unix.Munmap(b); err != nil {
		t.Fatal(err)
	}
	uses("")
}
