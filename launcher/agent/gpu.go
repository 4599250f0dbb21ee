package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// computeDevice is what every CUDA program opens and a display server does not
// have to: the driver's unified memory.
const computeDevice = "/dev/nvidia-uvm"

// desktop are programs that hold the GPU of a machine with a screen, and the
// driver's own daemons. They take little, and come back when ended.
var desktop = []string{
	"Xorg", "Xwayland", "gnome-shell", "gnome-remote-de", "mutter-x11-fram", "kwin_x11", "kwin_wayland",
	"nvidia-persiste", "nv-hostengine", "dcgm-exporter", "nvidia-smi",
}

// holder is a process with the GPU open.
type holder struct {
	pid  int
	name string // as the kernel keeps it: 15 bytes
}

// gpuFree refuses while somebody else's process computes on this node's GPU. Ranks
// of other jobs are the leader's to weigh, and a machine without the driver
// has no holders.
func gpuFree(proc string) error {
	var names []string
	for _, h := range gpuHolders(proc) {
		names = append(names, fmt.Sprintf("%s (PID %d)", h.name, h.pid))
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("%s computes on the GPU of this node: end it, or choose other nodes with --exclude", strings.Join(names, ", "))
}

func gpuHolders(proc string) []holder {
	var found []holder
	links, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "fd"))
	for _, dir := range links {
		base := filepath.Dir(dir)
		pid, err := strconv.Atoi(filepath.Base(base))
		if err != nil || !opens(dir, computeDevice) {
			continue
		}
		comm, _ := os.ReadFile(filepath.Join(base, "comm"))
		name := strings.TrimSuffix(string(comm), "\n")
		env, _ := os.ReadFile(filepath.Join(base, "environ"))
		ours := strings.Contains("\x00"+string(env), "\x00SPARKRUN_GANG=")
		if !ours && !slices.Contains(desktop, name) {
			found = append(found, holder{pid, name})
		}
	}
	return found
}

func opens(dir, device string) bool {
	fds, _ := os.ReadDir(dir)
	return slices.ContainsFunc(fds, func(fd os.DirEntry) bool {
		to, err := os.Readlink(filepath.Join(dir, fd.Name()))
		return err == nil && to == device
	})
}
