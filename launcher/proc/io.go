package proc

import (
	"os"
	"path"
	"strconv"
	"strings"
)

// IO is what a process has moved, in bytes: from and to disks, and by reading and writing whatever it was.
type IO struct {
	Read, Written     int64
	CharsIn, CharsOut int64
}

// IO reads it; nothing where it may not be read.
func (fs FS) IO(pid int) (io IO) {
	file := fs.path(pid, "io") // proc_pid_io(5)
	of := func(name string) int64 { return count(file, func(n string) bool { return n == name+":" }) }
	return IO{Read: of("read_bytes"), Written: of("write_bytes"), CharsIn: of("rchar"), CharsOut: of("wchar")}
}

// Positions are where a process is in its open files, by their names.
func (fs FS) Positions(pid int) map[string]int64 {
	at := map[string]int64{}
	fds, _ := os.ReadDir(fs.path(pid, "fd"))
	for _, fd := range fds {
		to, err := os.Readlink(fs.path(pid, "fd/"+fd.Name()))
		if err != nil || !path.IsAbs(to) || strings.HasPrefix(to, "/dev/") && !strings.HasPrefix(to, "/dev/shm/") {
			continue
		}
		b, _ := os.ReadFile(fs.path(pid, "fdinfo/"+fd.Name()))
		n, _ := strconv.ParseInt(statusField(string(b), "pos"), 10, 64)
		at[to] += n
	}
	return at
}
