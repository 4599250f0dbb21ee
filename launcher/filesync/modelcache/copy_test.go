package modelcache

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A commit is copied into another cache, as whole as it was; a spoilt file is not; what is there already stays.
func TestCopyTo(t *testing.T) {
	c := open(t, Config{})
	f, g := lfs("model.safetensors", big), git("config.json", "{}")
	put(t, c, f, big)
	put(t, c, g, []byte("{}"))
	m := Manifest{Repo: repo, Commit: commit, Ref: "main", Files: []File{f, g}}
	_, err := c.Commit(m)
	must(t, err)
	to := filepath.Join(t.TempDir(), "hub")
	copyTo := func() (string, error) {
		return c.CopyTo(t.Context(), Config{Dir: to}, m)
	}
	dir, err := copyTo()
	if must(t, err); dir != SnapshotDir(to, repo, commit) {
		t.Errorf("it is in %s", dir)
	}
	theirs := open(t, Config{Dir: to})
	check(t, theirs, f, big)
	h, err := theirs.Look(repo)
	if must(t, err); len(h.Commits) != 1 || !h.Commits[0].Whole() || len(h.Commits[0].Refs) != 1 {
		t.Errorf("it has %+v", h)
	}
	if left, _ := filepath.Glob(filepath.Join(to, "*/sparkrun/copy-*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
	var before, after unix.Stat_t
	must(t, unix.Stat(theirs.at("blobs", f.ETag()), &before))
	_, err = copyTo()
	must(t, errors.Join(err, unix.Stat(theirs.at("blobs", f.ETag()), &after)))
	if before.Ino != after.Ino {
		t.Error("it was copied twice")
	}
	must(t, errors.Join(os.Remove(theirs.at("blobs", g.ETag())), os.WriteFile(c.at("blobs", g.ETag()), []byte("[]"), 0o644)))
	if _, err := copyTo(); !errors.Is(err, ErrSum) && !reflinks(t) {
		t.Errorf("a spoilt file: %v", err)
	}
}

// reflinks tells whether files share blocks here: then nothing is copied, and nothing judged.
func reflinks(t *testing.T) bool {
	a, err := os.Create(filepath.Join(t.TempDir(), "a"))
	must(t, err)
	defer a.Close()
	b, err := os.Create(filepath.Join(t.TempDir(), "b"))
	must(t, err)
	defer b.Close()
	_, err = a.WriteString("text")
	must(t, err)
	return unix.IoctlFileClone(int(b.Fd()), int(a.Fd())) == nil
}
