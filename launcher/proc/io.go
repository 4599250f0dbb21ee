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
	for name, n := range numbers(fs.path(pid, "io")) { // proc_pid_io(5)
		switch name {
		case "read_bytes:":
			io.Read = n
		case "write_bytes:":
			io.Written = n
		case "rchar:":
			io.CharsIn = n
		case "wchar:":
			io.CharsOut = n
		}
	}
	return io
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
