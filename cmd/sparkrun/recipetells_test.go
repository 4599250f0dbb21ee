package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A recipe completes wherever one is named.
func TestRecipeCompletes(t *testing.T) {
	home, _ := shelf(t)
	for _, line := range [][]string{{"run", ""}, {"launch", "vllm", "--recipe", ""},
		{"launch", "sglang", "--recipe", "pl"}} {
		if code, o, _ := recipes(t, home, append([]string{"__complete"}, line...)...); code != 0 ||
			!strings.Contains(o, "plain\n") {
			t.Errorf("%q: exit %d, %s", line, code, o)
		}
	}
}

// A registry whose folder is gone keeps its name until it is removed, and says once how.
func TestRegistryThatIsGone(t *testing.T) {
	home, _ := shelf(t)
	gone, other := put(t, map[string]string{"x.yaml": plainRecipe}), put(t, map[string]string{"y.yaml": plainRecipe})
	if code, _, e := recipes(t, home, "recipe", "add", gone, "--name", "own"); code != 0 {
		t.Fatal(e)
	}
	if err := os.RemoveAll(gone); err != nil {
		t.Fatal(err)
	}
	if code, _, e := recipes(t, home, "recipe", "add", other, "--name", "own"); code == 0 ||
		!strings.Contains(e, "one of this name already") || !strings.Contains(e, "`sparkrun recipe remove own` first") {
		t.Errorf("exit %d, %s", code, e)
	}
	_, _, e := recipes(t, home, "recipe", "check", "modded", "--trust-recipe")
	if n := strings.Count(e, "registry own: "+gone+": no such file or directory: `sparkrun recipe remove own` takes it off the list"); n != 1 {
		t.Errorf("told %d times: %s", n, e)
	}
	if code, o, _ := recipes(t, home, "__complete", "recipe", "remove", ""); code != 0 || !strings.Contains(o, "own\n") {
		t.Errorf("exit %d, completes %s", code, o)
	}
	if code, _, e := recipes(t, home, "recipe", "remove", "own"); code != 0 {
		t.Errorf("exit %d, %s", code, e)
	}
}

// What a launch would refuse is a failure of a check; what is said of a recipe stands in both forms.
func TestRecipeCheckTells(t *testing.T) {
	home := t.TempDir()
	dir := put(t, map[string]string{"x.yaml": `
recipe_version: "1"
name: X
model: org/x
container: vllm-node-mxfp4
mods: [mods/nowhere]
defaults: {temperature: 0.5, len: 9}
command: vllm serve org/x --max-model-len {len}
`})
	file := filepath.Join(dir, "x.yaml")
	code, o, e := recipes(t, home, "recipe", "check", file)
	for _, want := range []string{"needs --trust-recipe", "missing: mod mods/nowhere",
		"note: defaults.temperature: left out: the command has no {temperature}",
		"container: vllm-node-mxfp4 names no registry: the project that wrote the recipe builds it, on each machine; --image names another"} {
		if !strings.Contains(o, want) {
			t.Errorf("not told %q in\n%s", want, o)
		}
	}
	if code != 1 || !strings.Contains(e, "a launch would be refused: recipe "+file+" lacks 1 mod") ||
		strings.Contains(o, "defaults.len") {
		t.Errorf("exit %d, %s\n%s", code, e, o)
	}
	var p struct{ Serve map[string]any }
	if code, o, _ = recipes(t, home, "recipe", "check", file, "--json"); code != 1 {
		t.Errorf("with --json: exit %d", code)
	}
	if err := json.Unmarshal([]byte(o), &p); err != nil || p.Serve["model"] != "org/x" {
		t.Errorf("%v: %v", err, p.Serve)
	}
	for key := range p.Serve {
		if key != strings.ToLower(key) {
			t.Errorf("key %s among lower-case ones", key)
		}
	}
	if _, o, _ = recipes(t, home, "recipe", "check", file, "--image", "my/own"); strings.Contains(o, "names no registry") {
		t.Errorf("of an image that its user named:\n%s", o)
	}
}
