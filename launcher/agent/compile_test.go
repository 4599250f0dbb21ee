package agent

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/login"
)

// compiling is a job of a user that keeps compiled code of a model.
func compiling(as launcher.Assignment, model string) launcher.Assignment {
	as.Spec.Service = &launcher.Service{Model: model, Port: launcher.Lit("8000")}
	st := as.Spec.MainStage()
	st.Env = append(st.Env, launcher.Var{Name: "CACHE_DIR", Source: "engine",
		Value: launcher.Value{{Ref: launcher.CompileCache}, {Lit: "/of-engine"}}})
	return as
}

func keepsCompiled(c *Config) { c.CompileDir = filepath.Join(filepath.Dir(c.LogDir), "compiled") }

// What a rank compiles lies in a folder that is its user's alone; the next job of the user and model finds it there.
func TestCompiledCodeOutlivesItsJob(t *testing.T) {
	n := newNode(t, keepsCompiled)
	as := compiling(n.as(`mkdir -p "$CACHE_DIR" && echo warm >"$CACHE_DIR/kernel" && echo "$CACHE_DIR"`), "org/model")
	n.launch(as)
	n.hear(launcher.Ended)
	dir := filepath.Dir(n.output(0)) // what follows the slash is the last folder, and the line's end
	if want := filepath.Join(n.a.compiled(as.Spec), onHost); dir != want {
		t.Fatalf("the rank was given %s, want %s", dir, want)
	}
	if who := login.Self(); !who.HasAlone(dir) {
		t.Error("the folder is not its user's alone")
	}
	next := compiling(n.as(`cp "$CACHE_DIR/kernel" found`), "org/model")
	next.Generation = 2
	n.launch(next)
	n.hear(launcher.Ended)
	if got, err := os.ReadFile(filepath.Join(n.base, "found")); err != nil || string(got) != "warm\n" {
		t.Errorf("the next job finds %q: %v", got, err)
	}
}

// Users, models and images have folders of their own, whatever their names are.
func TestCompiledCodeIsApart(t *testing.T) {
	a := &Agent{cfg: Config{CompileDir: "/c"}}
	seen := map[string]string{}
	for _, user := range []string{"ada", "ada/..", "../ada", `DOMAIN\ada`, "DOMAIN-ada", ".", "..", ""} {
		for _, model := range []string{"org/model", "org-model", "/models/m", "../../ada/m", ".", "..", ""} {
			dir := a.compiled(launcher.Spec{User: user, Service: &launcher.Service{Model: model}})
			who := user + " " + model
			if up := filepath.Dir(filepath.Dir(dir)); seen[dir] != "" || up != "/c" || dir != filepath.Clean(dir) {
				t.Errorf("%q has %s, as %q", who, dir, seen[dir])
			}
			seen[dir] = who
		}
	}
	long := folderName(string(make([]byte, 5000)))
	if len(long) > 255 {
		t.Errorf("a name of %d bytes is none of a file", len(long))
	}
}

// A folder that is somebody else's, or open to others, is not taken: what lies in it would be run.
func TestCompiledCodeOfOthersIsNotRun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("wants root, to make what is another user's")
	}
	who := login.User{Name: "ada", UID: 4242, GID: 4242, Switches: true}
	other := login.User{Name: "eve", UID: 4343, GID: 4343, Switches: true}
	for name, plant := range map[string]func(dir, theirs string) error{
		"another's":        func(dir, _ string) error { return other.Own(dir) },
		"open":             func(dir, _ string) error { return os.Chmod(dir, 0o777) },
		"a link":           func(dir, theirs string) error { os.RemoveAll(dir); return os.Symlink(theirs, dir) },
		"a file":           func(dir, _ string) error { os.RemoveAll(dir); return os.WriteFile(dir, nil, 0o600) },
		"as it was":        func(string, string) error { return nil },
		"of a user before": func(dir, _ string) error { return os.Lchown(dir, 5000, 5000) },
	} {
		t.Run(name, func(t *testing.T) {
			a := &Agent{cfg: Config{CompileDir: filepath.Join(t.TempDir(), "compiled")}}
			spec := launcher.Spec{User: "ada", Stages: []launcher.Stage{{Main: true}}}
			spec = compiling(launcher.Assignment{Spec: spec}, "m").Spec
			image := &container.Prepared{Image: launcher.ImageSeen{ID: "sha256:0123456789abcdef"}}
			must(t, a.makeCompiled(spec, image, who))
			dir := filepath.Join(a.compiled(spec), "0123456789ab")
			theirs := t.TempDir()
			for _, in := range []string{dir, theirs} {
				must(t, os.WriteFile(filepath.Join(in, "kernel"), []byte("evil"), 0o755))
			}
			must(t, plant(dir, theirs))
			must(t, a.makeCompiled(spec, image, who))
			if !who.HasAlone(dir) {
				t.Error("it is not the user's alone")
			}
			_, err := os.Stat(filepath.Join(dir, "kernel"))
			if kept := err == nil; kept != (name == "as it was") {
				t.Errorf("the code in it is there: %t", kept)
			}
			if _, err := os.Stat(filepath.Join(theirs, "kernel")); err != nil {
				t.Errorf("what a link led to: %v", err)
			}
		})
	}
}

// What nobody has used for a month goes, and with a full disk the oldest; never what a job here uses.
func TestOldCompiledCodeGoes(t *testing.T) {
	n := newNode(t, keepsCompiled)
	as := compiling(n.as("sleep 600"), "running")
	n.launch(as)
	age := func(s launcher.Spec, image string, days int) string {
		dir := filepath.Join(n.a.compiled(s), image)
		must(t, os.MkdirAll(dir, 0o700))
		must(t, os.WriteFile(filepath.Join(dir, "kernel"), nil, 0o600))
		at := time.Now().Add(-time.Duration(days) * 24 * time.Hour)
		must(t, os.Chtimes(dir, at, at))
		return dir
	}
	var dirs []string
	for i, days := range []int{90, 31, 29, 2, 1} {
		dirs = append(dirs, age(compiling(n.as(""), "old-"+strconv.Itoa(i)).Spec, onHost, days))
	}
	used := age(as.Spec, onHost, 400)
	left := func() (n int) {
		for _, d := range dirs {
			if _, err := os.Stat(d); err == nil {
				n++
			}
		}
		return n
	}
	n.a.pruneCompiled(func(string) bool { return true })
	if got := left(); got != 3 {
		t.Errorf("%d are left of 3 that were used in the last month", got)
	}
	if _, err := os.Stat(filepath.Dir(dirs[0])); err == nil {
		t.Error("the folder of a model of which nothing is left stays")
	}
	n.a.pruneCompiled(func(string) bool { return left() < 2 })
	if _, err := os.Stat(dirs[4]); err != nil || left() != 1 {
		t.Errorf("on a full disk %d are left, want the newest alone", left())
	}
	if _, err := os.Stat(filepath.Join(used, "kernel")); err != nil {
		t.Errorf("of a job that runs: %v", err)
	}
	n.end(as.Key, 0)
	n.hear(launcher.Ended)
	must(t, n.a.Order(launcher.Order{Fence: n.fence(), Forget: &as.Key}))
	n.poll("an empty ledger", func() bool { return len(n.a.Ledger()) == 0 })
	n.a.pruneCompiled(func(string) bool { return true })
	if _, err := os.Stat(filepath.Join(used, "kernel")); err != nil {
		t.Errorf("of a job that ran until now: %v", err)
	}
}

// A container sees the folder of its image at one place, on the host of no other user or image.
func TestContainersSeeCompiledCode(t *testing.T) {
	image := map[string]any{"Id": "sha256:0123456789abcdef", "Config": map[string]any{}}
	socket, end := fakeEngine(t, map[string]any{}, image)
	defer end()
	n := newNode(t, keepsCompiled, func(cfg *Config) {
		cfg.Containers = &container.Config{Socket: socket, Cluster: "c", Program: "/proc/self/exe"}
	})
	as := compiling(n.as("true"), "org/model")
	st := as.Spec.MainStage()
	st.Argv, st.Workdir, st.Container = nil, "", &launcher.Container{Argv: launcher.Lits("serve"), Image: "an/image"}
	plans, _, err := n.a.Explain(n.ctx, as, "")
	must(t, err)
	if got := launcher.ValueOf(plans[0].Env, "CACHE_DIR"); got != insideCompiled+"/of-engine" {
		t.Errorf("the rank is told %s", got)
	}
	p, err := n.a.check(n.ctx, as)
	must(t, err)
	want := container.Mount{Source: filepath.Join(n.a.compiled(as.Spec), "0123456789ab"), Target: insideCompiled}
	if got := p.container.Spec.Mounts[0]; got != want {
		t.Errorf("mounted is %+v, want %+v", got, want)
	}
	plain := n.as("true")
	plain.Spec.MainStage().Container, plain.Spec.MainStage().Argv = st.Container, nil
	plain.Spec.MainStage().Workdir = ""
	if p, err = n.a.check(n.ctx, plain); err != nil || p.container.OnHost(insideCompiled) != "" {
		t.Errorf("a job that compiles nothing has it too: %v", err)
	}
}
