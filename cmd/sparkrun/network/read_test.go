package network

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/follow"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// A launch shows what has no end for a while, in parts; what rank 0 wrote is read as it wrote it.
func TestNCCLTestReadsPartsOfLines(t *testing.T) {
	var w watcher
	w.ranksOutput.line = w.line
	give := func(partial bool, text string) {
		t.Helper()
		b, err := json.Marshal(follow.OutputLine{Type: "output", Host: "spark1", Stream: wire.Stdout, Line: &text,
			Partial: partial})
		if err != nil {
			t.Fatal(err)
		}
		w.take(b)
	}
	for line := range strings.Lines(apptest.SweepGood) {
		line = strings.TrimSuffix(line, "\n")
		give(true, line[:len(line)-1])
		give(false, line[len(line)-1:])
	}
	give(true, "# error: unhandled") // and what had no end at all
	w.end()
	got := w.table.Table()
	if len(got.Rows) != 2 || got.OutOfBounds == nil || !got.OutOfBounds.OK || len(got.Notes) != 1 {
		t.Errorf("%+v", got)
	}
}

// A part just below a gate is not told as the gate itself.
func TestGateMissed(t *testing.T) {
	for part, want := range map[float64]string{0.52: "0.52", 0.8999: "0.8999", 0.89: "0.89", 0.8951: "0.895",
		0.8999999999: "0.900000"} {
		if got := missed(0.9, part).Error(); got != "--gate 0.9: "+want+" of what is expected was reached" {
			t.Errorf("%g: %s", part, got)
		}
	}
}

// A build that came in part is not brought to any machine: tar takes it for one with fewer programs.
func TestReadBuilt(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range []string{"BUILT", "./all_gather_perf", "./all_reduce_perf"} {
		text := "nccl: 2.30.7, built with it\n"
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "x.tar")
	for size, whole := range map[int]bool{b.Len(): true, 4 * 512: false, 3*512 + 7: false, 0: false} {
		if err := os.WriteFile(name, b.Bytes()[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		got, sum, err := readBuilt(name)
		if whole != (err == nil) || whole && (got.NCCL != "2.30.7" || len(sum) != 16) || !whole &&
			!strings.Contains(err.Error(), "has no end") {
			t.Errorf("%d bytes: %+v %q %v", size, got, sum, err)
		}
	}
}
