package agent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/login"
)

// A cache of Hugging Face as its libraries make it: the files of a revision are links to blobs.
func TestModelOfTheCache(t *testing.T) {
	n := newNode(t)
	home := t.TempDir()
	repo := filepath.Join(home, "hub", "models--org--model")
	seen := func(model string, env ...launcher.Var) *launcher.ModelCopy {
		t.Helper()
		as := n.as("", ranks(0, 1))
		as.Spec.Stages[0].Env = append(as.Spec.Stages[0].Env,
			launcher.Var{Name: "HF_HOME", Value: launcher.Lit(home), Source: "--env"})
		as.Spec.Stages[0].Env = append(as.Spec.Stages[0].Env, env...)
		_, m, err := n.a.Explain(n.ctx, as, model)
		must(t, err)
		if m == nil || m.Free == nil || *m.Free == 0 {
			t.Fatalf("no answer, or of no file system: %+v", m)
		}
		return m
	}
	same := func(what string, want launcher.ModelCopy, got *launcher.ModelCopy) {
		t.Helper()
		if diff := cmp.Diff(want, *got, cmpopts.IgnoreFields(launcher.ModelCopy{}, "Free")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	put := func(path, text string) {
		t.Helper()
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	same("nothing yet", launcher.ModelCopy{Dir: filepath.Join(home, "hub")}, seen("org/model"))

	snapshot := filepath.Join(repo, "snapshots", "abc")
	put(filepath.Join(repo, "refs", "main"), "abc\n")
	put(filepath.Join(snapshot, "config.json"), `{"model_type":"m","quantization_config":{"ignore":["a","b"]}}`)
	put(filepath.Join(snapshot, "model.safetensors.index.json"),
		`{"metadata":{"total_size":12},"weight_map":{"x":"one.safetensors","y":"two.safetensors","z":"one.safetensors"}}`)
	put(filepath.Join(repo, "blobs", "1"), "123456")
	must(t, os.Symlink("../../blobs/1", filepath.Join(snapshot, "one.safetensors")))
	must(t, os.Symlink("../../blobs/2", filepath.Join(snapshot, "two.safetensors"))) // not fetched yet
	want := launcher.ModelCopy{Dir: snapshot, Found: true, Config: []byte(`{"model_type":"m"}`), Bytes: 6, Whole: 12,
		Lacks: 1}
	same("a part of it", want, seen("org/model"))
	put(filepath.Join(repo, "blobs", "2"), "654321")
	want.Bytes, want.Lacks = 12, 0
	same("all of it", want, seen("org/model"))
	same("by HF_HUB_CACHE", want,
		seen("org/model", launcher.Var{Name: "HF_HUB_CACHE", Value: launcher.Lit(filepath.Join(home, "hub")),
			Source: "--env"}))
	same("a folder", launcher.ModelCopy{Dir: snapshot, Found: true, Config: want.Config, Bytes: 12, Whole: 12},
		seen(snapshot))
	same("no folder", launcher.ModelCopy{Dir: "/not/there"}, seen("/not/there"))

	// Another's secrets that lie in a file of that name are nobody's model.
	put(filepath.Join(home, "other", "config.json"), `{"auths":{}}`)
	same("no model's", launcher.ModelCopy{Dir: filepath.Join(home, "other"), Found: true},
		seen(filepath.Join(home, "other")))

	// A pipe of that name would keep who opens it waiting.
	must(t, os.Remove(filepath.Join(snapshot, "config.json")))
	must(t, unix.Mkfifo(filepath.Join(snapshot, "config.json"), 0o644))
	want.Config = nil
	same("a pipe", want, seen("org/model"))
}

// What containers see of a model is the node's where something of the node's is mounted there.
func TestModelOfContainers(t *testing.T) {
	home := t.TempDir()
	p := prepared{who: login.Self()}
	p.who.Home = home
	must(t, os.MkdirAll(filepath.Join(home, ".cache/huggingface"), 0o755))
	mounts := []launcher.Mount{{Source: "/data/models", Target: "/models"}, {Source: "/fast", Target: "/models/fast"}}
	for _, c := range []struct{ model, cache, want string }{
		{"/models/llama", "", "/data/models/llama"},
		{"/models/fast/llama/", "", "/fast/llama"},
		{"/models", "", "/data/models"},
		{"/opt/llama", "", ""}, // the image's
		{"/modelsx", "", ""},
		{"org/model", "", home + "/.cache/huggingface/hub"},
		{"org/model", home + "/.cache", home + "/.cache/hub"},
		{"org/model", launcher.NoModelCache, ""},
	} {
		if got := p.modelPlace(c.model, &launcher.Container{Mounts: mounts, ModelCache: c.cache}, nil); got != c.want {
			t.Errorf("%s, cache %q: %q, want %q", c.model, c.cache, got, c.want)
		}
	}
}

// A look that finds nowhere to look takes none of a user's looks for good.
func TestModelOfNowhereHoldsNoLook(t *testing.T) {
	n := newNode(t)
	as := n.as("", ranks(0, 1))
	as.Spec.Stages[0].Env = append(as.Spec.Stages[0].Env,
		launcher.Var{Name: "HF_HUB_CACHE", Value: launcher.Lit("not/absolute"), Source: "--env"})
	_, m, err := n.a.Explain(n.ctx, as, "org/model")
	must(t, err)
	n.a.mu.Lock()
	defer n.a.mu.Unlock()
	if m != nil || len(n.a.looking) > 0 {
		t.Errorf("told %+v, looks left %v", m, n.a.looking)
	}
}
