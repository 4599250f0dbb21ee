package container

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
)

// rdmaDevices are the device files through which programs reach the NICs, past the kernel.
func rdmaDevices(dev string) []string {
	all, _ := filepath.Glob(filepath.Join(dev, "infiniband", "*"))
	var out []string
	for _, f := range all {
		if fi, err := os.Stat(f); err == nil && fi.Mode()&fs.ModeCharDevice != 0 {
			out = append(out, f)
		}
	}
	return out
}

// memlock reports whether containers get an unlimited memlock: where the agent may raise
// it, the engine may too. short: they have NICs, and do without. If engine and agent run as
// different users, nothing is known of what the engine may do.
func memlock(devices []string, asked []launcher.Ulimit, may func([]launcher.Ulimit) error, root bool) (unlimited,
	short bool) {
	if slices.ContainsFunc(asked, func(u launcher.Ulimit) bool { return u.Name == "memlock" }) {
		return false, false
	}
	if may([]launcher.Ulimit{{Name: "memlock", Soft: launcher.Unlimited, Hard: launcher.Unlimited}}) == nil || !root &&
		len(devices) > 0 {
		return true, false
	}
	return false, len(devices) > 0
}

// gpuOf is how the engine gives out this node's GPU; NoGPU if the node has none.
func gpuOf(root string, f Facts) (GPU, error) {
	if _, err := os.Stat(filepath.Join(root, "dev/nvidiactl")); err != nil {
		return NoGPU, nil //nolint:nilerr // no driver: the leader allowed such a node
	}
	if f.CDI {
		for _, dir := range []string{"etc/cdi", "var/run/cdi"} { // the CDI specification's
			specs, _ := filepath.Glob(filepath.Join(root, dir, "*"))
			for _, s := range specs {
				if b, err := os.ReadFile(s); err == nil && strings.Contains(string(b), "nvidia.com/gpu") {
					return CDIGPU, nil
				}
			}
		}
	}
	if f.Nvidia {
		return OldGPU, nil
	}
	return "", errors.New("the engine cannot give out this machine's GPU: install nvidia-container-toolkit, then " +
		"`nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`, or launch with --gpus none")
}

// groupOf names the cgroup of an attempt's containers, as the engine's driver writes it and
// as a folder. With cgroup v1 there is none: the processes are moved into the ranks' own v2
// group.
func groupOf(root string, systemd bool, name string) (parent, folder string) {
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
		return "", ""
	}
	if systemd { // a dash in a slice's name is a level of the tree (systemd.slice(5))
		slice := "sparkrun-" + sliceName(name) + ".slice"
		return slice, filepath.Join(root, "sparkrun.slice", slice)
	}
	return "/sparkrun/" + name + ".boxes", filepath.Join(root, "sparkrun", name+".boxes")
}

func (h *Host) groupName(k launcher.Key) string { return string(h.cfg.Node) + "-" + k.String() }

func sliceName(name string) string { return strings.ReplaceAll(name, "-", "_") }
