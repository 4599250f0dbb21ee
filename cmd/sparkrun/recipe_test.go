package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads/recipe"
)

// put writes files below a folder of the test's own.
func put(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// plainRecipe needs no consent, moddedRecipe does.
const (
	plainRecipe = `
model: org/plain
container: registry/vllm:1
metadata: {description: The plain one}
defaults: {port: 8000, tensor_parallel: 2, len: 4096}
env: {FLAG: 1}
command: vllm serve {model} -tp {tensor_parallel} --port {port} --max-model-len {len}
`
	moddedRecipe = `
recipe_version: "1"
name: Modded
model: org/modded
container: vllm-node
mods: [mods/fix]
solo_only: true
command: vllm serve org/modded --chat-template t.jinja
`
)

// shelf is a registry as both projects lay theirs out, and a user's home that has it.
func shelf(t *testing.T) (home, dir string) {
	t.Helper()
	home = t.TempDir()
	dir = put(t, map[string]string{
		"recipes/plain.yaml":       plainRecipe,
		"recipes/deep/modded.yaml": moddedRecipe,
		"recipes/broken.yaml":      "model: [\n",
		"recipes/README.md":        "no recipe",
		"mods/fix/run.sh":          "#!/bin/bash\n# mends the template\ncp t.jinja \"$WORKSPACE_DIR\"\x1b[2J\n",
		"mods/fix/t.jinja":         "{{ x }}",
	})
	if code, _, e := recipes(t, home, "recipe", "add", dir, "--name", "shelf"); code != 0 {
		t.Fatal(e)
	}
	return home, dir
}

func recipes(t *testing.T, home string, line ...string) (code int, out, err string) {
	t.Helper()
	return cliIn(t, apptest.Agent(), []string{"HOME=" + home, "PATH=/bin"}, line...)
}

// listedRecipe, checkedRecipe and what is in it are what --json prints. Scripts read it: fields may come, none may go.
type listedRecipe struct {
	Name, File, Registry, Version, Model, Workload, Image, Description string
	Nodes                                                              int
}

type checkedRecipe struct {
	recipe.Launch
	Consent  string
	Missing  []string
	Machines []struct {
		Machine int
		Steps   []checkedStep
	}
}

type checkedStep struct {
	Stage, Image string
	Argv         []string
	Env          []checkedVar
	Mounts       []string
	ModelCache   string `json:"model_cache"`
}

type checkedVar struct{ Name, Value, Source string }

func TestRecipeList(t *testing.T) {
	home, dir := shelf(t)
	code, o, e := recipes(t, home, "recipe", "list")
	if code != 0 || !strings.Contains(e, "recipe @shelf/broken") {
		t.Errorf("exit %d, stderr %q", code, e)
	}
	want := [][]string{{"RECIPE"}, {"@shelf/deep/modded", "org/modded", "vllm", "1"},
		{"@shelf/plain", "org/plain", "vllm", "2", "The", "plain", "one"}}
	for i, line := range strings.Split(strings.TrimSpace(o), "\n") {
		if got := strings.Fields(line); !slices.Equal(got[:min(len(got), len(want[i]))], want[i]) {
			t.Errorf("line %d: %q, want %q", i, got, want[i])
		}
	}
	_, o, _ = recipes(t, home, "recipe", "search", "PLAIN ONE", "--json")
	var rows []listedRecipe
	if err := json.Unmarshal([]byte(o), &rows); err != nil {
		t.Fatal(err)
	}
	plain := listedRecipe{Name: "@shelf/plain", File: filepath.Join(dir, "recipes/plain.yaml"), Registry: "shelf",
		Version: "2", Model: "org/plain",
		Workload: "vllm", Nodes: 2, Image: "registry/vllm:1", Description: "The plain one"}
	if diff := cmp.Diff([]listedRecipe{plain}, rows); diff != "" {
		t.Error(diff)
	}
	if code, _, e := recipes(t, home, "recipe", "search", "nothing of the kind"); code != 1 ||
		!strings.Contains(e, "no such recipe") {
		t.Errorf("exit %d, %s", code, e)
	}
}

// What a mod would run is shown before anybody is asked to trust it, and cannot draw on the terminal.
func TestRecipeShow(t *testing.T) {
	home, _ := shelf(t)
	code, o, e := recipes(t, home, "recipe", "show", "modded")
	for _, want := range []string{"org/modded", "at most 1", "mod mods/fix, in ", "run.sh, t.jinja",
		"  | # mends the template", `  | cp t.jinja "$WORKSPACE_DIR"?[2J`} {
		if code != 0 || !strings.Contains(o, want) {
			t.Errorf("exit %d; %q is missing in:\n%s%s", code, want, o, e)
		}
	}
}

func TestRecipeCheck(t *testing.T) {
	home, _ := shelf(t)
	check := func(line ...string) (p checkedRecipe) {
		t.Helper()
		code, o, e := recipes(t, home, append([]string{"recipe", "check", "--json"}, line...)...)
		if code != 0 {
			t.Fatalf("%q: exit %d, %s", line, code, e)
		}
		if err := json.Unmarshal([]byte(o), &p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := check("plain", "--nodes", "2", "-o", "len=99")
	if len(p.Machines) != 2 || p.Consent != "" {
		t.Fatalf("got %+v", p)
	}
	head, worker := p.Machines[0].Steps[0], p.Machines[1].Steps[0]
	argv := []string{"vllm", "serve", "org/plain", "--max-model-len", "99", "--tensor-parallel-size", "2", "--nnodes",
		"2", "--node-rank"}
	if head.Image != "registry/vllm:1" || !slices.Equal(head.Argv[:len(argv)], argv) || head.Argv[len(argv)] != "0" ||
		worker.Argv[len(argv)] != "1" {
		t.Errorf("got %q and %q", head.Argv, worker.Argv)
	}
	if !slices.Contains(head.Env, checkedVar{"FLAG", "1", "recipe"}) ||
		!slices.Contains(head.Env, checkedVar{"VLLM_CACHE_ROOT", "<compile-cache>/VLLM_CACHE_ROOT", "vllm"}) ||
		head.ModelCache != filepath.Join(home, ".cache/huggingface") {
		t.Errorf("got %+v", head)
	}
	p = check("modded")
	if !strings.Contains(p.Consent, "--trust-recipe") || len(p.Missing) > 0 ||
		!strings.Contains(p.Setup, "$SPARKRUN_STAGE/mods/fix") {
		t.Errorf("got %+v", p)
	}
	if p = check("modded", "--trust-recipe"); p.Consent != "" {
		t.Errorf("asks for consent that it has: %s", p.Consent)
	}
	code, _, e := recipes(t, home, "recipe", "check", "modded", "--nodes", "2")
	if code != 1 || !strings.Contains(e, "at most 1 machine (solo_only): --nodes 1") {
		t.Errorf("exit %d, %s", code, e)
	}
	code, o, _ := recipes(t, home, "recipe", "check", "plain")
	if code != 0 || !strings.Contains(o, "\nmachine 1\n  workers in registry/vllm:1\n") {
		t.Errorf("exit %d:\n%s", code, o)
	}
}

func TestRecipeNames(t *testing.T) {
	home, dir := shelf(t)
	other := put(t, map[string]string{"plain.yaml": plainRecipe, "own.yml": plainRecipe})
	if code, o, e := recipes(t, home, "recipe", "add", other, "--name", "other"); code != 0 || o != "other: 2 recipes\n" {
		t.Fatalf("exit %d, %q, %s", code, o, e)
	}
	for name, want := range map[string]string{
		"own": "", "@other/plain": "", "@shelf/deep/modded": "", "deep/modded": "",
		filepath.Join(dir, "recipes/plain.yaml"): "", filepath.Join(dir, "recipes/plain"): "",
		"plain":                    "there are several: @shelf/plain, @other/plain",
		"nothing":                  "no such recipe",
		"@nobody/plain":            "no registry is called nobody",
		"https://host/x.yaml":      "download the file",
		"broken":                   "did not find expected",
		"../" + filepath.Base(dir): "no such recipe",
	} {
		code, _, e := recipes(t, home, "recipe", "show", name)
		if (code == 0) != (want == "") || !strings.Contains(e, want) {
			t.Errorf("%s: exit %d, %s", name, code, e)
		}
	}
	if code, _, e := recipes(t, home, "recipe", "remove", "shelf"); code != 0 {
		t.Error(e)
	}
	if code, _, e := recipes(t, home, "recipe", "show", "plain"); code != 0 {
		t.Errorf("it is the only one now: %s", e)
	}
	for _, c := range []struct{ want, line string }{
		{"no such registry: there are other", "recipe remove shelf"},
		{"git clone it", "recipe add https://host/repo"},
		{"no such file", "recipe add /nowhere/at/all"},
		{"added already", "recipe add " + other},
		{"one of this name already", "recipe add " + dir + " --name other"},
		{"want letters", "recipe add " + dir + " --name a/b"},
	} {
		if code, _, e := recipes(t, home, strings.Fields(c.line)...); code == 0 || !strings.Contains(e, c.want) {
			t.Errorf("%s: exit %d, %s", c.line, code, e)
		}
	}
}

// A recipe is another's text: nothing of it gets to a terminal as its codes, in errors least of all.
func TestRecipeMovesNoCursor(t *testing.T) {
	for name, text := range map[string]string{
		"a model": `model: "M/x\e[2J"`, "a value": "model: M/x\ncommand: \"vllm serve M/x -tp \\e[2J\"",
		"a version": `{model: M/x, recipe_version: "\e[2J"}`,
		"a field":   `{model: M/x, "\e[2J": 1}`, "an image": `{model: M/x, container: "i\e[2J"}`,
		"a variable": `{model: M/x, env: {A: "\e[2J"}}`, "a mod": `{model: M/x, mods: ["\e[2J"]}`,
	} {
		dir := put(t, map[string]string{"x.yaml": text + "\n"})
		for _, c := range []string{"check", "show"} {
			_, o, e := recipes(t, t.TempDir(), "recipe", c, filepath.Join(dir, "x.yaml"))
			if strings.Contains(o+e, "\x1b") || !strings.Contains(o+e, "[2J") && c == "check" && name != "a variable" {
				t.Errorf("recipe %s, %s: %q, %q", c, name, o, e)
			}
		}
	}
}

// A registry that has lost its recipes, or whose recipes are a link, keeps nobody from another's.
func TestRegistryThatLacksRecipes(t *testing.T) {
	home, dir := shelf(t)
	link, gone := put(t, map[string]string{"mods/x": ""}),
		put(t, map[string]string{".sparkrun/registry.yaml": "registries: [{name: gone, recipes: nowhere}]\n"})
	if err := os.Symlink(filepath.Join(dir, "recipes"), filepath.Join(link, "recipes")); err != nil {
		t.Fatal(err)
	}
	for folder, want := range map[string]string{link: "is a link, which is not followed: add the folder that it leads to", gone: "nowhere: no such file"} {
		if code, _, e := recipes(t, home, "recipe", "add", folder); code != 0 || !strings.Contains(e, want) {
			t.Errorf("exit %d, %s", code, e)
		}
	}
	if code, o, e := recipes(t, home, "recipe", "show", "plain"); code != 0 || !strings.Contains(o, "@shelf/plain") ||
		!strings.Contains(e, "registry gone: ") {
		t.Errorf("exit %d, %s, %s", code, o, e)
	}
}

// A repository says itself where its recipes are; what it says leads nowhere else.
func TestRegistryManifest(t *testing.T) {
	home := t.TempDir()
	repo := func(manifest string) string {
		return put(t, map[string]string{".sparkrun/registry.yaml": manifest, "a/r/one.yaml": plainRecipe,
			"b/two.yaml": moddedRecipe, "b-mods/fix/run.sh": "true\n", "off/x.yaml": plainRecipe})
	}
	good := repo(`
registries:
  - {name: first, description: x, recipes: a}
  - {name: second, subpath: b, mods_subpath: b-mods, visible: false}
  - {name: third, recipes: off, enabled: false}
`)
	if code, o, e := recipes(t, home, "recipe", "add", good); code != 0 || o != "first: 1 recipe\nsecond: 1 recipe\n" {
		t.Fatalf("exit %d, %q, %s", code, o, e)
	}
	_, o, _ := recipes(t, home, "recipe", "list")
	if !strings.Contains(o, "@first/r/one") || strings.Contains(o, "@second") || strings.Contains(o, "third") {
		t.Errorf("got\n%s", o)
	}
	if code, o, e := recipes(t, home, "recipe", "show", "@second/two"); code != 0 ||
		!strings.Contains(o, filepath.Join(good, "b-mods/fix")) {
		t.Errorf("exit %d, %s%s", code, o, e)
	}
	if _, o, _ = recipes(t, home, "recipe", "list", "--all"); !strings.Contains(o, "@second/two") {
		t.Errorf("got\n%s", o)
	}
	for manifest, want := range map[string]string{
		"registries: [{name: x, recipes: ../..}]": "leads out of the folder",
		"registries: [{name: 'a b', recipes: a}]": "is no name",
		"registries: []": "names no registry",
		"registries: 3":  "cannot unmarshal",
	} {
		if code, _, e := recipes(t, home, "recipe", "add", repo(manifest)); code != 1 || !strings.Contains(e, want) {
			t.Errorf("%s: exit %d, %s", manifest, code, e)
		}
	}
	if err := os.RemoveAll(good); err != nil {
		t.Fatal(err)
	}
	if code, _, e := recipes(t, home, "recipe", "list"); code != 0 || !strings.Contains(e, "no such file") {
		t.Errorf("a folder that has gone: exit %d, %s", code, e)
	}
}

// launched is the spec that a launch asks the cluster about.
func launched(t *testing.T, home string, line ...string) (spec launcher.Spec, errs string) {
	t.Helper()
	b := apptest.Agent(&apptest.FakeCluster{}, &apptest.FakeRunner{OnExplain: func(_ context.Context,
		r wire.LaunchRequest) (wire.ExplainResponse, error) {
		spec = r.Spec
		return wire.ExplainResponse{}, nil
	}})
	code, _, e := cliIn(t, b, []string{"HOME=" + home, "PATH=/bin"},
		slices.Insert(line, min(len(line), 2), "--dry-run")...)
	if code != 0 {
		t.Errorf("%q: exit %d, %s", line, code, e)
	}
	return spec, e
}

// run RECIPE is the same job as launch vllm --recipe RECIPE.
func TestRunIsALaunch(t *testing.T) {
	home, _ := shelf(t)
	a, _ := launched(t, home, "run", "plain", "--port", "9000", "-o", "len=5", "--name", "n", "--", "--enforce-eager")
	b, _ := launched(t, home, "launch", "vllm", "--recipe", "plain", "--port", "9000", "-o", "len=5", "--name", "n",
		"--", "--enforce-eager")
	a.ID, a.Submitted = b.ID, b.Submitted
	if diff := cmp.Diff(a, b); diff != "" {
		t.Error(diff)
	}
	st := a.MainStage()
	text := fmt.Sprint(st.Command())
	if a.Workload != "vllm" || a.Nodes != 2 || st.Container.Image != "registry/vllm:1" ||
		!strings.Contains(text, "--max-model-len 5") || !strings.Contains(text, "--port 9000") ||
		!strings.HasSuffix(text, "--enforce-eager]") {
		t.Errorf("%s on %d: %s", a.Workload, a.Nodes, text)
	}
}

// What stands after -- counts more than the recipe, which has a port and a size of its own.
func TestRunArgsWin(t *testing.T) {
	home, _ := shelf(t)
	spec, e := launched(t, home, "run", "plain", "--", "--port", "9000", "-tp", "4")
	text := fmt.Sprint(spec.MainStage().Command())
	if spec.Nodes != 4 || !strings.HasSuffix(text, "--port 9000 -tp 4]") || strings.Contains(text, "8000") ||
		strings.Contains(text, "--tensor-parallel-size") {
		t.Errorf("on %d: %s\n%s", spec.Nodes, text, e)
	}
}

func TestRunRefuses(t *testing.T) {
	home, _ := shelf(t)
	for line, want := range map[string]string{
		"run":                              "the recipe is missing",
		"run modded":                       "recipe @shelf/deep/modded: not trusted: it has mods (mods/fix)",
		"run plain other":                  "one recipe; a program is run in an image by",
		"run plain -o len":                 "want NAME=VALUE",
		"run plain -o lenn=1":              "the recipe has no such value",
		"run plain --solo":                 "there is `--nodes 1`",
		"run plain --hosts a,b":            "there is `--on a,b`",
		"run plain --nodes 1:2":            "give one",
		"launch vllm org/M --recipe plain": "the recipe names its model",
		"launch vllm --recipe plain --vllm /opt/vllm":   "--vllm /opt/vllm and --recipe: the recipe's command names its program",
		"launch sglang --recipe plain --python py":      "--python py and --recipe",
		"launch trtllm --recipe plain --trtllm-serve t": "--trtllm-serve t and --recipe",
		"run plain --port 9000 -- --port 9001":          "--port 9000: invalid: --port 9001 stands after --",
		"launch vllm org/M --trust-recipe":              "name one with --recipe",
		"launch sglang --recipe plain":                  "serves with vllm: sparkrun launch vllm --recipe",
		"launch vllm --recipe plain --nodes 3 --tp 2":   "3",
	} {
		code, _, e := cliIn(t, apptest.Agent(&apptest.FakeCluster{}), []string{"HOME=" + home, "PATH=/bin"},
			strings.Fields(line)...)
		if code != launcher.ExitOwnFailure || !strings.Contains(e, want) {
			t.Errorf("%s: exit %d, %s", line, code, e)
		}
	}
}

// A trusted recipe's mods come along, and run before the server in its container.
func TestRunBringsMods(t *testing.T) {
	home, _ := shelf(t)
	spec, e := launched(t, home, "run", "modded", "--trust-recipe")
	argv := spec.MainStage().Command()
	if spec.Staged == nil || !spec.Staged.Workdir || argv[0].String() != "bash" ||
		!strings.Contains(argv[2].String(), `cd "$SPARKRUN_STAGE/mods/fix"`) || argv[4].String() != "vllm" {
		t.Errorf("staged %+v, argv %v", spec.Staged, argv)
	}
	if !strings.Contains(e, "mods/fix changes the image, by ") {
		t.Errorf("it was not told: %s", e)
	}
	// The machines' own program is in no image that could be changed.
	code, _, e := cliIn(t, apptest.Agent(&apptest.FakeCluster{}), []string{"HOME=" + home}, "run", "modded",
		"--trust-recipe", "--runtime", "host")
	if code != launcher.ExitOwnFailure || !strings.Contains(e, "leave out --runtime host") {
		t.Errorf("exit %d, %s", code, e)
	}
}

// TestRealRecipePlans is what each machine adds to a recipe's own command, for so many of them: read
// by a person when the golden changes. workloads/recipe has the commands themselves.
func TestRealRecipePlans(t *testing.T) {
	const real = "../../../shared/recipes"
	files, err := filepath.Glob(real + "/v?/*.yaml")
	if err != nil || len(files) == 0 {
		t.Skipf("no recipes in %s", real)
	}
	var b strings.Builder
	for _, file := range files {
		fmt.Fprintf(&b, "== %s\n", strings.TrimPrefix(file, real+"/"))
		abs, err := filepath.Abs(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{1, 2, 3, 4, 8} {
			_, o, e := recipes(t, "/home/ada", "recipe", "check", abs, "--json", "--nodes", strconv.Itoa(n))
			if o == "" { // of one whose mods are not here there is a plan all the same
				lines := strings.Split(strings.TrimSpace(e), "\n")
				fmt.Fprintf(&b, "%d: %s\n", n, strings.ReplaceAll(lines[len(lines)-1], abs, "IT"))
				continue
			}
			var p checkedRecipe
			if err := json.Unmarshal([]byte(o), &p); err != nil {
				t.Fatal(err)
			}
			if len(p.Machines) != n {
				t.Errorf("%s: %d machines of %d", file, len(p.Machines), n)
			}
			fmt.Fprintf(&b, "%d:\n", n)
			last := ""
			for _, m := range p.Machines {
				for _, s := range m.Steps {
					line := fmt.Sprintf("%s: %s", s.Stage, strings.Join(added(s.Argv, p.Serve.Command), " "))
					if n := len(slices.DeleteFunc(s.Env,
						func(v checkedVar) bool { return v.Source != "recipe" })); n != len(p.Serve.Env) {
						t.Errorf("%s: %s has %d of the recipe's %d variables", file, s.Stage, n, len(p.Serve.Env))
					}
					if s.Image != p.Image {
						t.Errorf("%s: %s in %s, and the recipe's image is %s", file, s.Stage, s.Image, p.Image)
					}
					if like := strings.ReplaceAll(line, "--node-rank "+strconv.Itoa(m.Machine), "--node-rank N"); like != last {
						fmt.Fprintf(&b, "  %d %s\n", m.Machine, line)
						last = like
					}
				}
			}
		}
	}
	apptest.Golden(t, "recipes.txt", b.String())
}

// added are the words of argv with CMD in place of the recipe's command, and without what is
// the same for all of a kind.
func added(argv, command []string) (out []string) {
	if argv[0] == "bash" {
		out, argv = append(out, "setup,"), argv[4:]
	}
	if argv[0] == "ray" {
		return append(out, "ray start")
	}
	for i := range argv {
		if i+len(command) <= len(argv) && slices.Equal(argv[i:i+len(command)], command) {
			return append(append(out, "CMD"), argv[i+len(command):]...)
		}
	}
	return append(out, argv...)
}
