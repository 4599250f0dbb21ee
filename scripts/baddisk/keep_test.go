package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tree is a folder as a map from names to contents; folders end in a slash.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		if info.IsDir() {
			out[name+"/"] = ""
			return nil
		}
		b, err := os.ReadFile(path)
		out[name] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// What a power failure leaves, step by step: each does something to what is shown
// and tells the keeper what the file system would.
func TestKeeper(t *testing.T) {
	shown, kept := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(kept, "old"), []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := newKeeper(shown, kept)
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(name string, off int64, text string) {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(shown, name), os.O_WRONLY|os.O_CREATE, 0o600)
		must(err)
		_, err = f.WriteAt([]byte(text), off)
		must(err)
		must(f.Close())
		k.wrote(name, off, int64(len(text)))
	}
	rename := func(from, to string) {
		t.Helper()
		k.unlinks(filepath.Dir(to), filepath.Base(to))
		must(os.Rename(filepath.Join(shown, from), filepath.Join(shown, to)))
	}
	steps := []struct {
		what string
		do   func()
		want map[string]string
	}{
		{"written and not fsynced", func() { write("old", 2, "ab") }, map[string]string{"old": "0123456789"}},
		{"fsynced", func() { must(k.sync("old")) }, map[string]string{"old": "01ab456789"}},
		{"a new file", func() { write("new", 0, "text") }, map[string]string{"old": "01ab456789"}},
		{"its folder fsynced, not itself", func() { must(k.sync("")) }, map[string]string{"old": "01ab456789", "new": ""}},
		{"itself", func() { must(k.sync("new")) }, map[string]string{"old": "01ab456789", "new": "text"}},
		{"renamed over another", func() { rename("new", "old") }, map[string]string{"old": "01ab456789", "new": "text"}},
		{"and the folder fsynced", func() { must(k.sync("")) }, map[string]string{"old": "text"}},
		{"a file in a new folder", func() {
			must(os.Mkdir(filepath.Join(shown, "d.tmp"), 0o700))
			write("d.tmp/f", 0, "deep")
			must(k.sync("d.tmp/f"))
		}, map[string]string{"old": "text", "d.tmp/": "", "d.tmp/f": "deep"}},
		{"a folder renamed", func() { rename("d.tmp", "d"); must(k.sync("")) }, map[string]string{"old": "text", "d/": "", "d/f": "deep"}},
		{"a file in it written again", func() { write("d/f", 0, "D"); must(k.sync("d/f")) }, map[string]string{"old": "text", "d/": "", "d/f": "Deep"}},
		{"shortened, not fsynced", func() { must(os.Truncate(filepath.Join(shown, "old"), 1)); k.wrote("old", 0, whole) }, map[string]string{"old": "text", "d/": "", "d/f": "Deep"}},
		{"shortened", func() { must(k.sync("old")) }, map[string]string{"old": "t", "d/": "", "d/f": "Deep"}},
		{"removed, folder not fsynced", func() {
			k.unlinks("", "old")
			must(os.Remove(filepath.Join(shown, "old")))
		}, map[string]string{"old": "t", "d/": "", "d/f": "Deep"}},
		{"removed", func() { must(k.sync("")) }, map[string]string{"d/": "", "d/f": "Deep"}},
	}
	for _, s := range steps {
		s.do()
		if diff := cmp.Diff(s.want, tree(t, kept)); diff != "" {
			t.Errorf("%s (-want +kept):\n%s", s.what, diff)
		}
	}
}

func TestOrders(t *testing.T) {
	d := &disk{faults: map[kind]fault{}}
	for _, bad := range []string{"", "rest", "hang", "hang sleep", "fail write", "fail write EPERM", "slow sync soon", "slow 3s"} {
		if d.order(bad) == nil {
			t.Errorf("the order %q is taken", bad)
		}
	}
	for _, good := range []string{"hang write sync", "hang read", "fail sync EIO", "slow write 1ms", "well"} {
		if err := d.order(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	if err := d.meet("write"); err != 0 {
		t.Errorf("all is well, and a write says %v", err)
	}
}
