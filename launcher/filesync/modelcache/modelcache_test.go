package modelcache

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

const other = "fedcba9876543210fedcba9876543210fedcba98"

func manifest(files ...File) Manifest {
	return Manifest{Repo: repo, Commit: commit, Ref: "main", Files: files}
}

// fill has a commit in the cache: each file's content is its path.
func fill(t *testing.T, c *Cache, m Manifest) {
	t.Helper()
	missing, err := c.Missing(m)
	must(t, err)
	for _, f := range missing {
		put(t, c, f, []byte(f.Path))
	}
	_, err = c.Commit(m)
	must(t, err)
}

func named(path string) File { return lfs(path, []byte(path)) }

func TestCommit(t *testing.T) {
	c := open(t, Config{})
	m := manifest(git("config.json", "config.json"), named("a/b/w.safetensors"), named("w2.safetensors"))
	if _, err := c.Commit(m); !errors.Is(err, ErrAbsent) {
		t.Fatalf("a commit without its files: %v", err)
	}
	if _, err := os.Lstat(c.at("refs", "main")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("there is a ref to what is not there: %v", err)
	}
	fill(t, c, m)
	for _, f := range m.Files {
		at := filepath.Join(c.Dir(repo, commit), f.Path)
		if got, err := os.ReadFile(at); err != nil || string(got) != f.Path {
			t.Errorf("%s: %q, %v", f.Path, got, err)
		}
		if to, err := os.Readlink(at); err != nil || filepath.IsAbs(to) {
			t.Errorf("%s links to %s, %v", f.Path, to, err)
		}
	}
	if ref, err := os.ReadFile(c.at("refs", "main")); err != nil || string(ref) != commit {
		t.Errorf("the ref is %q, %v", ref, err)
	}
	// Again, with a link that leads elsewhere: it is made right, and nothing else is touched.
	at := filepath.Join(c.Dir(repo, commit), "w2.safetensors")
	must(t, errors.Join(os.Remove(at), os.Symlink("/etc/passwd", at)))
	fill(t, c, m)
	if got, err := os.ReadFile(at); err != nil || string(got) != "w2.safetensors" {
		t.Errorf("%q, %v", got, err)
	}
}

// The listing that huggingface_hub judges a snapshot by is there when the snapshot has it all, and only then.
func TestListing(t *testing.T) {
	c := open(t, Config{})
	m := manifest(git("config.json", "config.json"), named("w.safetensors"))
	m.Left = []File{named("w.bin")}
	must(t, os.MkdirAll(c.at("trees"), 0o755))
	must(t, os.WriteFile(c.at("trees", commit+".json"), []byte("{}"), 0o644)) // an interrupted download's
	fill(t, c, m)
	if _, err := os.Lstat(c.at("trees", commit+".json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a listing says that the snapshot is broken: %v", err)
	}
	m.Files, m.Left = append(m.Files, m.Left...), nil
	fill(t, c, m)
	var got map[string]any
	text, err := os.ReadFile(c.at("trees", commit+".json"))
	must(t, errors.Join(err, json.Unmarshal(text, &got)))
	sum := named("w.safetensors").SHA256
	entry := got["files"].(map[string]any)["w.safetensors"].(map[string]any)
	if got["format_version"] != 1.0 || len(got["files"].(map[string]any)) != 3 || entry["lfs_sha256"] != sum ||
		len(entry["blob_id"].(string)) != 40 {
		t.Errorf("%s", text)
	}
}

func TestLook(t *testing.T) {
	c := open(t, Config{})
	m := manifest(named("a"), named("b"), lfs("model.safetensors", big))
	must(t, c.Expect(m))
	put(t, c, named("a"), []byte("a"))
	p := begin(t, c, m.Files[2])
	_, err := p.Write(big[:ChunkBytes+10])
	must(t, errors.Join(err, p.Close()))
	must(t, os.WriteFile(c.at("blobs", "0123.incomplete"), []byte("half"), 0o644))
	soon := time.Now().Add(time.Hour) // by relatime, a file's access time tells little of when it was read
	must(t, os.Chtimes(c.at("blobs", named("a").ETag()), soon, time.Time{}))
	must(t, os.MkdirAll(c.at("snapshots", other), 0o755)) // another tool's, whose blob is gone
	must(t, os.Symlink("../../blobs/"+m.Files[1].SHA256, c.at("snapshots", other, "b")))
	must(t, os.Mkdir(filepath.Join(c.cfg.Dir, "models--..--etc"), 0o755))
	must(t, os.Mkdir(filepath.Join(c.cfg.Dir, "spaces--org--x"), 0o755))
	all, err := c.List()
	if must(t, err); len(all) != 1 {
		t.Fatalf("%+v", all)
	}
	want := []Commit{
		{Commit: commit, Files: 3, Bytes: m.Bytes(), Have: ChunkBytes + 1, Missing: []string{"a", "b", "model.safetensors"}},
		{Commit: other, Files: 1, Missing: []string{"b"}, Unsized: true},
	}
	if d := cmp.Diff(want, all[0].Commits); d != "" {
		t.Error(d)
	}
	if h := all[0]; len(h.Foreign) != 1 || h.InUse || h.Bytes < int64(len(big)) ||
		h.Used.IsZero() || h.Used.After(time.Now()) {
		t.Errorf("%+v", h)
	}
	if text, err := os.ReadFile(c.at("blobs", "0123.incomplete")); err != nil || string(text) != "half" {
		t.Errorf("another tool's file: %q, %v", text, err)
	}
	p = begin(t, c, m.Files[2])
	_, err = p.Write(big[ChunkBytes:])
	must(t, errors.Join(err, p.Finish(false)))
	fill(t, c, m)
	h, err := c.Look(repo)
	if must(t, err); !h.Commits[0].Whole() || h.Commits[0].Have != m.Bytes() || h.Commits[0].Refs[0] != "main" {
		t.Errorf("%+v", h)
	}
}

// Each file that is not what it should be is told, and none is removed: it counts as missing until it is right again.
func TestVerify(t *testing.T) {
	c := open(t, Config{})
	m := manifest(git("config.json", "config.json"), named("good"), named("flipped"), named("short"), named("gone"),
		named("away"), named("dir/good2"))
	fill(t, c, m)
	must(t, os.WriteFile(c.at("blobs", named("flipped").SHA256), []byte("flipPed"), 0o644))
	must(t, os.WriteFile(c.at("blobs", named("short").SHA256), []byte("sho"), 0o644))
	must(t, os.Remove(c.at("blobs", named("gone").SHA256)))
	blob := c.at("blobs", named("away").SHA256)
	must(t, errors.Join(os.Remove(blob), os.Symlink("/etc/hostname", blob)))
	var read int64
	bad, err := c.Verify(t.Context(), repo, "", func(n int64) { read += n })
	must(t, err)
	var got []string
	for _, b := range bad {
		got = append(got, b.Path)
	}
	if d := cmp.Diff([]string{"flipped", "short", "gone", "away"}, got); d != "" || read == 0 {
		t.Errorf("%s\n%+v", d, bad)
	}
	if _, err := os.Lstat(c.at("blobs", named("short").SHA256)); err != nil {
		t.Errorf("it was removed: %v", err)
	}
	missing, err := c.Missing(m)
	if must(t, err); len(missing) != 4 { // those are fetched again
		t.Errorf("%+v", missing)
	}
	if h, err := c.Look(repo); err != nil || len(h.Commits[0].Missing) != 4 {
		t.Errorf("%+v, %v", h, err)
	}
	if _, err := c.OpenBlob(repo, named("flipped")); !errors.Is(err, ErrAbsent) {
		t.Errorf("it is handed on: %v", err)
	}
	must(t, os.WriteFile(c.at("blobs", named("flipped").SHA256), []byte("flipped"), 0o644)) // by hand
	put(t, c, named("short"), []byte("short"))
	_, err = c.Verify(t.Context(), repo, "", nil)
	must(t, err)
	if missing, err := c.Missing(m); err != nil || len(missing) != 2 {
		t.Errorf("%+v, %v", missing, err)
	}
	if _, err := c.Verify(t.Context(), repo, other, nil); !errors.Is(err, ErrAbsent) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Verify(ctx, repo, "", nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Nobody else opens the locks of a cache that is one program's alone: flock(2) takes no right but that.
func TestPrivateLocks(t *testing.T) {
	c := open(t, Config{Private: true})
	at := filepath.Join(c.cfg.Dir, leaseOf(repo))
	must(t, os.MkdirAll(filepath.Dir(at), 0o755))
	must(t, os.WriteFile(at, nil, 0o664)) // another tool's
	lease, err := c.Hold(repo)
	must(t, err)
	defer lease.Drop()
	st, err := os.Stat(at)
	must(t, err)
	if st.Mode().Perm() != 0o600 {
		t.Errorf("%v", st.Mode())
	}
}

// A model is not removed under a job, nor under a download; a commit takes only its own contents with it.
func TestRemove(t *testing.T) {
	c := open(t, Config{})
	if err := c.Remove(repo, ""); !errors.Is(err, ErrAbsent) {
		t.Fatal(err)
	}
	m := manifest(named("shared"), named("old"))
	fill(t, c, m)
	next := Manifest{Repo: repo, Commit: other, Ref: "v2", Files: []File{named("shared"), named("new")}}
	fill(t, c, next)

	lease, err := c.Hold(repo)
	must(t, err)
	fd, err := unix.Dup(int(lease.File().Fd())) // a job's process has inherited it
	must(t, err)
	lease.Drop()
	if h, err := c.Look(repo); err != nil || !h.InUse {
		t.Errorf("it is not in use: %v", err)
	}
	if err := c.Remove(repo, ""); !errors.Is(err, ErrInUse) {
		t.Fatalf("removed under a job: %v", err)
	}
	must(t, unix.Close(fd))
	p := begin(t, c, named("more"))
	if err := c.Remove(repo, commit); !errors.Is(err, ErrInUse) {
		t.Fatalf("removed under a download: %v", err)
	}
	must(t, p.Close())
	theirs, err := os.Create(filepath.Join(c.cfg.Dir, ".locks", repo.dir(), "x.lock"))
	must(t, errors.Join(err, unix.Flock(int(theirs.Fd()), unix.LOCK_EX)))
	if err := c.Remove(repo, commit); !errors.Is(err, ErrInUse) {
		t.Fatalf("removed under another tool's download: %v", err)
	}
	must(t, theirs.Close())

	must(t, c.Remove(repo, commit))
	if _, err := os.Lstat(c.at("blobs", named("old").SHA256)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its content stays: %v", err)
	}
	if bad, err := c.Verify(t.Context(), repo, "", nil); err != nil || len(bad) > 0 {
		t.Errorf("the other commit: %+v, %v", bad, err)
	}
	h, err := c.Look(repo)
	if must(t, err); len(h.Commits) != 1 || h.Commits[0].Refs[0] != "v2" {
		t.Errorf("%+v", h)
	}
	must(t, c.Remove(repo, other))
	if _, err := os.Lstat(c.at()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder stays: %v", err)
	}
}

// Names from elsewhere, and links that somebody has put into the cache, lead nowhere.
func TestHostile(t *testing.T) {
	c := open(t, Config{})
	good := named("a")
	for name, m := range map[string]Manifest{
		"path up":        manifest(lfs("../../../../x", nil)),
		"absolute":       manifest(lfs("/x", nil)),
		"a line":         manifest(lfs("a\nb", nil)),
		"sum":            manifest(File{Path: "a", SHA256: "../../x"}),
		"no sum":         manifest(File{Path: "a"}),
		"two sums":       manifest(File{Path: "a", SHA256: good.SHA256, GitOID: commit}),
		"twice":          manifest(good, good),
		"file as folder": manifest(good, named("a/b")),
		"commit":         {Repo: repo, Commit: "../../../x", Files: []File{good}},
		"ref up":         {Repo: repo, Commit: commit, Ref: "../../../x", Files: []File{good}},
		"ref of a dot":   {Repo: repo, Commit: commit, Ref: "a/./b", Files: []File{good}},
		"repo":           {Repo: Repo{Model, "../../x"}, Commit: commit, Files: []File{good}},
		"repo of dots":   {Repo: Repo{Model, ".."}, Commit: commit, Files: []File{good}},
		"type":           {Repo: Repo{"../x", "a"}, Commit: commit, Files: []File{good}},
	} {
		if _, err := c.Commit(m); err == nil || errors.Is(err, ErrAbsent) {
			t.Errorf("%s: %v", name, err)
		}
		if err := c.Expect(m); err == nil {
			t.Errorf("%s is written down", name)
		}
	}
	for _, folder := range []string{"blobs", "snapshots", "refs", ours, "trees", "."} {
		t.Run("a link in place of "+folder, func(t *testing.T) {
			outside := t.TempDir()
			victim := filepath.Join(outside, good.SHA256)
			must(t, os.WriteFile(victim, []byte("theirs"), 0o644))
			c := open(t, Config{})
			must(t, os.MkdirAll(filepath.Dir(c.at(folder)), 0o755))
			must(t, os.Symlink(outside, c.at(folder)))
			p, err := c.Begin(repo, good)
			if err == nil {
				_, err = p.Write([]byte("a"))
				err = errors.Join(err, p.Finish(false))
			}
			if err == nil {
				_, err = c.Commit(manifest(good))
			}
			if err == nil {
				t.Error("nothing was wrong")
			}
			_ = c.Remove(repo, "")
			names, _ := os.ReadDir(outside)
			if text, err := os.ReadFile(victim); len(names) != 1 || err != nil || string(text) != "theirs" {
				t.Errorf("outside are %v, %q, %v", names, text, err)
			}
		})
	}
}

// A cache belongs to whom the policy names, with its modes, whoever fetched.
func TestOwner(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("to give files away takes root")
	}
	c := open(t, Config{Own: true, UID: 1234, GID: 4321, DirMode: 0o750, FileMode: 0o640})
	fill(t, c, manifest(named("sub/a")))
	must(t, filepath.WalkDir(c.cfg.Dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		must(t, err)
		sys := st.Sys().(*syscall.Stat_t)
		want := map[bool]fs.FileMode{true: 0o750, false: 0o640}[d.IsDir()]
		if strings.Contains(p, ".locks/") && !d.IsDir() {
			want = 0o664
		}
		if sys.Uid != 1234 || sys.Gid != 4321 || d.Type()&fs.ModeSymlink == 0 && st.Mode().Perm() != want {
			t.Errorf("%s: %d:%d %v, want %v", p, sys.Uid, sys.Gid, st.Mode(), want)
		}
		return nil
	}))
}

// What a training job wrote becomes a commit that is named by what is in it.
func TestAdd(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	write("config.json", "{}")
	write("sub/model.safetensors", "weights")
	write(".git/config", "not of the model")
	must(t, os.Symlink("sub/model.safetensors", filepath.Join(dir, "link")))
	src, err := os.OpenRoot(dir)
	must(t, err)
	defer src.Close()
	c := open(t, Config{})
	m, err := c.Add(t.Context(), src, repo, AddOptions{})
	if must(t, err); len(m.Commit) != 40 || len(m.Files) != 3 || m.Files[2].Path != "sub/model.safetensors" {
		t.Fatalf("%+v", m)
	}
	if bad, err := c.Verify(t.Context(), repo, "", nil); err != nil || len(bad) > 0 {
		t.Errorf("%+v, %v", bad, err)
	}
	again, err := c.Add(t.Context(), src, repo, AddOptions{})
	if must(t, err); again.Commit != m.Commit {
		t.Errorf("the same files are %s and %s", m.Commit, again.Commit)
	}
	write("config.json", "{1}") // the job goes on writing: what was added stays as it was
	if got, err := os.ReadFile(filepath.Join(c.Dir(repo, m.Commit), "config.json")); err != nil || string(got) != "{}" {
		t.Errorf("%q, %v", got, err)
	}
	again, err = c.Add(t.Context(), src, repo, AddOptions{})
	if must(t, err); again.Commit == m.Commit {
		t.Error("other files have the same commit")
	}
	killed := filepath.Join(c.cfg.Dir, repo.dir(), ours, addPrefix+"KILLED")
	must(t, os.WriteFile(killed, []byte("half"), 0o600))
	must(t, c.Sweep())
	if _, err := os.Stat(killed); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what a killed add has left is still there: %v", err)
	}
	for name, target := range map[string]string{"out": "/etc/passwd", "up": "../../../../etc/passwd", "dir": "/etc"} {
		must(t, os.Symlink(target, filepath.Join(dir, name)))
		if _, err := c.Add(t.Context(), src, repo, AddOptions{}); err == nil {
			t.Errorf("a link to %s was followed", target)
		}
		must(t, os.Remove(filepath.Join(dir, name)))
	}
	must(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o644))
	if _, err := c.Add(t.Context(), src, repo, AddOptions{}); err == nil {
		t.Error("a pipe was read")
	}
	if left, _ := filepath.Glob(c.at(ours, "add-*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}
