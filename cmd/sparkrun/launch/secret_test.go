package launch

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads"
)

func TestReadSecrets(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	key, big, empty, nul := file("key", "from a file\n"), file("big", strings.Repeat("x", launcher.MaxSecretBytes+1)),
		file("empty", ""), file("nul", "a\x00b")
	env := map[string]string{"HF_TOKEN": "hf_1", "NOTHING_KEY": ""}
	getenv := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	w, err := workloads.Find(workloads.All(), "exec")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		wanted []string
		got    []wire.Plain
		err    string
	}{
		"both": {[]string{"HF_TOKEN", "WANDB_API_KEY=" + key},
			[]wire.Plain{{Name: "HF_TOKEN", Value: []byte("hf_1")},
				{Name: "WANDB_API_KEY", Value: []byte("from a file\n")}}, ""},
		"not set":    {[]string{"OTHER_TOKEN"}, nil, "OTHER_TOKEN: invalid: it is not set here"},
		"set empty":  {[]string{"NOTHING_KEY"}, nil, "it is empty"},
		"stdin":      {[]string{"HF_TOKEN=-"}, nil, "want a file"},
		"no file":    {[]string{"HF_TOKEN="}, nil, "want a file"},
		"gone":       {[]string{"HF_TOKEN=" + dir + "/gone"}, nil, "no such file"},
		"a folder":   {[]string{"HF_TOKEN=" + dir}, nil, "want a file of at most"},
		"a device":   {[]string{"HF_TOKEN=/dev/zero"}, nil, "want a file of at most"},
		"big":        {[]string{"HF_TOKEN=" + big}, nil, "want a file of at most"},
		"empty file": {[]string{"HF_TOKEN=" + empty}, nil, "it is empty"},
		"NUL":        {[]string{"HF_TOKEN=" + nul}, nil, "NUL"},
		"twice":      {[]string{"HF_TOKEN", "HF_TOKEN=" + key}, nil, "given twice"},
		"a name":     {[]string{"HF TOKEN=" + key}, nil, "a name is letters"},
		"ours":       {[]string{"SPARKRUN_JOB=" + key}, nil, "are sparkrun's"},
		"--env too":  {[]string{"INNOCENT=" + key}, nil, "--env sets it too"},
	} {
		t.Run(name, func(t *testing.T) {
			spec, err := w.Spec(workloads.Request{Job: launcher.Spec{ID: launcher.NewJobID()}, Workdir: "/",
				Args: []string{"true"}, Env: []string{"INNOCENT=1"}})
			if err != nil {
				t.Fatal(err)
			}
			got, err := readSecrets(&spec, c.wanted, getenv)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "hf_1") {
					t.Errorf("got %v, want %q", err, c.err)
				}
				return
			}
			if diff := cmp.Diff(c.got, got); err != nil || diff != "" {
				t.Errorf("%v %s", err, diff)
			}
			for _, s := range spec.Secrets {
				if s.Box != nil {
					t.Errorf("%s is in the spec before it is sealed", s.Name)
				}
			}
		})
	}
	if _, err := readSecret("X", "-", true, getenv); !errors.Is(err, launcher.ErrInvalid) {
		t.Errorf("an error of another kind: %v", err)
	}
}
