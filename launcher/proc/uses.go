package proc

import (
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Uses finds a file that a process has open or mapped, by the last part of its name and its inode: what comes before is
// as the process's own mounts have it. Empty: it has none, or that may not be read.
func (fs FS) Uses(pid int, inodes map[string]uint64) (file string) {
	base := fs.path(pid, "fd")
	if d, err := os.Open(base); err == nil {
		defer d.Close()
		names, _ := d.Readdirnames(-1)
		for _, name := range names {
			to, _ := os.Readlink(base + "/" + name)
			inode, named := inodes[path.Base(to)]
			var st unix.Stat_t
			if named && unix.Stat(base+"/"+name, &st) == nil && st.Ino == inode {
				return to
			}
		}
	}
	b, _ := os.ReadFile(fs.path(pid, "maps"))
	for line := range strings.Lines(string(b)) {
		// address perms offset dev inode pathname (proc_pid_maps(5))
		f := strings.Fields(line)
		if len(f) < 6 {
			continue
		}
		if inode, named := inodes[path.Base(f[len(f)-1])]; named && f[4] == strconv.FormatUint(inode, 10) {
			return f[len(f)-1]
		}
	}
	return ""
}
