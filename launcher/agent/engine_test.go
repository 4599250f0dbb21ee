package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
)

// Where a machine has just been booted its engine may come up after the agent: what needs it waits. In a
// later incarnation of the agent nothing does.
func TestEngineThatComesUpLater(t *testing.T) {
	real, end := fakeEngine(t, map[string]any{},
		map[string]any{"Id": "sha256:0123", "Architecture": "s390x", "Config": map[string]any{}})
	defer end()
	dir, err := os.MkdirTemp("", "sr-")
	must(t, err)
	defer os.RemoveAll(dir)
	n := newNode(t, func(cfg *Config) {
		cfg.StateDir = dir
		cfg.Containers = &container.Config{Socket: filepath.Join(dir, "later"), Cluster: "c", Program: "/proc/self/exe"}
	})
	must(t, os.WriteFile(filepath.Join(dir, "containers"), nil, 0o600)) // it has had some
	contained := func(k launcher.Key) launcher.Assignment {
		as := n.as("true", func(a *launcher.Assignment) { a.Key = k })
		st := as.Spec.MainStage()
		st.Argv, st.Workdir = nil, ""
		st.Container = &launcher.Container{Argv: launcher.Lits("true"), Image: "an/image", Pull: launcher.PullMissing}
		return as
	}
	n.prepare(contained(key))
	if ev := n.hear(launcher.Preparing); !strings.Contains(ev.Text, "waits for its container engine") {
		t.Errorf("told %q", ev.Text)
	}
	must(t, os.Symlink(real, filepath.Join(dir, "later")))
	if ev := n.hear(launcher.Refused); !strings.Contains(ev.Text, "is for s390x") { // which the engine has said
		t.Errorf("refused with %q", ev.Text)
	}
	n.end(key, 0)
	n.hear(launcher.Ended)

	must(t, os.Remove(filepath.Join(dir, "later")))
	n.drop()
	n.open()
	next := launcher.Key{Job: key.Job + "x", Generation: 1}
	n.prepare(contained(next))
	if ev := n.hear(launcher.Refused); !strings.Contains(ev.Text, "no container engine answers") {
		t.Errorf("refused with %q", ev.Text)
	}
	if told := n.heard(launcher.Preparing); told != 0 {
		t.Errorf("told %d times of what is waited for: a machine that has been up for long has its engine, or none", told)
	}
	n.end(next, 0)
	n.hear(launcher.Ended)
}
