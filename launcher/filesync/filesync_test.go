package filesync

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

const job = launcher.JobID("abcd234567")

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openStore(t testing.TB) *Store {
	t.Helper()
	s, err := OpenStore(filepath.Join(t.TempDir(), "stage"))
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// bring does all that handing over and laying out take.
func bring(t testing.TB, s *Store, id launcher.JobID, user string, f Files) (sent int) {
	t.Helper()
	missing, err := s.Begin(id, user, f.Manifest)
	must(t, err)
	for _, sum := range missing {
		in, err := f.Open(sum)
		must(t, err)
		must(t, Chunks(in, func(offset int64, data []byte) error { return s.Write(id, user, sum, offset, data) }))
		must(t, in.Close())
	}
	must(t, s.Lay(id, user, os.Getuid(), os.Getgid()))
	return len(missing)
}

func project(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "lib", "deep"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "run.sh"), []byte("#!/bin/sh\n"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "lib", "empty"), nil, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "lib", "deep", "big"), []byte(strings.Repeat("0123456789", ChunkBytes/4)),
		0o640))
	must(t, os.Symlink("../run.sh", filepath.Join(dir, "lib", "run")))
	must(t, os.Chmod(filepath.Join(dir, "lib", "deep"), 0o750))
	must(t, os.Chmod(filepath.Join(dir, "run.sh"), 0o755))
	return dir
}

func scanned(t testing.TB, sources ...Source) Files {
	t.Helper()
	f, err := Scan(sources)
	must(t, err)
	return f
}

// What has been laid out is, scanned again, what was staged.
func TestRoundTrip(t *testing.T) {
	dir, s := project(t), openStore(t)
	f := scanned(t, Source{dir, "proj"}, Source{filepath.Join(dir, "run.sh"), "bin/start"})
	if sent := bring(t, s, job, "ada", f); sent != 3 {
		t.Errorf("%d contents sent, want 3: the script once", sent)
	}
	at := Tree(s.dir, job)
	if diff := cmp.Diff(f.Manifest, scanned(t, Source{at, "."}).Manifest); diff != "" {
		t.Errorf("laid out (-staged +there):\n%s", diff)
	}

	// Asked again, nothing is sent and nothing overwritten: a restart finds its checkpoints.
	must(t, os.WriteFile(filepath.Join(at, "checkpoint"), nil, 0o600))
	if sent := bring(t, s, job, "ada", f); sent != 0 {
		t.Errorf("%d contents sent again", sent)
	}
	if _, err := os.Stat(filepath.Join(at, "checkpoint")); err != nil {
		t.Error(err)
	}

	// Another job of hers needs none either, and goes on when the first is removed; another user's does.
	if sent := bring(t, s, "job2job2", "ada", f); sent != 0 {
		t.Errorf("%d contents sent for the same user's next job", sent)
	}
	must(t, os.RemoveAll(filepath.Join(s.dir, string(job))))
	must(t, s.Read("job2job2", "ada", f.Manifest[len(f.Manifest)-1].Sum, func(int64, []byte) error { return nil }))
	if missing, err := s.Begin("job3job3", "eve", f.Manifest); err != nil || len(missing) != 3 {
		t.Errorf("eve's job misses %d contents (%v), want all 3", len(missing), err)
	}
}

func TestOnlyItsUserHasIt(t *testing.T) {
	f, s := scanned(t, Source{project(t), "."}), openStore(t)
	bring(t, s, job, "ada", f)
	sum := f.Manifest[len(f.Manifest)-1].Sum
	if _, err := s.Manifest(job, "eve"); !errors.Is(err, ErrNone) {
		t.Errorf("eve reads the manifest: %v", err)
	}
	if err := s.Read(job, "eve", sum, func(int64, []byte) error { return nil }); !errors.Is(err, ErrNone) {
		t.Errorf("eve reads a content: %v", err)
	}
	if err := s.Write(job, "eve", sum, 0, nil); !errors.Is(err, ErrNone) {
		t.Errorf("eve writes a content: %v", err)
	}
	if _, err := s.Begin(job, "eve", f.Manifest); !errors.Is(err, launcher.ErrInvalid) {
		t.Errorf("eve takes the job over: %v", err)
	}
	if err := s.Lay(job, "eve", 0, 0); !errors.Is(err, ErrNone) {
		t.Errorf("eve has it laid out: %v", err)
	}
}

func TestWrongContentIsRefused(t *testing.T) {
	s := openStore(t)
	m := Manifest{{Path: "a", Mode: 0o644, Size: 3, Sum: sumOf([]byte("abc"))}}
	_, err := s.Begin(job, "ada", m)
	must(t, err)
	if err := s.Write(job, "ada", m[0].Sum, 0, []byte("abd")); err == nil || !strings.Contains(err.Error(), "changed") {
		t.Errorf("another content: %v", err)
	}
	if err := s.Write(job, "ada", m[0].Sum, 0, []byte("abcd")); !errors.Is(err, launcher.ErrInvalid) {
		t.Errorf("too much: %v", err)
	}
	if err := s.Write(job, "ada", sumOf([]byte("x")), 0, []byte("x")); !errors.Is(err, launcher.ErrInvalid) {
		t.Errorf("a content of no file: %v", err)
	}
	if err := s.Lay(job, "ada", os.Getuid(), os.Getgid()); err == nil || !strings.Contains(err.Error(), "stage a:") {
		t.Errorf("laid out without content: %v", err)
	}
	if s.IsLaid(job) {
		t.Error("there is a tree")
	}
}

// What was broken off leaves nothing, by its sender's word or after a while; what is whole, or laid out, stays.
func TestHalfBroughtFilesGo(t *testing.T) {
	f, s := scanned(t, Source{project(t), "."}), openStore(t)
	begin := func(id launcher.JobID) {
		missing, err := s.Begin(id, "ada", f.Manifest)
		must(t, err)
		if len(missing) > 0 {
			must(t, s.Write(id, "ada", f.Manifest[2].Sum, 0, []byte("0123")))
		}
	}
	there := func() string {
		names, err := os.ReadDir(s.dir)
		must(t, err)
		out := ""
		for _, n := range names {
			out += n.Name() + " "
		}
		return out
	}
	begin("half234567")
	must(t, s.Drop("half234567", "eve"))
	must(t, s.Sweep(time.Hour))
	if got := there(); got != "half234567 " {
		t.Errorf("there is %q: another's word, or a short pause, took it", got)
	}
	must(t, s.Drop("half234567", "ada"))
	must(t, s.Drop("half234567", "ada"))
	begin("old2345678")
	must(t, s.Sweep(-time.Hour))
	if got := there(); got != "" {
		t.Errorf("left: %q", got)
	}
	bring(t, s, job, "ada", f)
	begin("whole23456") // has all of it from the other
	must(t, s.Drop(job, "ada"))
	must(t, s.Sweep(-time.Hour))
	if got := there(); got != string(job)+" whole23456 " {
		t.Errorf("there is %q", got)
	}
	if err := s.Write("whole23456", "ada", f.Manifest[2].Sum, 0, nil); err != nil {
		t.Errorf("a job's files after another's went: %v", err)
	}
}

// Each is refused with the name of what is wrong.
func TestScanRefuses(t *testing.T) {
	for name, plant := range map[string]func(at string) error{
		"fifo":     func(at string) error { return syscall.Mkfifo(at, 0o600) },
		"absolute": func(at string) error { return os.Symlink("/etc/passwd", at) },
		"bad\xff":  func(at string) error { return os.WriteFile(at, nil, 0o600) },
		"outside":  func(at string) error { return os.Symlink("../../x", at) },
		"winding":  func(at string) error { return os.Symlink("a/../../x", at) },
		"huge": func(at string) error {
			return errors.Join(os.WriteFile(at, nil, 0o600), os.Truncate(at, launcher.MaxStagedBytes+1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
			must(t, plant(filepath.Join(dir, "sub", name)))
			_, err := Scan([]Source{{dir, "."}})
			if err == nil || !strings.Contains(err.Error(), "sub/"+name) {
				t.Errorf("got %v", err)
			}
		})
	}
	if _, err := Scan([]Source{{filepath.Join(t.TempDir(), "none"), "x"}}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a source that is not there: %v", err)
	}
	one := filepath.Join(project(t), "run.sh")
	if _, err := Scan([]Source{{one, "x"}, {one, "x"}}); !errors.Is(err, launcher.ErrInvalid) {
		t.Errorf("two files at one place: %v", err)
	}
}

func TestParseSource(t *testing.T) {
	for text, want := range map[string]Source{
		"train.py": {"train.py", "train.py"}, "a/b": {"a/b", "a/b"}, ".": {".", "."}, "/opt/x": {"/opt/x", "x"},
		"../y": {"../y", "y"}, "a:b/c/": {"a", "b/c"},
		`run\:1`: {"run:1", "run:1"}, `run\:1:out\:2`: {"run:1", "out:2"},
	} {
		if got, err := ParseSource(text); err != nil || got != want {
			t.Errorf("%s: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", ":x", "a:", "a:/abs", "a:../up", "a:b/../../c"} {
		if got, err := ParseSource(text); !errors.Is(err, launcher.ErrInvalid) {
			t.Errorf("%q is taken as %v (%v)", text, got, err)
		}
	}
}

// layout is what a hostile node could ask for: whatever is valid must be laid
// out inside, with links that os.Root finds to stay inside.
func layout(t testing.TB, m Manifest) {
	t.Helper()
	if m.Validate() != nil {
		return
	}
	base := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(base, "out", "top"), 0o700))
	must(t, os.WriteFile(filepath.Join(base, "content"), nil, 0o600))
	top, err := os.OpenRoot(filepath.Join(base, "out", "top"))
	must(t, err)
	defer top.Close()
	l := layer{top: top, uid: os.Getuid(), gid: os.Getgid(),
		open: func(string) (*os.File, error) { return os.Open(filepath.Join(base, "content")) }}
	_ = l.lay(m) // it may fail: a name can be too long, a content wrong
	for _, e := range m {
		if e.Mode.Type() != fs.ModeSymlink {
			continue
		}
		if _, err := top.Stat(e.Path); err != nil && strings.Contains(err.Error(), "escapes") {
			t.Fatalf("link %s -> %s leads out: %v; manifest %+v", e.Path, e.Link, err, m)
		}
	}
	for dir, want := range map[string][]string{base: {"content", "out"}, filepath.Join(base, "out"): {"top"}} {
		var got []string
		entries, _ := os.ReadDir(dir)
		for _, d := range entries {
			got = append(got, d.Name())
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%s has %v, want %v; manifest %+v", dir, got, want, m)
		}
	}
}

// Random trees of folders and links to each other and up.
func TestLinksStayInside(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(from []string) string { return from[r.IntN(len(from))] }
	laid := 0
	for range 400 {
		dirs, taken := []string{"."}, map[string]bool{}
		var m Manifest
		add := func(e Entry) bool {
			if taken[e.Path] || e.validate() != nil {
				return false
			}
			taken[e.Path] = true
			m = append(m, e)
			return true
		}
		for range 12 {
			at := path.Join(pick(dirs), pick([]string{"a", "b", "c", "d"}))
			if r.IntN(2) == 0 {
				if add(Entry{Path: at, Mode: fs.ModeDir | 0o755}) {
					dirs = append(dirs, at)
				}
				continue
			}
			var names []string
			for range 1 + r.IntN(5) {
				names = append(names, pick([]string{"..", "..", ".", "", "a", "b", "c", "d"}))
			}
			add(Entry{Path: at, Mode: fs.ModeSymlink | 0o777, Link: strings.Join(names, "/")})
		}
		slices.SortFunc(m, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
		must(t, m.Validate())
		laid += len(m)
		layout(t, m)
	}
	if laid < 1000 {
		t.Errorf("%d entries only: the test tests too little", laid)
	}
}

func FuzzManifest(f *testing.F) {
	f.Add("a", uint32(fs.ModeDir|0o755), "", "a/b", uint32(fs.ModeSymlink|0o777), "../c")
	f.Add("..", uint32(0o644), "", "../x", uint32(0o644), "")
	f.Add("a", uint32(fs.ModeSymlink|0o777), "/etc", "a/passwd", uint32(0o644), "")
	f.Add("l", uint32(fs.ModeSymlink|0o777), "..", "x\x00", uint32(fs.ModeNamedPipe), "")
	f.Fuzz(func(t *testing.T, p1 string, m1 uint32, l1, p2 string, m2 uint32, l2 string) {
		var m Manifest
		for _, e := range []Entry{{Path: p1, Mode: fs.FileMode(m1), Link: l1}, {Path: p2, Mode: fs.FileMode(m2), Link: l2}} {
			if e.Mode.IsRegular() {
				e.Sum = sumOf(nil)
			}
			m = append(m, e)
		}
		layout(t, m)
	})
}
