package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

func TestGates(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	g := &gates{path: filepath.Join(t.TempDir(), "gates.json"), now: func() time.Time { return now }}
	ids := func(text string) []launcher.NodeID {
		var all []launcher.NodeID
		for _, f := range strings.Fields(text) {
			all = append(all, launcher.NodeID(f))
		}
		return all
	}
	add := func(nodes string, part float64) {
		t.Helper()
		if err := g.add(ids(nodes), part); err != nil {
			t.Fatal(err)
		}
	}
	asked := func(nodes, want string) {
		t.Helper()
		err := g.open(ids(nodes), 0.9)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", nodes, err, want)
		}
	}
	asked("a b", "no nccl-test of these machines has been judged within a day")
	add("c a b", 0.95)
	asked("a b c", "")
	asked("b a", "")
	asked("a d", "no nccl-test of these")
	now = now.Add(time.Hour)
	add("a b", 0.52) // the latest word on these two, and none on the third
	asked("a b", "0s ago, reached 0.52 of what is expected")
	asked("a c", "")
	asked("a b c", "of 2 of these machines: the last nccl-test of these machines, 0s ago, reached 0.52 of what is expected")
	add("a b d", 0.95) // of three, of which one is not asked about
	asked("a b", "")
	asked("a b c", "")
	add("a b", 0.8999)
	asked("a b", "reached 0.89 of what is expected")
	add("a b", 0)
	asked("a b", "failed")
	add("b a", 0.91)
	asked("a b", "")
	now = now.Add(23*time.Hour + time.Minute)
	asked("a c", "older than a day")
	asked("a b", "")
	add("a f", 1)
	now = now.Add(-48 * time.Hour) // the clock was wrong, and is set right
	asked("a f", "by this machine's clock still to come")
	add("a e", 1)
	asked("a e", "")
	now = now.Add(48 * time.Hour)
	for i := range 2 * gatesKept { // of many sets the latest are kept, and a damaged file is told and then mended
		add("a x"+strings.Repeat("x", i), 1)
	}
	if all, err := g.read(); err != nil || len(all) != gatesKept {
		t.Errorf("%d are kept: %v", len(all), err)
	}
	if err := os.WriteFile(g.path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	asked("a b", "remove "+g.path)
	add("a b", 1)
	asked("a b", "")
}
