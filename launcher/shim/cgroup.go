package shim

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher/proc"
)

const cgroupRoot = "/sys/fs/cgroup"

// cgroup is a group with all ranks of an attempt and all that they fork. The shim itself is
// not in it.
type cgroup struct {
	path  string
	dir   *os.File // the folder that clone3 puts a child into; nil on v1
	mount string   // of the hierarchy; "" if opened only to be ended
}

// makeCgroup makes sparkrun/NAME at the top of the tree or, if we may not write there,
// below our own group (a delegated one). v2 comes first, alone or beside v1; else v1's
// freezer, which is used for its membership only.
func makeCgroup(root, name string) (*cgroup, error) {
	mount, v2, err := cgroupMount(root)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, base := range []string{mount, filepath.Join(mount, ownCgroup(v2))} {
		path := filepath.Join(base, "sparkrun", name)
		c, err := newCgroup(mount, path)
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("make cgroup %s: %w", name, errors.Join(errs...))
}

// newCgroup makes a group, and missing ones above it.
func newCgroup(mount, path string) (*cgroup, error) {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, err
	}
	c, err := openCgroup(path)
	if err == nil {
		c.mount = mount
	}
	return c, err
}

// v2Path is the path of the group; empty if there is none, or one of v1.
func (c *cgroup) v2Path() string {
	if c == nil || c.dir == nil {
		return ""
	}
	return c.path
}

// openCgroup opens an existing group.
func openCgroup(path string) (*cgroup, error) {
	_, err := os.Stat(filepath.Join(path, "cgroup.events")) // only v2 has it
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(path); err != nil {
			return nil, err
		}
		return &cgroup{path: path}, nil
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return &cgroup{path: path, dir: dir}, nil
}

func cgroupMount(root string) (path string, v2 bool, err error) {
	var st unix.Statfs_t
	for _, p := range []string{root, filepath.Join(root, "unified")} {
		if unix.Statfs(p, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			return p, true, nil
		}
	}
	p := filepath.Join(root, "freezer")
	if unix.Statfs(p, &st) == nil && st.Type == unix.CGROUP_SUPER_MAGIC {
		return p, false, nil
	}
	return "", false, fmt.Errorf("find cgroups under %s: %w", root, fs.ErrNotExist)
}

// ownCgroup gives this thread's group; / if the kernel does not tell.
func ownCgroup(v2 bool) string {
	controller := "freezer"
	if v2 {
		controller = ""
	}
	own, _ := proc.Here.Cgroup(controller)
	return cmp.Or(own, "/")
}

// scopeOf is the systemd unit for a shim whose cgroup has that name.
func scopeOf(name string) string { return "sparkrun-" + name + ".scope" }

// ranksCgroup makes a cgroup for the ranks: below the scope that this process is in, else beside systemd's. An error
// means none.
func ranksCgroup(name string) (*cgroup, error) {
	if mount, v2, err := cgroupMount(cgroupRoot); err == nil {
		if own := ownCgroup(v2); strings.HasSuffix(own, "/"+scopeOf(name)) {
			return newCgroup(mount, filepath.Join(mount, own, "ranks"))
		}
	}
	return makeCgroup(cgroupRoot, name) // no systemd, or it uses another hierarchy than the one that can kill
}

// fork calls f so that what it forks begins in the group: on v2 through attr, on v1 by
// moving the forking thread there and back. A child that was moved after its fork could
// have forked before.
func (c *cgroup) fork(attr *unix.SysProcAttr, f func() (int, error)) (int, error) {
	if c == nil {
		return f()
	}
	if c.dir != nil {
		attr.UseCgroupFD, attr.CgroupFD = true, int(c.dir.Fd())
		pid, err := f()
		attr.UseCgroupFD = false
		switch err {
		case unix.EACCES, unix.EPERM, unix.EBUSY, unix.ENOSYS, unix.EOPNOTSUPP, unix.ENODEV, unix.EINVAL:
			return f() // the exec would fail again, or else clone3 or the group itself refused
		}
		return pid, err
	}
	runtime.LockOSThread()
	home := filepath.Join(c.mount, ownCgroup(false))
	if os.WriteFile(filepath.Join(c.path, "tasks"), []byte("0"), 0) != nil {
		runtime.UnlockOSThread()
		return f()
	}
	pid, err := f()
	if os.WriteFile(filepath.Join(home, "tasks"), []byte("0"), 0) == nil {
		runtime.UnlockOSThread() // else the thread ends with its goroutine
	}
	return pid, err
}

// procs lists the members, those of sub-groups included (a rank may make some), without
// this process: on v1 its forking thread may be in the group for a moment.
func (c *cgroup) procs() []int {
	var pids []int
	if c == nil {
		return nil
	}
	_ = filepath.WalkDir(c.path, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil //nolint:nilerr // a removed group has no processes
		}
		b, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		for f := range bytes.FieldsSeq(b) {
			if pid, err := strconv.Atoi(string(f)); err == nil && pid > 0 && pid != os.Getpid() {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids
}

// populated reports whether a living process is left in it.
func (c *cgroup) populated() bool {
	if c == nil {
		return false
	}
	if c.dir != nil {
		b, err := os.ReadFile(filepath.Join(c.path, "cgroup.events"))
		return err == nil && bytes.Contains(b, []byte("populated 1"))
	}
	return len(c.procs()) > 0
}

// kill kills every member. v2's cgroup.kill (Linux 5.14) has no race with a fork; without
// it the caller has to call again until no process is left.
func (c *cgroup) kill() {
	if c == nil {
		return
	}
	if c.dir != nil && os.WriteFile(filepath.Join(c.path, "cgroup.kill"), []byte("1"), 0) == nil {
		return
	}
	c.killEach()
}

// killEach is kill for a group that will have members again: after a write to cgroup.kill a
// process forked into the group is killed as it is forked (seen with Linux 6.18).
func (c *cgroup) killEach() {
	if c == nil {
		return
	}
	for _, pid := range c.procs() {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	if c.dir == nil { // a frozen member would not die
		_ = os.WriteFile(filepath.Join(c.path, "freezer.state"), []byte("THAWED"), 0)
	}
}

// remove removes the group and its sub-groups, deepest first.
func (c *cgroup) remove() error {
	if c == nil {
		return nil
	}
	if c.dir != nil {
		c.dir.Close()
	}
	var dirs []string
	_ = filepath.WalkDir(c.path, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	for _, d := range slices.Backward(dirs) {
		if err := unix.Rmdir(d); err != nil && err != unix.ENOENT {
			return fmt.Errorf("remove cgroup %s: %w", d, err)
		}
	}
	return nil
}
