package recipe

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

// one is the least that a recipe of version 2 is.
const one = "model: org/M\ncommand: vllm serve {model}\n"

func TestReadRefuses(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"nothing":          {"", "it is empty"},
		"comments":         {"# a recipe\n", "it is empty"},
		"a list":           {"- a\n", "want fields"},
		"a text":           {"hello", `want fields such as`},
		"no YAML":          {"model: [a\n", "did not find expected"},
		"two documents":    {one + "---\n" + one, "more than one YAML document"},
		"huge":             {one + strings.Repeat("# filler\n", MaxBytes/9+1), "more than 1048576"},
		"an alias":         {"model: &m org/M\ncommand: *m\n", "anchors and aliases"},
		"a merge":          {"defaults: &d {a: 1}\nenv:\n  <<: *d\n", "anchors and aliases"},
		"a tag":            {"model: !!python/object:os.system x\n", "YAML tag"},
		"deep":             {one + "metadata: " + strings.Repeat("[", 40) + strings.Repeat("]", 40), "nested deeper"},
		"NUL":              {"model: \"a\\0b\"\n", "NUL"},
		"no model":         {"command: vllm serve X\n", "model: invalid: version 2 of recipes needs it"},
		"version 3":        {one + "recipe_version: 3\n", `recipe_version: invalid: "3" is not known`},
		"version 1":        {"recipe_version: '1'\nname: x\n", "container: invalid: version 1 of recipes needs it"},
		"a list for text":  {"model: [a]\n", "line 1: model: invalid: want one value, got a list"},
		"text for fields":  {one + "defaults: port\n", `line 3: defaults: invalid: want fields, got "port"`},
		"a map for value":  {one + "defaults:\n  a:\n    b: 1\n", "line 5: defaults.a: invalid: want one value, got fields"},
		"fields for list":  {one + "mods: {a: b}\n", "mods: invalid: want a list"},
		"odd boolean":      {one + "solo_only: maybe\n", "want true or false"},
		"odd number":       {one + "min_nodes: many\n", "want a number of machines"},
		"none":             {one + "max_nodes: 0\n", "want a number of machines"},
		"against itself":   {one + "min_nodes: 4\nsolo_only: true\n", "min_nodes: invalid: it wants 4 machines or more, and solo_only at most 1"},
		"odd mode":         {one + "mode: ring\n", "want auto, solo or cluster"},
		"a copy":           {one + "pre_exec:\n  - copy: /etc/x\n", "files are not copied"},
		"its own network":  {one + "executor_config: {network: bridge}\n", "ranks use the machine's network"},
		"entry point":      {one + "executor_config: {entrypoint: /init}\n", "ENTRYPOINT is not run"},
		"shm":              {one + "executor_config: {ipc: private, shm_size: lots}\n", "want a size such as 16gb"},
		"ulimit":           {one + "executor_config: {ulimit: [nonsense=1]}\n", "ulimit"},
		"a name of fields": {one + "? [a, b]\n: c\n", "a field's name is text"},
	} {
		_, err := Read([]byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q in it", name, err, c.want)
		} else if !errors.Is(err, launcher.ErrInvalid) {
			t.Errorf("%s: %v wraps no ErrInvalid", name, err)
		}
	}
}

// Everything that is wrong is told at once, so that one edit mends it.
func TestReadTellsAll(t *testing.T) {
	_, err := Read([]byte("recipe_version: 9\nmodel: [x]\nmin_nodes: none\n"))
	for _, want := range []string{"recipe_version", "model", "min_nodes"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
}

func TestReadNotes(t *testing.T) {
	r, err := Read([]byte(one + `
container: a
container: b
Max_Nodes: 3
frobnicate: {deep: [1, 2]}
builder: eugr
post_commands: [curl x]
stop_after_post: true
distribution_config: {}
runtime_config: {mods: [mods/m], build_args: [--x], other: 1}
env: {A: , B: 1, "B": 2}
executor_config: {auto_remove: false, restart_policy: always, shm_size: 10.24gb, gpus: "0", user: root, colour: red, memory_limit: 100g, labels: [a=b]}
benchmark: {framework: x}
metadata: {description: " what it is ", extra: 1}
runtime_version: 3
`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, n := range r.Notes {
		got = append(got, n.Field)
	}
	want := []string{
		"container", "Max_Nodes", "frobnicate", "builder", "post_commands", "stop_after_post", "distribution_config", "build_args", "runtime_config.other",
		"env.A", "env.B",
		"executor_config.auto_remove", "executor_config.restart_policy", "executor_config.gpus", "executor_config.user", "executor_config.colour",
		"executor_config.memory_limit", "executor_config.labels", "executor_config.shm_size",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(r.Notes[1].Text, "did you mean max_nodes?") {
		t.Errorf("no suggestion: %s", r.Notes[1])
	}
	if r.Image != "b" || r.Description != "what it is" || !cmp.Equal(r.Mods, []string{"mods/m"}) || !cmp.Equal(r.Env, []Setting{{"B", "2"}}) {
		t.Errorf("got %+v", r)
	}
}

// Values are what Python makes of them, as both tools print them into a command.
func TestValues(t *testing.T) {
	r, err := Read([]byte(one + `
defaults:
  int: 8000
  hex: 0x10
  under: 1_000
  float: 0.90
  yes: true
  on_: on
  quoted: "on"
  no_: No
  date: 2024-01-02
  json: '{"a": [1, 2]}'
  text: |
    two
    lines
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []Setting{
		{"int", "8000"}, {"hex", "16"}, {"under", "1000"}, {"float", "0.90"}, {"yes", "True"}, {"on_", "True"}, {"quoted", "on"}, {"no_", "False"},
		{"date", "2024-01-02"}, {"json", `{"a": [1, 2]}`}, {"text", "two\nlines\n"},
	}
	if diff := cmp.Diff(want, r.Defaults); diff != "" {
		t.Error(diff)
	}
}

func TestSize(t *testing.T) {
	for text, want := range map[string]int64{"16g": 16 << 30, "10.24gb": 10995116277, "512M": 512 << 20, "1024": 1024, "2GiB": 2 << 30, "": 0, "gb": 0, "-1g": 0, "1e40": 0, "nan": 0} {
		if got, ok := size(text); got != want || ok != (want > 0) {
			t.Errorf("size(%q) = %d, %v; want %d", text, got, ok, want)
		}
	}
}
