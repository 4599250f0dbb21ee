package policy

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
)

func TestLaunch(t *testing.T) {
	for name, c := range map[string]struct {
		text   string
		user   string
		groups []string
		refuse string // "": let in
	}{
		"no rules": {"# none\n", "mallory", nil, ""},
		"by name":  {"launch:\n  users: [alice, bob]\n", "bob", nil, ""},
		"by group": {"launch:\n  users: [alice]\n  groups: [ml]\n", "bob", []string{"users", "ml"}, ""},
		"not named": {"# ours\nlaunch:\n  users: [alice]\n  groups: [ml]\n", "mallory", []string{"users"},
			"mallory may not launch on spark2: rule launch, line 2 of POLICY there, allows users alice; groups ml"},
		"root like all":   {"launch:\n  users: [alice]\n", "root", []string{"root"}, "root may not launch"},
		"nobody":          {"launch:\n  users: []\n", "alice", nil, "allows nobody"},
		"a group's name":  {"launch:\n  groups: [alice]\n", "alice", []string{"users"}, "may not launch"},
		"a quoted number": {"launch:\n  users: ['1000']\n", "1000", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "policy.yaml")
			if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
				t.Fatal(err)
			}
			p, err := Read(path)
			if err != nil {
				t.Fatal(err)
			}
			err = p.Launch("spark2", c.user, c.groups)
			want := strings.ReplaceAll(c.refuse, "POLICY", path)
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
}

func TestBadFile(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"no YAML": {"launch: [\n", 0o644, "line"},
		"a list":  {"- alice\n", 0o644, "line 1: invalid: want names and values"},
		"a typo": {"launch:\n  user: [alice]\n", 0o644,
			`line 2: invalid: launch has no "user": want users or groups`},
		"another rule": {"launch:\n  users: [a]\nports: [1]\n", 0o644, `line 3: invalid: unknown rule "ports"`},
		"images":       {"images: [nvcr.io/*]\n", 0o644, "line 1: invalid: \"nvcr.io/*\""},
		"mounts": {"launch: {users: [a]}\nmounts: [data]\n", 0o644,
			"line 2: invalid: \"data\": want an absolute path"},
		"a model cache":  {"launch: {users: [a]}\nmodel_cache: models\n", 0o644, "line 2: invalid: \"models\""},
		"two of them":    {"model_cache: [/a, /b]\n", 0o644, "line 1: invalid: \"\": want the full path"},
		"elevate":        {"elevate: {root: [a]}\n", 0o644, `line 1: invalid: elevate has no "root"`},
		"no list":        {"launch:\n  users: alice\n", 0o644, "line 2: invalid: want a list"},
		"no names":       {"launch:\n  users:\n    - alice\n    - 1000\n", 0o644, `line 4: invalid: "1000": want a name`},
		"twice":          {"launch: {users: [a]}\nlaunch: {users: [b]}\n", 0o644, "line 2"},
		"an alias":       {"launch:\n  users: &u [a]\n  groups: *u\n", 0o644, "line 3: invalid: want a list"},
		"nothing":        {"launch:\n", 0o644, "line 1: invalid: want names and values"},
		"big":            {strings.Repeat("#\n", maxFile/2+1), 0o644, "more than"},
		"others write":   {"launch: {users: [a]}\n", 0o666, "chmod 644"},
		"a group writes": {"launch: {users: [a]}\n", 0o664, "chmod 644"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "policy.yaml")
			if err := errors.Join(os.WriteFile(path, []byte(c.text), 0o600), os.Chmod(path, c.mode)); err != nil {
				t.Fatal(err)
			}
			_, err := Read(path)
			if !errors.Is(err, launcher.ErrInvalid) || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	for _, path := range []string{"", filepath.Join(t.TempDir(), "none")} {
		if p, err := Read(path); err != nil || p.Launch("spark1", "anybody", nil) != nil {
			t.Errorf("%q: %v", path, err)
		}
	}
}

func TestContainers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	const text = "images: [nvcr.io/nvidia/, 'vllm/vllm-openai:v0.11.0', busybox]\nmounts: [/home, /models/shared]\nelevate: {groups: [debug]}\ncontainers: {users: [bob], groups: [ml]}\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	for ref, ok := range map[string]bool{
		"nvcr.io/nvidia/pytorch:25.10-py3": true, "nvcr.io/nvidia-evil/pytorch": false, "nvidia/pytorch": false,
		"vllm/vllm-openai:v0.11.0": true, "docker.io/vllm/vllm-openai:v0.11.0": true, "vllm/vllm-openai": false,
		"vllm/vllm-openai:v0.12.0": false,
		"busybox":                  true, "busybox:1.36": true, "evil.io/busybox": false, "mallory/busybox": false,
		"sha256:" + strings.Repeat("a", 64): false, strings.Repeat("a", 64): false, "": false,
	} {
		if err := p.Image("spark2", ref); (err == nil) != ok || err != nil &&
			!strings.Contains(err.Error(), "rule images, line 1 of "+path) {
			t.Errorf("image %q: %v", ref, err)
		}
	}
	for source, ok := range map[string]bool{"/home": true, "/home/a": true, "/homely": false, "/": false,
		"/models": false, "/models/shared/x": true, "/models/shared/../x": false} {
		if err := p.Mount("spark2", source); (err == nil) != ok || err != nil &&
			!strings.Contains(err.Error(), "rule mounts, line 2") {
			t.Errorf("mount %q: %v", source, err)
		}
	}
	cap := []string{"--cap-add"}
	if err := p.Elevate("spark2", "carol", []string{"debug"}, cap); err != nil {
		t.Error(err)
	}
	if err := p.Elevate("spark2", "root", nil, cap); err == nil || !strings.Contains(err.Error(), "rule elevate, line 3") {
		t.Errorf("root, where a rule names others: %v", err)
	}
	if covers("docker.io/", "sha256:"+strings.Repeat("a", 64)) ||
		covers("library/", "sha256:"+strings.Repeat("a", 64)) || !covers("docker.io/", "ubuntu") {
		t.Error("an ID is of no registry, and ubuntu is of docker.io")
	}
	for user, ok := range map[string]bool{"bob": true, "ada": true, "eve": false, "root": false} {
		var groups []string
		if user == "ada" {
			groups = []string{"ada", "ml"}
		}
		if err := p.Containers("spark2", user, groups); (err == nil) != ok || err != nil &&
			!strings.Contains(err.Error(), "rule containers, line 4") {
			t.Errorf("containers of %s: %v", user, err)
		}
	}
	var none Policy
	if none.Containers("h", "root", nil) != nil || none.Containers("h", "bob", nil) == nil {
		t.Error("without rules: want containers of root's alone")
	}
	if none.Image("h", "x") != nil || none.Mount("h", "/") != nil || none.Elevate("h", "root", nil, cap) != nil ||
		none.Elevate("h", "bob", nil, cap) == nil {
		t.Error("without rules: want any image and mount, and elevation for root alone")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("launch:\n  users: [alice]\n  groups: [ml]\n"))
	f.Add([]byte("a: &x [1]\nb: *x\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if p, err := parse(text); err == nil {
			_ = p.Launch("h", "u", []string{"g"})
		}
	})
}
