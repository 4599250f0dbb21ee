package agent

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
)

// A shim's program that was built in is run from memory; where that cannot be, the log says
// so once, and jobs run all the same.
func TestShimsProgram(t *testing.T) {
	own, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	for _, c := range []struct {
		name     string
		program  []byte
		inMemory bool
		told     int
	}{
		{"none", nil, false, 0},
		{"good", own, true, 0},
		{"cannot be run", []byte("no program"), false, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log lockedBuffer
			n := newNode(t, func(cfg *Config) {
				cfg.Shim, cfg.Logger = c.program, slog.New(slog.NewTextHandler(&log, nil))
			})
			as := n.as("exec sleep 1000")
			n.launch(as)
			pids := n.shimPIDs()
			if len(pids) != 1 {
				t.Errorf("shims %v, want one", pids)
			}
			for _, pid := range pids {
				exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
				if err != nil || strings.HasPrefix(exe, "/memfd:") != c.inMemory {
					t.Errorf("the shim runs %q, %v", exe, err)
				}
			}
			if got := strings.Count(log.String(), "shims are started from the agent's own program"); got != c.told {
				t.Errorf("told %d times, want %d", got, c.told)
			}
			n.end(as.Key, 0)
			n.hear(launcher.Ended)
		})
	}
}
