package proc

import (
	"os"
	"strconv"
	"strings"
)

// LockHolder is the process that holds the lock of a file for which another waits; 0: it is not told of, as one on
// another machine.
func (fs FS) LockHolder(waits int, inode uint64) (pid int) {
	b, _ := os.ReadFile(string(fs) + "/locks")
	return lockHolder(string(b), waits, inode)
}

// lockHolder reads proc_locks(5): below a lock stand those that wait for it, with its number and an arrow. Device and
// inode are the sixth field.
func lockHolder(text string, waits int, inode uint64) int {
	holder, of := 0, ""
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		arrow := len(f) > 1 && f[1] == "->"
		if arrow {
			f = append(f[:1], f[2:]...)
		}
		if len(f) < 6 {
			continue
		}
		pid, _ := strconv.Atoi(f[4])
		switch {
		case !arrow:
			holder, of = pid, f[0]
		case f[0] == of && pid == waits && strings.HasSuffix(f[5], ":"+strconv.FormatUint(inode, 10)):
			return holder
		}
	}
	return 0
}

// ExitCode is what a dead process has left to its parent, as wait(2) has it. It is the last field of proc_pid_stat(5)
// that root alone is told.
func (fs FS) ExitCode(pid int) (status int, known bool) {
	b, _ := os.ReadFile(fs.path(pid, "stat"))
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:])) // from the third field on
	if len(f) < 52-2 {
		return 0, false
	}
	status, err := strconv.Atoi(f[52-3])
	return status, err == nil
}
