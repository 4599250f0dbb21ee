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

	"github.com/sparkrun/sparkrun/launcher/proc"
)

// gpuFile is in every container with a GPU, whichever way it was requested.
const gpuFile = "/dev/nvidiactl"

// look checks, before the program starts, whether the container has what was asked for: the
// very files that the user's right was checked for, and the GPU. An engine follows a path
// as root, later than that check; who may write on the way may have put a link there since.
func (o *outer) look(init int) error {
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", init), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	switch {
	case (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)) && os.Geteuid() != 0:
		return nil // the standalone mode: who may use the engine has its rights anyway
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH):
		return o.died(State{})
	case err != nil:
		return fmt.Errorf("look into container %s: %w", o.order.Spec.Name, err)
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
			return m.swapped()
		}
	}
	if o.order.Spec.GPU != NoGPU {
		if _, _, err := inside(root, gpuFile); err != nil {
			return fmt.Errorf("the GPU is not in the container: %w: see whether `docker run --gpus all %s "+
				"nvidia-smi` finds it", err, o.order.Spec.Image)
		}
	}
	return nil
}

// unchanged checks the sources once more, just before an engine mounts them: a replaced
// source is not mounted, except in a race of milliseconds, which look catches.
func unchanged(mounts []Mount) error {
	for _, m := range mounts {
		var st unix.Stat_t
		switch err := unix.Lstat(m.Source, &st); {
		case m.Ino == 0:
		case errors.Is(err, unix.EACCES) && os.Geteuid() != 0: // the engine reports what it finds
		case err != nil:
			return fmt.Errorf("--mount %s:%s: %w: it was there when the job was prepared: launch again once it "+
				"is back", m.Source, m.Target, err)
		case st.Dev != m.Dev || st.Ino != m.Ino:
			return m.swapped()
		}
	}
	return nil
}

func (m Mount) swapped() error {
	return fmt.Errorf("--mount %s:%s: something else was put there after its user's right to it was looked at: "+
		"launch again", m.Source, m.Target)
}

// inside opens a path as the container's processes would see it.
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

// unified is where the v2 tree is mounted beside v1's.
const unified = "/sys/fs/cgroup/unified"

func besideV1() bool {
	var st unix.Statfs_t
	return unix.Statfs(unified, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// join moves a container's first processes, and with them all that they fork, into our own
// group of cgroup v2 where that tree is mounted beside v1's: an engine leaves them in its
// own group. With v2 alone they are in a group by Spec.CgroupParent.
func join(pids ...int) error {
	if !besideV1() || os.Geteuid() != 0 {
		return nil
	}
	own, err := proc.Here.Cgroup("")
	if err != nil {
		return fmt.Errorf("find the ranks' cgroup: %w", err)
	}
	if !strings.Contains(own, "/sparkrun") {
		return nil // a rank without a cgroup of its own
	}
	for _, pid := range pids {
		err := os.WriteFile(filepath.Join(unified, own, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("put the container's process %d into the ranks' cgroup: %w", pid, err)
		}
	}
	return nil
}
