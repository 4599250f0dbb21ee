// Package proc reads what the kernel says about processes, memory and GPUs in /proc
// (proc(5)). It decides how that text is understood; nothing is cached.
//
// It must not end, signal or wait for anything, and does not know which process belongs to
// what.
package proc

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// FS is where a proc file system is mounted.
type FS string

// Here is that of this machine, or of this container.
const Here FS = "/proc"

func (fs FS) path(pid int, name string) string {
	return string(fs) + "/" + strconv.Itoa(pid) + "/" + name
}

// Stat is one line of the kernel's process table.
type Stat struct {
	PID, PPID, Group, Session int
	Ticks                     uint64 // start time since boot, in clock ticks: tells a PID from its reuse
	State                     byte   // R, S, D, Z, T, ...
	Spent                     uint64 // processor time of its threads, in clock ticks
	Reaped                    uint64 // that of its children that have ended, and all below them
}

// Born is the part that never changes, and identifies a process.
func (s Stat) Born() Stat { return Stat{PID: s.PID, Ticks: s.Ticks} }

// Dead reports a zombie: it cannot be ended, only reaped.
func (s Stat) Dead() bool { return s.State == 'Z' || s.State == 'X' }

// Stopped reports whether a signal has stopped it.
func (s Stat) Stopped() bool { return s.State == 'T' }

// ParseStat reads fields 1-6, 14-17 and 22 of /proc/PID/stat. The command in field 2 may contain
// blanks and parentheses, hence the search from the end.
func ParseStat(b []byte) (s Stat, ok bool) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 1 || end < open {
		return Stat{}, false
	}
	rest := bytes.Fields(b[end+1:])
	if len(rest) < 20 || len(rest[0]) != 1 {
		return Stat{}, false
	}
	var errs [7]error
	s.PID, errs[0] = strconv.Atoi(string(bytes.TrimSpace(b[:open])))
	s.State = rest[0][0]
	s.PPID, errs[1] = strconv.Atoi(string(rest[1]))
	s.Group, errs[2] = strconv.Atoi(string(rest[2]))
	s.Session, errs[3] = strconv.Atoi(string(rest[3]))
	s.Ticks, errs[4] = strconv.ParseUint(string(rest[19]), 10, 64)
	user, err := strconv.ParseUint(string(rest[11]), 10, 64)
	system, err2 := strconv.ParseUint(string(rest[12]), 10, 64)
	s.Spent, errs[5], errs[6] = user+system, err, err2
	user, _ = strconv.ParseUint(string(rest[13]), 10, 64) // the kernel has these two with a sign
	system, _ = strconv.ParseUint(string(rest[14]), 10, 64)
	s.Reaped = user + system
	return s, errs == [7]error{}
}

// Stat is false for a process that does not exist.
func (fs FS) Stat(pid int) (Stat, bool) { return readStat(fs.path(pid, "stat")) }

func readStat(path string) (Stat, bool) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Stat{}, false
	}
	defer unix.Close(fd)
	var buf [1024]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return Stat{}, false
	}
	return ParseStat(buf[:n])
}

// PIDs lists the processes.
func (fs FS) PIDs() (pids []int) {
	d, err := os.Open(string(fs))
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// All reads the whole table. It is no snapshot: a process whose parent dies meanwhile may
// seem to be nobody's child, so callers look again. steady is false if a listed process was
// gone before it was read: it may have left a child that is not in the list.
func (fs FS) All() (all []Stat, steady bool) {
	pids := fs.PIDs()
	all, steady = make([]Stat, 0, len(pids)), len(pids) > 0
	for _, pid := range pids {
		if s, ok := fs.Stat(pid); ok {
			all = append(all, s)
		} else {
			steady = false
		}
	}
	return all, steady
}

// Below gives the descendants of the roots, dead ones too, without the roots. A subtree
// whose top is in except is left out.
func Below(all []Stat, roots []int, except map[int]bool) (found []Stat) {
	children := map[int][]Stat{}
	for _, s := range all {
		children[s.PPID] = append(children[s.PPID], s)
	}
	seen := map[int]bool{}
	for roots := append([]int(nil), roots...); len(roots) > 0; {
		top := roots[len(roots)-1]
		roots = roots[:len(roots)-1]
		if seen[top] {
			continue // a reused PID can close a loop, as this is no snapshot
		}
		seen[top] = true
		for _, s := range children[top] {
			if !except[s.PID] {
				found, roots = append(found, s), append(roots, s.PID)
			}
		}
	}
	return found
}

// Stuck gives the state of the thread that keeps a process from ending, and the kernel
// function in which it waits, if that may be read. Both are empty for a dead process.
func (fs FS) Stuck(pid int) (state, at string) {
	tasks, _ := filepath.Glob(fs.path(pid, "task/*"))
	for _, task := range tasks {
		s, ok := readStat(task + "/stat")
		if !ok || s.Dead() || state == "D" {
			continue
		}
		state, at = string(s.State), ""
		if b, err := os.ReadFile(task + "/wchan"); err == nil && string(b) != "0" {
			at = string(b)
		}
	}
	return state, at
}
