package recipe

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads"
)

// FuzzRecipe gives the reader anything: what it takes comes to words that can be run, and what it
// does not is told as the user's error.
func FuzzRecipe(f *testing.F) {
	files, _ := filepath.Glob(real + "/v?/*.yaml") // which may not be there
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, 2)
	}
	for _, text := range []string{
		one, v1, v2,
		one + "executor_config: {privileged: true, cap_add: X, devices: [a], ulimit: [nofile=1], ipc: private, shm_size: 1g}\npre_exec: [a, '{model}']\nmods: [mods/a]\n",
		"model: M\ndefaults: {a: '{b}', b: '{a}{a}', c: [1], 1: 2, true: no, null: x}\nenv: {A: '{\"x\": \"$HOME\"}', '': 1}\ncommand: \"vllm serve {a} '{{}}' \\\\\\n  -tp=2 --port\"\n",
		"recipe_version: 1\nname: [a]\ncontainer: {b: c}\ncommand: 3\ndefaults: &a [*a]\n",
		"model: !!binary aGk=\ncommand: !x vllm\n? {a: b}\n: c\n<<: {d: e}\n",
		"\xef\xbb\xbfmodel: M\n", "model: M\r\ncommand: |\r\n  vllm serve M \\\r\n    --x\r\n", "{model: M, command: 'sglang serve --model-path M --tp 2'}",
	} {
		f.Add([]byte(text), 3)
	}
	f.Fuzz(func(t *testing.T, text []byte, nodes int) {
		r, err := Read(text)
		if err != nil {
			refused(t, err)
			return
		}
		_ = r.Workload()
		for _, o := range []Options{
			{Name: "it"},
			{Name: "it", Nodes: max(0, nodes%9), Trusted: true, Environ: []string{"HOME=/home/ada", "HF_TOKEN=secret-of-ada"}},
			{Name: "it", OnHost: true, Trusted: true, Set: []Setting{{"tensor_parallel", "2"}}},
		} {
			l, err := r.Launch(o)
			if err != nil {
				refused(t, err)
				continue
			}
			looksRight(t, r, l, o)
		}
	})
}

func refused(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, launcher.ErrInvalid) {
		t.Fatalf("%v wraps no ErrInvalid", err)
	}
}

func looksRight(t *testing.T, r Recipe, l Launch, o Options) {
	t.Helper()
	if l.Nodes < 1 || o.Nodes > 0 && l.Nodes != o.Nodes || l.Nodes < r.MinNodes || r.MaxNodes > 0 && l.Nodes > r.MaxNodes {
		t.Fatalf("%d nodes, asked for %d, of %d to %d", l.Nodes, o.Nodes, r.MinNodes, r.MaxNodes)
	}
	if len(l.Serve.Command) == 0 || l.Workload == "" {
		t.Fatalf("no command: %+v", l)
	}
	if !o.Trusted && (l.Setup != "" || len(l.Args) > 0) {
		t.Fatalf("without consent: %+v", l)
	}
	for _, w := range l.Serve.Command {
		if strings.Contains(w, "secret-of-ada") || strings.ContainsRune(w, 0) {
			t.Fatalf("the word %q", w)
		}
		name, _, _ := strings.Cut(w, "=")
		if name == "--nnodes" || name == "--distributed-executor-backend" && l.Workload == "vllm" {
			t.Fatalf("%s is left in the command %q", name, l.Serve.Command)
		}
	}
	for _, e := range l.Serve.Env {
		name, _, ok := strings.Cut(e, "=")
		if !ok || workloads.IsSecret(name) || strings.Contains(e, "secret-of-ada") {
			t.Fatalf("the variable %q", e)
		}
	}
	var req workloads.Request
	l.Into(&req)
	if req.Job.Nodes != l.Nodes {
		t.Fatal("Into has lost the machines")
	}
}
