package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A server that is started again finds what it has compiled, though its container is new; another user's does not.
// It sees the model in its machine's cache, and cannot change it.
func TestSecondStartIsWarm(t *testing.T) {
	t.Parallel()
	model := filepath.Join(scratch(t), "model")
	for name, text := range map[string]string{"config.json": config, "model.safetensors": "weights"} {
		if err := os.MkdirAll(model, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(model, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	l := up(t, 1)
	l.do("engine", "spark1")
	l.vllmImage("spark1")
	l.on("spark1", "sh", "-c", "umask 022; useradd -M -u 4711 eve; mkdir -p /etc/sparkrun; echo 'containers: {users: [root, eve]}' > /etc/sparkrun/policy.yaml").must(t)
	snapshot := strings.TrimSpace(l.on("spark1", "sparkrun", "model", "add", model, "--name", "root/tiny").must(t).out)
	for _, tt := range []struct {
		name  string
		flags []string
		warm  bool
	}{
		{"first", nil, false},
		{"second", nil, true},
		{"another user's", []string{"--user", "eve"}, false},
		{"another user's second", []string{"--user", "eve"}, true},
	} {
		s := l.start("spark1", append([]string{"sparkrun", "launch", "vllm", "--on", "spark1", "--image", "lab/vllm", "--mount", "/usr:/usr:ro", "root/tiny"}, tt.flags...)...)
		r := s.within(serveWait)
		job := regexp.MustCompile(`job (\w+) goes on by itself`).FindStringSubmatch(r.err)
		if r.code != 0 || job == nil {
			t.Fatalf("%s: %s", tt.name, r)
		}
		got := l.ask(t, "spark1", l.service("spark1", job[1]).Service.URL)
		if got.Warm != tt.warm {
			t.Errorf("%s: it finds what was compiled before: %t", tt.name, got.Warm)
		}
		if got.Argv[1] != snapshot {
			t.Errorf("%s: it serves %s, want %s", tt.name, got.Argv[1], snapshot)
		}
		r = l.on("spark1", "sparkrun", "exec", job[1], "--", "sh", "-c", "cat $0/model.safetensors && echo x >$0/model.safetensors", snapshot)
		if r.code == 0 || r.out != "weights" || !strings.Contains(r.err, "ead-only file system") {
			t.Errorf("%s: the model in the container: %s", tt.name, r)
		}
		l.on("spark1", "sparkrun", "stop", job[1]).must(t)
	}
	if r := l.on("spark1", "setpriv", "--reuid=4711", "--clear-groups", "sh", "-c", "ls /var/lib/sparkrun/compiled/*/*/*"); r.code == 0 {
		t.Errorf("eve sees what others compile: %s", r)
	}
	l.noContainerLeft("spark1")
}
