package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher/proc"
)

// computeDevice is the driver's unified memory, which every CUDA program opens and a
// display server need not.
const computeDevice = "/dev/nvidia-uvm"

// desktop are programs that use the GPU of a machine with a screen, and the driver's own
// daemons. They take little memory, and are restarted when ended.
var desktop = []string{
	"Xorg", "Xwayland", "gnome-shell", "gnome-remote-de", "mutter-x11-fram", "kwin_x11", "kwin_wayland",
	"nvidia-persiste", "nv-hostengine", "dcgm-exporter", "nvidia-smi",
}

// gpu refuses a stage that needs the GPU where another process computes on it.
func gpu(_ context.Context, c *Case) error {
	if !c.Stage.GPU {
		return nil
	}
	return gpuFree(proc.Here)
}

// gpuFree refuses while another user's process computes on this node's GPU. Ranks of other
// jobs are the leader's to consider, and a machine without the driver has no such
// processes.
func gpuFree(from proc.FS) error {
	var holders []string
	for _, pid := range from.PIDs() {
		if !from.Opens(pid, func(file string) bool { return file == computeDevice }) {
			continue
		}
		name := from.Name(pid)
		if _, ours := from.Env(pid, "SPARKRUN_GANG"); !ours && !slices.Contains(desktop, name) {
			holders = append(holders, fmt.Sprintf("%s (PID %d)", name, pid))
		}
	}
	if len(holders) == 0 {
		return nil
	}
	slices.Sort(holders)
	return fmt.Errorf("%s computes on the GPU of this node: end it, or choose other nodes with --exclude",
		strings.Join(holders, ", "))
}
