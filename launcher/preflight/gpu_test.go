package preflight

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher/proc"
)

// fakeProc is a /proc of processes that have files open.
func fakeProc(t *testing.T, procs map[string]struct{ comm, environ, open string }) string {
	dir := t.TempDir()
	for pid, p := range procs {
		must(t, os.MkdirAll(filepath.Join(dir, pid, "fd"), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, pid, "comm"), []byte(p.comm+"\n"), 0o600))
		must(t, os.WriteFile(filepath.Join(dir, pid, "environ"), []byte(p.environ), 0o600))
		must(t, os.Symlink("/dev/null", filepath.Join(dir, pid, "fd", "0")))
		must(t, os.Symlink(p.open, filepath.Join(dir, pid, "fd", "5")))
	}
	return dir
}

// A desktop is no reason to refuse, nor are ranks: only the leader weighs jobs
// against each other. Somebody's forgotten notebook is.
func TestGPUHolders(t *testing.T) {
	type p = struct{ comm, environ, open string }
	procs := map[string]p{
		"10": {"Xorg", "", computeDevice},
		"11": {"gnome-shell", "A=b", computeDevice},
		"12": {"python3", "A=b\x00SPARKRUN_GANG=abcd.1/ff\x00", computeDevice},
		"13": {"editor", "", "/dev/nvidia0"}, // draws, computes nothing
		"14": {"bash", "", "/home/x/nvidia-uvm"},
	}
	if err := gpuFree(proc.FS(fakeProc(t, procs))); err != nil {
		t.Errorf("nobody computes: %v", err)
	}
	procs["15"] = p{"jupyter-lab", "NOT_SPARKRUN_GANG=1", computeDevice}
	err := gpuFree(proc.FS(fakeProc(t, procs)))
	if err == nil || !strings.Contains(err.Error(), "jupyter-lab (PID 15) computes on the GPU") {
		t.Errorf("error %v", err)
	}
}
