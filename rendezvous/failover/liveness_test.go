package failover

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whom a boot has heard outlives the agent; a person's word does until the
// machine shows itself.
func TestLiveness(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "met.json")
	open := func() *liveness {
		m, err := openLiveness(path)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	m := open()
	if m.known("a") || len(m.Dead) != 0 {
		t.Error("it knows somebody from nowhere")
	}
	if err := m.dead("a", "b"); err != nil {
		t.Fatal(err)
	}
	m = open()
	if !m.known("a") || !m.known("b") {
		t.Errorf("after a restart: %+v", m)
	}
	if err := m.heard("a"); err != nil {
		t.Fatal(err)
	}
	m = open()
	if !m.known("a") || m.Dead["a"] || !m.Dead["b"] {
		t.Errorf("after a sign of life: %+v", m)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openLiveness(path); err == nil || !strings.Contains(err.Error(), path) ||
		!strings.Contains(err.Error(), "remove the file") {
		t.Errorf("a broken file: %v", err)
	}
}
