package recipe

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads"
)

// A mod finds its own files where it runs, and puts others where the server does; the server is not
// begun where one fails, and takes the shell's place.
func TestSetupRuns(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Fatal("bash is missing: apt install bash")
	}
	l, err := read(t, "model: M\ncontainer: i\nmods: [mods/a, mods/b]\npre_exec: ['echo \"it''s\" {model} >>$WORKSPACE_DIR/log']\ncommand: vllm serve M\n").Launch(Options{Trusted: true})
	if err != nil {
		t.Fatal(err)
	}
	job := t.TempDir()
	mod := func(name, script string) {
		dir := filepath.Join(job, ModsDir, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string]string{"run.sh": "#!/bin/sh\n" + script, "patch": name + "'s patch\n"} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	mod("a", `cat patch >>"$WORKSPACE_DIR/log"`)
	mod("b", `cat patch >>"$WORKSPACE_DIR/log"`)
	run := func() (string, error) {
		r := workloads.Request{Job: launcher.Spec{ID: "abcd234567", Nodes: 1}, Container: &launcher.Container{Image: "i"}, Args: []string{"sh", "-c", "echo $$ $1", "sh", "a b"}, Setup: l.Setup}
		w, err := workloads.Find(workloads.All(), "exec")
		if err != nil {
			t.Fatal(err)
		}
		spec, err := w.Spec(r)
		if err != nil {
			t.Fatal(err)
		}
		argv, err := launcher.Placement{}.Argv(*spec.MainStage())
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Dir, cmd.Env = job, []string{"PATH=" + os.Getenv("PATH"), launcher.StageEnv + "=" + job}
		out, err := cmd.Output()
		if err == nil && !strings.HasPrefix(string(out), itoa(cmd.Process.Pid)+" ") {
			t.Errorf("the command has a process of its own: %q, started was %d", out, cmd.Process.Pid)
		}
		return string(out), err
	}
	out, err := run()
	if err != nil || !strings.HasSuffix(out, " a b\n") {
		t.Fatalf("%q, %v", out, err)
	}
	log, err := os.ReadFile(filepath.Join(job, "log"))
	if want := "a's patch\nb's patch\nit's M\n"; err != nil || string(log) != want {
		t.Errorf("%q, %v; want %q", log, err, want)
	}
	mod("b", "exit 3\n")
	if out, err = run(); out != "" || err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("a mod that fails: %q, %v", out, err)
	}
}
