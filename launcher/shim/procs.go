package shim

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// proc is one line of the kernel's process table, from /proc/PID/stat (proc(5)).
type proc struct {
	pid, ppid, pgrp, session int
	ticks                    uint64 // start time since boot, in clock ticks
	dead                     bool   // zombie: nothing to end, only to reap
}

// parseStat reads fields 1-6 and 22. The command in field 2 may hold blanks
// and parentheses, hence the search from the end.
func parseStat(b []byte) (proc, bool) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 1 || end < open {
		return proc{}, false
	}
	rest := bytes.Fields(b[end+1:])
	if len(rest) < 20 || len(rest[0]) != 1 {
		return proc{}, false
	}
	var p proc
	var errs [5]error
	p.pid, errs[0] = strconv.Atoi(string(bytes.TrimSpace(b[:open])))
	p.dead = rest[0][0] == 'Z' || rest[0][0] == 'X'
	p.ppid, errs[1] = strconv.Atoi(string(rest[1]))
	p.pgrp, errs[2] = strconv.Atoi(string(rest[2]))
	p.session, errs[3] = strconv.Atoi(string(rest[3]))
	p.ticks, errs[4] = strconv.ParseUint(string(rest[19]), 10, 64)
	return p, errs == [5]error{}
}

func readProc(pid int) (proc, bool) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return proc{}, false
	}
	defer unix.Close(fd)
	var buf [1024]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return proc{}, false
	}
	return parseStat(buf[:n])
}

// processes reads the whole table. It is no snapshot: a process whose parent
// dies meanwhile may seem to belong to nobody, so callers look again.
func processes() []proc {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	procs := make([]proc, 0, len(names))
	for _, name := range names {
		if name[0] < '1' || name[0] > '9' {
			continue
		}
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, ok := readProc(pid); ok {
			procs = append(procs, p)
		}
	}
	return procs
}

// below gives the living descendants of the roots, without the roots. A
// subtree whose top is in except is left out whole.
func below(procs []proc, roots []int, except map[int]bool) []proc {
	children := map[int][]proc{}
	for _, p := range procs {
		children[p.ppid] = append(children[p.ppid], p)
	}
	var found []proc
	seen := map[int]bool{}
	for len(roots) > 0 {
		top := roots[len(roots)-1]
		roots = roots[:len(roots)-1]
		if seen[top] {
			continue // a reused PID can close a ring in what is no snapshot
		}
		seen[top] = true
		for _, p := range children[top] {
			if except[p.pid] {
				continue
			}
			if !p.dead {
				found = append(found, p)
			}
			roots = append(roots, p.pid)
		}
	}
	return found
}

// holds tells whether a process has the pipe open.
func holds(pid int, pipe string) bool {
	base := "/proc/" + strconv.Itoa(pid) + "/fd"
	d, err := os.Open(base)
	if err != nil {
		return false
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	for _, name := range names {
		if to, err := os.Readlink(base + "/" + name); err == nil && to == pipe {
			return true
		}
	}
	return false
}

// marked tells whether a process was born with mark, a NAME=value, in its
// environment.
func marked(pid int, mark string) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	for v := range bytes.SplitSeq(b, []byte{0}) {
		if string(v) == mark {
			return true
		}
	}
	return false
}

func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(bytes.TrimSpace(b))
}
