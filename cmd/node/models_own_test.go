package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
)

// A model is put into a user's own cache as that user: all of it is the user's, and nothing is written where the user
// may not write, wherever links lead.
func TestModelOwnCache(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("other users take root")
	}
	t.Parallel()
	dir, err := os.MkdirTemp("", "models") // t.TempDir is root's alone
	home, roots := filepath.Join(dir, "home"), filepath.Join(dir, "roots")
	if err := errors.Join(err, os.Chmod(dir, 0o755), os.Mkdir(home, 0o755), os.Mkdir(roots, 0o755),
		os.Symlink(roots, filepath.Join(home, "link")), os.Chown(home, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	policy := filepath.Join(dir, "policy.yaml") // nobody has to be able to read the cache
	if err := os.WriteFile(policy, []byte("model_cache: "+dir+"/cache\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c, s := withHub(t, 1, func(c *Config) { c.Paths.Policy = policy })
	h := c.hosts[0]
	r := pullOf(tiny)
	r.OwnCache, r.OwnDir = true, filepath.Join(home, "hf/hub")
	p := h.pullAs(nobody, r)
	p.whole(t, h)
	if got := p.of("spark1").Dir; !strings.HasPrefix(got, r.OwnDir+"/models--org--tiny/snapshots/") {
		t.Errorf("it is in %s", got)
	}
	files := 0
	if err := filepath.WalkDir(home, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if sys, ok := st.Sys().(*syscall.Stat_t); err == nil && ok && sys.Uid != 65534 && d.Name() != "link" {
			t.Errorf("%s is of uid %d", path, sys.Uid)
		}
		files++
		return err
	}); err != nil || files < 20 {
		t.Errorf("%d files, %v", files, err)
	}
	if s.Sent() != tinyBytes() {
		t.Errorf("%d bytes from outside, want %d", s.Sent(), tinyBytes())
	}
	r.ID, r.OwnDir = launcher.NewJobID(), filepath.Join(home, "link")
	p = h.pullAs(nobody, r)
	<-p.over
	if st := p.of("spark1"); !strings.Contains(st.Error, "permission denied") {
		t.Errorf("into root's folder: %+v, %v", st, p.err)
	}
	if left, _ := os.ReadDir(roots); len(left) > 0 {
		t.Errorf("%s was written to root's folder", left[0].Name())
	}
}
