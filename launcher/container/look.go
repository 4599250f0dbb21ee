package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// gpuFile is what a container with a GPU has, whichever way it was asked for.
const gpuFile = "/dev/nvidiactl"

// look finds out, before the program is there, whether the container has what was asked for:
// the very files whose user's right to them was looked at, and the GPU. An engine follows a
// path as root, when it gets to it; who may write on the way may have put a link there since.
func (o *outer) look(init int) error {
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", init), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		return nil // not root, and so without more rights than an engine has given
	}
	if err != nil {
		return o.died(State{})
	}
	defer unix.Close(root)
	for _, m := range o.order.Spec.Mounts {
		if m.Ino == 0 {
			continue
		}
		dev, ino, err := inside(root, m.Target)
		if err != nil {
			return fmt.Errorf("look at --mount %s:%s in the container: %w", m.Source, m.Target, err)
		}
		if dev != m.Dev || ino != m.Ino {
			return fmt.Errorf("--mount %s:%s: something else was put there while the container was made", m.Source, m.Target)
		}
	}
	if o.order.Spec.GPU != NoGPU {
		if _, _, err := inside(root, gpuFile); err != nil {
			return fmt.Errorf("the GPU is not in the container: %w: see whether `docker run --gpus all %s nvidia-smi` finds it", err, o.order.Spec.Image)
		}
	}
	return nil
}

// inside looks at a path as the container's processes would.
func inside(root int, path string) (dev, ino uint64, err error) {
	fd, err := unix.Openat2(root, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return 0, 0, fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, 0, fmt.Errorf("look at %s: %w", path, err)
	}
	return st.Dev, st.Ino, nil
}

// join brings a container's first processes, and with them all that they fork, into our own
// group of cgroup v2 where that tree stands beside v1's: an engine then leaves them
// where it was itself. Where v2 is all there is, they are in a group by Spec.CgroupParent.
func join(pids ...int) error {
	const unified = "/sys/fs/cgroup/unified"
	var st unix.Statfs_t
	if unix.Statfs(unified, &st) != nil || st.Type != unix.CGROUP2_SUPER_MAGIC || os.Geteuid() != 0 {
		return nil
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return fmt.Errorf("find the ranks' cgroup: %w", err)
	}
	for line := range strings.Lines(string(own)) {
		path, v2 := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::")
		if !v2 || !strings.Contains(path, "/sparkrun") { // a rank without a group of its own
			continue
		}
		for _, pid := range pids {
			err := os.WriteFile(filepath.Join(unified, path, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("put the container's process %d into the ranks' cgroup: %w", pid, err)
			}
		}
	}
	return nil
}
