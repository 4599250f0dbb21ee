package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// With a unit of ours systemd starts the agent; without, or without systemd, nothing is done; a failure is told.
func TestStartAgent(t *testing.T) {
	for name, tc := range map[string]struct {
		loaded, enable string
		started        bool
		err            string
	}{
		"a unit":          {"echo loaded", "exit 0", true, ""},
		"no unit":         {"echo not-found", "exit 0", false, ""},
		"no systemd":      {"exit 1", "exit 0", false, ""},
		"it cannot":       {"echo loaded", "echo Job for sparkrun.service failed >&2; exit 1", false, "Job for sparkrun.service"},
		"no such program": {},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("PATH", dir)
			if tc.loaded != "" {
				script := "#!/bin/sh\ncase $1 in show) " + tc.loaded + ";; enable) echo \"$*\" >" + dir + "/did; " + tc.enable +
					";; esac\n"
				if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte(script), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			started, err := startAgent(t.Context())
			if started != tc.started || (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("started %v, %v", started, err)
			}
			did, _ := os.ReadFile(filepath.Join(dir, "did"))
			if got := strings.TrimSpace(string(did)); tc.started != (got == "enable --now sparkrun") && tc.err == "" {
				t.Errorf("it did %q", got)
			}
		})
	}
}
