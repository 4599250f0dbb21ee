package shim

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// How it began and how it ended is kept, in parts whose names say which bytes
// they hold, and no more than was asked for.
func TestOutputInParts(t *testing.T) {
	dir := t.TempDir()
	l, err := openOutput(dir, 3, "out", logParts*minPart)
	must(t, err)
	var all []byte
	for i := range 20 * minPart / 16 {
		all = fmt.Appendf(all, "line %010d\n", i)
	}
	for i := 0; i < len(all); i += 100000 { // across the parts' borders
		n, err := l.Write(all[i:min(i+100000, len(all))])
		must(t, err)
		if n != min(100000, len(all)-i) {
			t.Fatalf("%d bytes written", n)
		}
	}
	must(t, l.Close())
	if l.end() != int64(len(all)) {
		t.Errorf("it has %d bytes, want %d", l.end(), len(all))
	}
	files, err := os.ReadDir(dir)
	must(t, err)
	var bases []int64
	for _, f := range files {
		if f.Name() == StampsName("rank-3.out") {
			continue
		}
		path, base, ok := ParsePart(f.Name())
		got, err := os.ReadFile(filepath.Join(dir, f.Name()))
		must(t, err)
		if !ok || path != "rank-3.out" || base+int64(len(got)) > int64(len(all)) ||
			!bytes.Equal(got, all[base:base+int64(len(got))]) {
			t.Errorf("%s holds other bytes than its name says", f.Name())
		}
		bases = append(bases, base/minPart)
	}
	if d := cmp.Diff(map[int64]bool{0: true, 13: true, 14: true, 15: true, 16: true, 17: true, 18: true, 19: true},
		set64(bases)); d != "" {
		t.Errorf("parts: %s", d)
	}
}

func set64(ns []int64) map[int64]bool {
	m := map[int64]bool{}
	for _, n := range ns {
		m[n] = true
	}
	return m
}

func TestParsePart(t *testing.T) {
	for name, want := range map[string]struct {
		path string
		base int64
		ok   bool
	}{
		"/l/rank-0.out":       {"/l/rank-0.out", 0, true},
		"/l/rank-0.err.65536": {"/l/rank-0.err", 65536, true},
		"/l/rank-0.out.x":     {"/l/rank-0.out", 0, false},
		"/l/rank-0.out.-5":    {"/l/rank-0.out", -5, false},
		"/l/lost.json":        {"/l/lost", 0, false},
	} {
		path, base, ok := ParsePart(name)
		if ok != want.ok || ok && (path != want.path || base != want.base || PartName(path, base) != name) {
			t.Errorf("%s: %s, %d, %v", name, path, base, ok)
		}
	}
}

// The last of a disk is not ours: raft lives there.
func TestReservedBytes(t *testing.T) {
	for total, want := range map[int64]int64{100 << 20: 5 << 20, 4 << 40: 64 << 20} {
		if got := ReservedBytes(total); got != want {
			t.Errorf("of %d: %d, want %d", total, got, want)
		}
	}
}
