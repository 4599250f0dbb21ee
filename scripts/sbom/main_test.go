package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
)

// The test's own program is one that was linked from modules.
func TestBillOfMaterials(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var one, two bytes.Buffer
	for _, w := range []*bytes.Buffer{&one, &two} {
		if err := run(w, self, "1.2.3", ""); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("one program has two bills")
	}
	var got bom
	if err := json.Unmarshal(one.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Metadata.Component.Version != "1.2.3" || !strings.HasPrefix(got.Serial, "urn:uuid:") {
		t.Errorf("bill of %+v, %s", got.Metadata.Component, got.Serial)
	}
	refs := map[string]bool{}
	for _, c := range got.Components {
		refs[c.Ref] = true
	}
	uuid := false
	for ref := range refs {
		uuid = uuid || strings.HasPrefix(ref, "pkg:golang/github.com/google/uuid@v")
	}
	if !uuid || len(got.Dependencies) != 1 || len(got.Dependencies[0].On) != len(got.Components) {
		t.Errorf("components %v, dependencies %v", refs, got.Dependencies)
	}
	for _, on := range got.Dependencies[0].On {
		if !refs[on] {
			t.Errorf("it depends on %s, which is no component", on)
		}
	}
}

func TestBillRefuses(t *testing.T) {
	info := &debug.BuildInfo{Deps: []*debug.Module{{Path: "example.org/local"}}}
	if _, err := bomOf(info, "1", [32]byte{}); err == nil || !strings.Contains(err.Error(), "example.org/local") {
		t.Errorf("a module without a version: %v", err)
	}
	if err := run(&bytes.Buffer{}, os.DevNull, "1", ""); err == nil {
		t.Error("what is no program has a bill")
	}
}

func TestLicenses(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"LICENSE": "do as you like\n", "NOTICE.txt": "by somebody", "main.go": "package x"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m := []*debug.Module{{Path: "example.org/x", Version: "v1.0.0"}}
	got, err := licensesOf(m, func(*debug.Module) (string, error) { return dir, nil })
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"example.org/x v1.0.0, LICENSE", "do as you like", "by somebody"} {
		if !strings.Contains(string(got), want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
	if strings.Contains(string(got), "package x") {
		t.Error("code among the licenses")
	}
	empty := t.TempDir()
	if _, err := licensesOf(m, func(*debug.Module) (string, error) { return empty, nil }); err == nil || !strings.Contains(err.Error(), "example.org/x v1.0.0") {
		t.Errorf("a module without a license: %v", err)
	}
}
