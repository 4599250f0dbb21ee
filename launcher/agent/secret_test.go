package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
)

// inMemory gives an agent a RunDir on a tmpfs, and secrets that open to what
// their box says.
func inMemory(t *testing.T) func(*Config) {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "sparkrun-test-")
	must(t, err)
	must(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { os.RemoveAll(dir) })
	return func(c *Config) {
		c.RunDir = dir
		c.Secrets = opener(func(_ launcher.Spec, s launcher.SealedSecret) ([]byte, error) {
			if string(s.Box) == "broken" {
				return nil, errors.New("it does not open here")
			}
			return s.Box, nil
		})
	}
}

func secrets(of ...launcher.SealedSecret) func(*launcher.Assignment) {
	return func(a *launcher.Assignment) { a.Spec.Secrets = of }
}

// A rank finds its secret as a variable and as a file, also where the agent was
// replaced between prepare and start; and nothing of it stays.
func TestSecretsReachRanks(t *testing.T) {
	n := newNode(t, inMemory(t))
	as := n.as(`[ "$HF_TOKEN" = hf_1 ] && [ "$(cat "$HF_TOKEN_FILE"; echo .)" = "hf_1
." ] && [ "$SPARKRUN_SECRETS_DIR/HF_TOKEN" = "$HF_TOKEN_FILE" ] || exit 3; sleep 600`,
		secrets(launcher.SealedSecret{Name: "HF_TOKEN", Box: []byte("hf_1\n")}))
	n.prepare(as)
	port := n.hear(launcher.Prepared).Port
	path := filepath.Join(n.a.secretsDir(key), "HF_TOKEN")
	fi, err := os.Stat(path)
	if err != nil || fi.Mode() != 0o400 {
		t.Errorf("%s: %v, %v", path, fi, err)
	}
	plans, _, err := n.a.Explain(n.ctx, as, "")
	must(t, err)
	for _, s := range plans[0].Env {
		if strings.Contains(s.Value, "hf_1") {
			t.Errorf("a dry run shows %s=%s", s.Name, s.Value)
		}
	}
	n.drop()
	n.open()
	n.start(key, port)
	n.hear(launcher.Started)
	n.end(key, 0)
	if ev := n.hear(launcher.Exited); ev.Exit.Code == 3 {
		t.Errorf("the rank did not find its secret: %+v", ev.Exit)
	}
	n.hear(launcher.Ended)
	if _, err := os.Stat(filepath.Dir(path)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the end: %v", err)
	}
}

func TestSecretsRefused(t *testing.T) {
	good := launcher.SealedSecret{Name: "HF_TOKEN", Box: []byte("hf_1")}
	for name, c := range map[string]struct {
		change func(*Config)
		secret launcher.SealedSecret
		want   string
	}{
		"on a disk": {func(c *Config) { inMemory(t)(c); c.RunDir = filepath.Join(onDisk(t), "run") }, good,
			"not in memory: mount a tmpfs"},
		"unknown here": {func(*Config) {}, good, "takes no secrets"},
		"unopened": {inMemory(t), launcher.SealedSecret{Name: "HF_TOKEN", Box: []byte("broken")},
			"secret HF_TOKEN: it does not open here"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, c.change)
			n.prepare(n.as("true", secrets(good, launcher.SealedSecret{Name: "OTHER_KEY", Box: c.secret.Box})))
			want := strings.ReplaceAll(c.want, "secret HF_TOKEN", "secret OTHER_KEY")
			if ev := n.hear(launcher.Refused); !strings.Contains(ev.Text, want) {
				t.Errorf("refused: %q, want %q", ev.Text, want)
			}
			if left, _ := filepath.Glob(filepath.Join(n.cfg.RunDir, "secrets", "*")); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// onDisk is a folder that is in no tmpfs, wherever TMPDIR is.
func onDisk(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "sparkrun-test-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

type opener func(launcher.Spec, launcher.SealedSecret) ([]byte, error)

func (o opener) Open(spec launcher.Spec, s launcher.SealedSecret) ([]byte, error) { return o(spec, s) }
