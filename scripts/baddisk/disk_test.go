package main

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A file is replaced on a mounted disk, as a careful program does it: what a power
// failure leaves after each step.
func TestMountedDisk(t *testing.T) {
	shown, kept, at := t.TempDir(), t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(kept, "life"), []byte("3"), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := newKeeper(shown, kept)
	if err != nil {
		t.Fatal(err)
	}
	d := &disk{keeper: k, faults: map[kind]fault{}}
	server, err := d.mount(at)
	if err != nil {
		t.Fatalf("needs root and /dev/fuse: %v", err)
	}
	t.Cleanup(func() {
		if err := server.Unmount(); err != nil {
			t.Error(err)
		}
	})
	open := func(name string, flags int) *os.File {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(at, name), flags, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	holds := func(when string, want map[string]string) {
		t.Helper()
		if diff := cmp.Diff(want, tree(t, kept)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	file, folder := open("life.new", os.O_CREATE|os.O_WRONLY), open(".", os.O_RDONLY)
	if _, err := file.WriteString("4"); err != nil {
		t.Fatal(err)
	}
	holds("written", map[string]string{"life": "3"})
	if err := file.Sync(); err != nil {
		t.Fatal(err)
	}
	holds("the file is fsynced", map[string]string{"life": "3", "life.new": "4"})
	if err := os.Rename(filepath.Join(at, "life.new"), filepath.Join(at, "life")); err != nil {
		t.Fatal(err)
	}
	holds("renamed", map[string]string{"life": "3", "life.new": "4"})
	if err := d.order("fail sync EIO"); err != nil {
		t.Fatal(err)
	}
	if err := folder.Sync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("a folder's fsync on a disk that fails: %v", err)
	}
	d.well()
	if err := folder.Sync(); err != nil {
		t.Fatal(err)
	}
	holds("the folder is fsynced", map[string]string{"life": "4"})
	if names, err := folder.Readdirnames(-1); err != nil || len(names) != 1 || names[0] != "life" {
		t.Errorf("it shows %v, %v", names, err)
	}
}
