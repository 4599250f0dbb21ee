package modeldir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What lies under the name of a model's file may be anything: none of it is waited for, or read for ever.
func TestLookAtStrangeFiles(t *testing.T) {
	const good = `{"model_type":"m"}`
	for name, tt := range map[string]struct {
		put  func(at string) error
		want string // of the config; empty: none
		says string
	}{
		"a config": {put: text(good), want: good},
		"none":     {put: func(string) error { return nil }, says: "no such file"},
		"a pipe": {put: func(at string) error { return unix.Mkfifo(at, 0o644) },
			says: "want a file of at most 1048576 bytes"},
		"a device": {put: func(at string) error { return os.Symlink("/dev/zero", at) },
			says: "want a file of at most 1048576 bytes"},
		"a loop of links": {put: func(at string) error { return os.Symlink("config.json", at) }, says: "too many levels"},
		"a folder": {put: func(at string) error { return os.Mkdir(at, 0o755) },
			says: "want a file of at most 1048576 bytes"},
		"10 GB of nothing": {put: func(at string) error { return errors.Join(text("")(at), os.Truncate(at, 10<<30)) },
			says: "want a file of at most 1048576 bytes"},
		"a deep one":        {put: text(strings.Repeat(`{"a":`, 100_000)), says: "max depth"},
		"half of one":       {put: text(`{"model_type":"m"`), says: "unexpected end"},
		"somebody's secret": {put: text(`{"auths":{}}`), says: "no model_type"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, tt.put(filepath.Join(dir, "config.json")))
			must(t, text("123")(filepath.Join(dir, "a.safetensors")))
			c, err := Look(dir)
			if string(c.Config) != tt.want || c.Bytes != 3 || (err == nil) != (tt.says == "") || err != nil &&
				!strings.Contains(err.Error(), tt.says) {
				t.Errorf("config %q, %d bytes of weights, %v", c.Config, c.Bytes, err)
			}
			if errors.Is(err, fs.ErrNotExist) != (name == "none") {
				t.Errorf("%v", err)
			}
		})
	}
}

func text(s string) func(string) error {
	return func(at string) error { return os.WriteFile(at, []byte(s), 0o644) }
}

// An index names files of its own folder, and claims what it likes.
func TestLookAtStrangeIndexes(t *testing.T) {
	for index, want := range map[string]launcher.ModelCopy{
		`{"metadata":{"total_size":5},"weight_map":{"x":"../../../../etc/passwd","y":"a.safetensors"}}`: {Bytes: 3,
			Whole: 5, Lacks: 1},
		`{"metadata":{"total_size":1e308},"weight_map":{"x":"a.safetensors"}}`: {Bytes: 3},
		`{"metadata":{"total_size":-5},"weight_map":{}}`:                       {Bytes: 3},
		`{"metadata":{"total_size":"5"}}`:                                      {Bytes: 3},
		`{"metadata":{"total_size":5},"weight_map":{"x":3}}`:                   {Bytes: 3},
		`[]`:                                 {Bytes: 3},
		`{"metadata":{"total_size":7}}`:      {Bytes: 3, Whole: 7},
		`{"weight_map":{"x":"","y":"/"}}`:    {Lacks: 2},
		`{"weight_map":{"x":"a.safetens`:     {Bytes: 3},
		strings.Repeat("[", 1_000_000):       {Bytes: 3},
		`{"weight_map":{"x":"b","y":"./b"}}`: {Lacks: 2},
	} {
		dir := t.TempDir()
		must(t, text("123")(filepath.Join(dir, "a.safetensors")))
		must(t, text(index)(filepath.Join(dir, "model.safetensors.index.json")))
		c, _ := Look(dir)
		want.Dir, want.Found = dir, true
		if d := cmp.Diff(want, c); d != "" {
			t.Errorf("%.60s:\n%s", index, d)
		}
	}
}

// A cache that is being filled, or was left half filled, has no revision.
func TestSnapshot(t *testing.T) {
	cache := t.TempDir()
	repo := filepath.Join(cache, "models--org--model")
	none := func(what string) {
		t.Helper()
		if got := Snapshot(cache, "org/model"); got != "" {
			t.Errorf("%s: %s", what, got)
		}
	}
	none("nothing")
	must(t, os.MkdirAll(filepath.Join(repo, "refs"), 0o755))
	must(t, unix.Mkfifo(filepath.Join(repo, "refs", "main"), 0o644))
	none("a pipe")
	must(t, os.Remove(filepath.Join(repo, "refs", "main")))
	must(t, text("abc\n")(filepath.Join(repo, "refs", "main")))
	none("a ref without its snapshot")
	dir := filepath.Join(repo, "snapshots", "abc")
	must(t, os.MkdirAll(dir, 0o755))
	must(t, os.Symlink("../../blobs/1", filepath.Join(dir, "config.json")))
	none("a config whose blob is not there yet")
	must(t, os.MkdirAll(filepath.Join(repo, "blobs"), 0o755))
	must(t, text("{}")(filepath.Join(repo, "blobs", "1")))
	if got := Snapshot(cache, "org/model"); got != dir {
		t.Errorf("%q, want %q", got, dir)
	}
	for model, want := range map[string]string{"org/model@abc": dir, "org/model@v1": "", "org/model@../main": ""} {
		if got := Snapshot(cache, model); got != want {
			t.Errorf("%s: %q, want %q", model, got, want)
		}
	}
	must(t, os.Rename(filepath.Join(repo, "refs", "main"), filepath.Join(repo, "refs", "v1")))
	if got := Snapshot(cache, "org/model@v1"); got != dir {
		t.Errorf("%q, want %q", got, dir)
	}
	none("another revision alone")
	must(t, text("../../../x")(filepath.Join(repo, "refs", "main")))
	none("a ref that leads elsewhere")
}

func TestCache(t *testing.T) {
	for want, env := range map[string]map[string]string{
		"/h/.cache/huggingface/hub": {"HOME": "/h"},
		"/c/huggingface/hub":        {"HOME": "/h", "XDG_CACHE_HOME": "/c"},
		"/f/hub":                    {"HOME": "/h", "XDG_CACHE_HOME": "/c", "HF_HOME": "/f"},
		"/u":                        {"HOME": "/h", "HF_HOME": "/f", "HF_HUB_CACHE": "/u"},
	} {
		if got := Cache(func(name string) string { return env[name] }); got != want {
			t.Errorf("%v: %s, want %s", env, got, want)
		}
	}
}
