package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Each stream has a file of its own, with its bytes as they were, and a file
// that was there is left alone.
func TestOutputFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	line := []string{"logs", "job", "--output", "files=" + dir}
	g := &apptest.FakeRunner{OnLogs: apptest.Prints(apptest.Out(0, 0, "a\x00"), apptest.Errs(1, 0, "e\n"),
		apptest.Out(0, 2, "\xffb"), apptest.Out(0, 0, "a\x00"),
		wire.LogChunk{Host: "spark1", Note: "spark1: rank 0: 3 B of its stdout were lost at byte 9: disk full"})}
	code, o, e := cli(t, apptest.Agent(g), line...)
	if code != 0 || o != "" || e != "sparkrun: spark1: rank 0: 3 B of its stdout were lost at byte 9: disk full\n" {
		t.Errorf("%d %q %q", code, o, e)
	}
	got := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range entries {
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		got[f.Name()] = string(b)
	}
	if d := cmp.Diff(map[string]string{"rank-0.out": "a\x00\xffb", "rank-1.err": "e\n"}, got); d != "" {
		t.Error(d)
	}
	if code, _, e := cli(t, apptest.Agent(g), line...); code != 1 ||
		!strings.Contains(e, "rank-0.out: file already exists, and is not written over") {
		t.Errorf("a second time: %d %q", code, e)
	}
	if code, _, e := cli(t, apptest.Agent(g), "launch", "exec", "--standalone", "--output",
		"files="+dir, "--", "true"); code != 125 || !strings.Contains(e, "name another folder") {
		t.Errorf("launch: %d %q", code, e)
	}
}
