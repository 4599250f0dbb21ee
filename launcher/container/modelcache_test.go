package container

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/login"
)

// A user's models on a node are shown to containers where Hugging Face's libraries look for them; a folder that
// has to be made is the user's.
func TestModelCache(t *testing.T) {
	base := t.TempDir()
	home := filepath.Join(base, "eve")
	must(t, os.Chmod(filepath.Dir(base), 0o755))
	must(t, os.Chmod(base, 0o755))
	must(t, os.Mkdir(home, 0o755))
	must(t, os.Chown(home, 4711, 4711))
	eve := login.User{Name: "eve", Home: home, UID: 4711, GID: 4711, Switches: true}
	std := filepath.Join(home, ".cache/huggingface")
	source := func(c launcher.Container, hfHome string) string {
		t.Helper()
		m, missing, err := ModelCache(eve, &c, hfHome)
		switch {
		case err != nil:
			return err.Error()
		case m == nil:
			return ""
		case missing:
			return "make " + m.Source + ":" + m.Target
		}
		return m.Source + ":" + m.Target
	}
	if got := source(launcher.Container{}, ""); got != "" {
		t.Errorf("where there is none: %q", got)
	}
	models := filepath.Join(base, "models")
	if got := source(launcher.Container{ModelCache: models}, ""); got != "make "+models+":"+std {
		t.Errorf("one that is to be made: %q", got)
	}
	must(t, os.Mkdir(models, 0o755))
	must(t, os.Mkdir(filepath.Join(home, ".cache"), 0o755))
	must(t, os.Symlink(models, std))
	for want, c := range map[string]launcher.Container{
		models + ":" + std: {},
		"":                 {ModelCache: launcher.NoModelCache},
		base + ":" + std:   {ModelCache: base},
	} {
		if got := source(c, ""); got != want {
			t.Errorf("%+v: %q, want %q", c, got, want)
		}
	}
	for _, target := range []string{home, filepath.Join(home, ".cache"), std} {
		if got := source(launcher.Container{Mounts: []launcher.Mount{{Source: "/usr", Target: target}}}, ""); got != "" {
			t.Errorf("the user has mounted something at %s, and then %q", target, got)
		}
	}
	if got := source(launcher.Container{}, models); got != models+":"+models {
		t.Errorf("with HF_HOME: %q", got)
	}
	if got := source(launcher.Container{}, "not/absolute"); got != "" {
		t.Errorf("with an HF_HOME that is none: %q", got)
	}
	if got := source(launcher.Container{ModelCache: "/etc/hostname"}, ""); !strings.Contains(got,
		"--model-cache /etc/hostname: is not a folder") {
		t.Errorf("a file: %q", got)
	}

	own := filepath.Join(home, "deep/cache")
	m, _, err := ModelCache(eve, &launcher.Container{ModelCache: own}, "")
	must(t, err)
	must(t, makeCache(eve, m))
	var st syscall.Stat_t
	must(t, syscall.Stat(own, &st))
	if st.Uid != 4711 || m.Ino != st.Ino {
		t.Errorf("made as uid %d, mounted as %+v", st.Uid, m)
	}
	closed := filepath.Join(base, "closed/cache")
	if m, _, err = ModelCache(eve, &launcher.Container{ModelCache: closed}, ""); err != nil {
		t.Fatal(err)
	}
	if err := makeCache(eve, m); err == nil || !strings.Contains(err.Error(), "--model-cache "+closed) ||
		!strings.Contains(err.Error(), "permission denied for user eve") {
		t.Errorf("where eve may make nothing: %v", err)
	}
}
