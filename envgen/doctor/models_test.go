package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What is root's in a user's cache is counted, links are not followed, and a large file is read.
func TestReadModels(t *testing.T) {
	root := t.TempDir()
	hub := filepath.Join(root, "home/ada", hubFolder, "hub")
	blobs := filepath.Join(hub, "models--org--m/blobs")
	if err := errors.Join(os.MkdirAll(blobs, 0o755), os.MkdirAll(filepath.Join(root, "etc"), 0o755),
		os.WriteFile(filepath.Join(root, "etc/passwd"), []byte("ada:x:1000:1000::/home/ada:/bin/sh\n"), 0o644),
		os.WriteFile(filepath.Join(blobs, "big"), make([]byte, storeBytes+5), 0o644),
		os.WriteFile(filepath.Join(blobs, "open"), nil, 0o644), os.Chmod(filepath.Join(blobs, "open"), 0o666),
		os.Symlink("/usr/lib", filepath.Join(hub, "models--org--link"))); err != nil {
		t.Fatal(err)
	}
	f := New(Config{Root: root, Run: answers{}.run, Models: "/none"}).Read(t.Context(), Ask{User: "ada"})
	direct, err := os.OpenFile(filepath.Join(blobs, "big"), os.O_RDONLY|unix.O_DIRECT, 0)
	if direct.Close(); err != nil {
		t.Log("not measured: no direct reads here:", err)
	} else if len(f.Models) != 1 || f.Models[0].Read != storeBytes && f.Models[0].Took < storePatient ||
		!f.Models[0].Own || f.Models[0].Repo != "models--org--m" {
		t.Errorf("storage: %+v", f.Models)
	}
	c := f.HubCache
	if c == nil || c.Files != 6 || c.Dir != "/home/ada/"+hubFolder || c.Closed != "" {
		t.Fatalf("cache: %+v", c)
	}
	if os.Geteuid() != 0 {
		t.Skip("root's files take root")
	}
	if c.Roots != 5 {
		t.Errorf("%d are root's, want 5: %+v", c.Roots, c)
	}
	if err := filepath.WalkDir(filepath.Join(root, "home/ada"), func(p string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(p, 1000, 1000))
	}); err != nil {
		t.Fatal(err)
	}
	f = New(Config{Root: root, Run: answers{}.run}).Read(t.Context(), Ask{User: "ada"})
	if f.HubCache.Roots != 0 {
		t.Errorf("after the chown: %+v", f.HubCache)
	}
	if err := errors.Join(os.Rename(filepath.Dir(hub), filepath.Join(root, "etc/hf")),
		os.Symlink("../../../etc/hf", filepath.Dir(hub))); err != nil {
		t.Fatal(err)
	}
	f = New(Config{Root: root, Run: answers{}.run}).Read(t.Context(), Ask{User: "ada"})
	if f.HubCache.Dir != "/etc/hf" {
		t.Errorf("it does not say where the link leads: %+v", f.HubCache)
	}
	f = New(Config{Root: root, Run: answers{}.run}).Read(t.Context(), Ask{User: "root"})
	if f.HubCache != nil || len(f.Models) != 0 {
		t.Errorf("for root: %+v, %+v", f.HubCache, f.Models)
	}
}

func slowStore(network string, own bool) func(*Facts) {
	return func(f *Facts) {
		f.Models = []ModelStore{{Dir: "/data/models", Repo: "models--org--m", Read: 30e6, Took: 300 * time.Millisecond,
			Network: network, Own: own}}
	}
}
