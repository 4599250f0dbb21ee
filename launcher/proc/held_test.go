package proc

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The limit that is nearest is that of a group above; what is counted is that group's. So in both versions of cgroups.
func TestHeldMemory(t *testing.T) {
	for name, tt := range map[string]struct {
		cgroup string
		files  map[string]string
		want   Held
	}{
		"v2": {"0::/job.slice/a.scope", map[string]string{
			"job.slice/memory.max": "41943040", "job.slice/memory.current": "41900000",
			"job.slice/memory.stat":           "anon 5\nworkingset_refault_anon 7\nworkingset_refault_file 30\nworkingset_activate_file 9",
			"job.slice/memory.events":         "max 12\noom 2\noom_kill 1",
			"job.slice/a.scope/memory.max":    "max",
			"job.slice/a.scope/memory.high":   "99999999",
			"job.slice/a.scope/memory.stat":   "workingset_refault_file 1",
			"job.slice/a.scope/memory.events": "oom_kill 0",
		}, Held{Path: "/job.slice/a.scope", Limit: 41943040, Used: 41900000, LimitFile: "job.slice/memory.max", Refaults: 37,
			Killed: 1}},
		"v1": {"4:memory:/why", map[string]string{
			"memory/memory.limit_in_bytes": "9223372036854771712", "memory/why/memory.limit_in_bytes": "41943040",
			"memory/why/memory.usage_in_bytes": "41943040",
			"memory/why/memory.stat":           "workingset_refault_file 3\ntotal_workingset_refault_file 5\n",
			"memory/why/memory.oom_control":    "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
		}, Held{Limit: 41943040, Used: 41943040, LimitFile: "memory/why/memory.limit_in_bytes", Refaults: 5, Killed: 4}},
		"none": {"0::/a", map[string]string{"a/memory.max": "max", "a/memory.current": "9"}, Held{Path: "/a"}},
	} {
		root := t.TempDir()
		write := func(file, text string) {
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write(root+"/proc/7/cgroup", tt.cgroup+"\n")
		for file, text := range tt.files {
			write(root+"/groups/"+file, text)
		}
		if tt.want.LimitFile != "" {
			tt.want.LimitFile = root + "/groups/" + tt.want.LimitFile
		}
		if d := cmp.Diff(tt.want, FS(root+"/proc").Held(Groups(root+"/groups"), 7)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}
