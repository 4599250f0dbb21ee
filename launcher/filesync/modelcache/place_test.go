package modelcache

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A machine's cache lies where nobody but root can change it, and on storage that can do what it takes.
func TestPlace(t *testing.T) {
	top := t.TempDir()
	at := func(name string) string { return filepath.Join(top, name) }
	must(t, Place(at("new/models")))
	must(t, Place(at("new/models")))
	if left, _ := filepath.Glob(at("new/models/.*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
	must(t, errors.Join(os.Symlink(at("new"), at("link")), os.WriteFile(at("file"), nil, 0o644),
		os.Mkdir(at("open"), 0o755), os.Chmod(at("open"), 0o777), os.Mkdir(at("sticky"), 0o755),
		os.Chmod(at("sticky"), 0o777|os.ModeSticky)))
	must(t, Place(at("sticky/models")))
	tests := map[string]string{
		"models":                 "full path",
		"/":                      "full path",
		at("new") + "/../models": "full path",
		at("link/models"):        "link is a link to " + at("new") + ": name the folder itself",
		at("file/models"):        "file is no folder",
		at("open/models"):        "may write in " + at("open") + ": sudo chmod go-w " + at("open"),
		at("sticky"):             "may write in",
		"/proc/models":           "/proc/models",
	}
	if os.Geteuid() == 0 {
		must(t, errors.Join(os.Mkdir(at("ada"), 0o755), os.Chown(at("ada"), 1000, 1000)))
		tests[at("ada/models")] = "ada belongs to uid 1000, who could put another in its place: sudo chown root " + at("ada")
	}
	for dir, want := range tests {
		if err := Place(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", dir, err, want)
		}
	}
	for want, flock := range map[string]func(int, int) error{
		"has no flock":         func(int, int) error { return unix.ENOSYS },
		"gives one lock twice": func(int, int) error { return nil },
	} {
		if err := able(at("new"), flock); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// asUID tries to read a file as another user, in another process.
func asUID(t *testing.T, uid, gid, file string) bool {
	t.Helper()
	out, err := exec.Command("setpriv", "--reuid="+uid, "--regid="+gid, "--clear-groups", "cat", file).CombinedOutput()
	if err != nil && !strings.Contains(string(out), "ermission denied") {
		t.Fatalf("cat %s: %v: %s", file, err, out)
	}
	return err == nil
}

// A restricted repository is read by those alone who have the right to it; so is a cache that a rule narrows.
func TestReaders(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("other users take root")
	}
	dir, err := os.MkdirTemp("", "models") // t.TempDir is root's alone
	must(t, errors.Join(err, os.Chmod(dir, 0o755)))
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := open(t, Config{Dir: filepath.Join(dir, "hub")})
	must(t, errors.Join(c.CanRestrict(), c.Restrict(repo, 1001)))
	f := lfs("model.safetensors", []byte("secret"))
	put(t, c, f, []byte("secret"))
	snapshot, err := c.Commit(Manifest{Repo: repo, Commit: commit, Ref: "main", Files: []File{f}})
	must(t, err)
	may := func(want string) {
		t.Helper()
		got := ""
		for _, uid := range []string{"1001", "1002", "1003"} {
			if asUID(t, uid, "1"+uid, filepath.Join(snapshot, f.Path)) {
				got += uid + " "
			}
		}
		if got != want {
			t.Errorf("it is read by %q, want %q", got, want)
		}
		h, err := c.Look(repo)
		if must(t, err); h.Restricted != (want != "1001 1002 1003 ") {
			t.Errorf("restricted: %v", h.Restricted)
		}
	}
	may("1001 ")
	must(t, c.Restrict(repo, 1002))
	must(t, c.Restrict(repo, 1002))
	may("1001 1002 ")
	put(t, c, lfs("other", []byte("more")), []byte("more"))
	may("1001 1002 ")
	must(t, c.Share(repo))
	may("1001 1002 1003 ")
	must(t, c.Restrict(repo, 1001)) // others could read it already
	may("1001 1002 1003 ")

	narrowed := func(r *Readers, want string) {
		t.Helper()
		must(t, c.Admit(r))
		got := ""
		for _, uid := range []string{"1001", "1002", "1003"} {
			if asUID(t, uid, "1"+uid, filepath.Join(snapshot, f.Path)) {
				got += uid + " "
			}
		}
		if got != want {
			t.Errorf("%+v: the cache is read by %q, want %q", r, got, want)
		}
	}
	narrowed(&Readers{UIDs: []uint32{1003}, GIDs: []uint32{11001, 5}}, "1001 1003 ")
	narrowed(&Readers{}, "")
	narrowed(nil, "1001 1002 1003 ")
	must(t, os.Mkdir(filepath.Join(dir, "hub", "photos"), 0o755))
	if err := c.Admit(&Readers{}); err == nil || !strings.Contains(err.Error(), "photos") {
		t.Errorf("a folder of others is closed: %v", err)
	}

	plainDir := filepath.Join(dir, "ramfs")
	must(t, errors.Join(os.Mkdir(plainDir, 0o755), unix.Mount("ramfs", plainDir, "ramfs", 0, "")))
	t.Cleanup(func() { unix.Unmount(plainDir, unix.MNT_DETACH) })
	without := open(t, Config{Dir: filepath.Join(plainDir, "hub")})
	for what, err := range map[string]error{"can": without.CanRestrict(), "restrict": without.Restrict(repo, 1001),
		"admit": without.Admit(&Readers{})} {
		if !errors.Is(err, ErrNoACL) {
			t.Errorf("%s without ACLs: %v", what, err)
		}
	}
	if _, err := without.Look(repo); !errors.Is(err, ErrAbsent) {
		t.Errorf("something was left of it: %v", err)
	}
	must(t, errors.Join(without.Admit(nil), without.Share(repo)))
}
