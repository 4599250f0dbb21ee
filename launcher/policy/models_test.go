package policy

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestModelCache(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	const text = "# ours\nmodel_cache: /data/models/\nmodel_readers: {users: [ada], groups: [ml]}\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	users, groups, ok := p.ModelReaders()
	if p.ModelCache() != "/data/models" || strings.Join(append(users, groups...), " ") != "ada ml" || !ok {
		t.Errorf("read as %q, %q, %q, %v", p.ModelCache(), users, groups, ok)
	}
	if err := p.ModelRule(errors.New("no")); !strings.Contains(err.Error(), "lines 2 and 3 of "+path) {
		t.Error(err)
	}
	if _, _, ok := (Policy{}).ModelReaders(); ok || (Policy{}).ModelCache() != "" {
		t.Error("rules from nowhere")
	}
}
