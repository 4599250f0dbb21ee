package shim

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// proc is one line of the kernel's process table, from /proc/PID/stat (proc(5)).
type proc struct {
	pid, ppid, pgrp, session int
	ticks                    uint64 // start time since boot, in clock ticks
	dead                     bool   // zombie: nothing to end, only to reap
	stopped                  bool   // by a signal
}

// born is what of a process never changes and never comes again.
func (p proc) born() proc { return proc{pid: p.pid, ticks: p.ticks} }

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
	p.stopped = rest[0][0] == 'T'
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
// dies meanwhile may seem to belong to nobody, so callers look again. steady
// is false when one that was listed had gone before it was read: it may have
// left a child that is not in the list.
func processes() (procs []proc, steady bool) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, false
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	procs = make([]proc, 0, len(names))
	steady = true
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
		} else {
			steady = false
		}
	}
	return procs, steady
}

// descendants are all living ones of this process, without the subtrees of
// those in except.
func descendants(except map[int]bool) []proc {
	procs, _ := processes()
	return below(procs, []int{os.Getpid()}, except)
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
// environment. known is false when it could not be told at this moment: the
// process is gone, or between the two halves of an exec, where it has neither
// environment nor command line (as a kernel thread has none ever).
func marked(p proc, mark string) (yes, known bool) {
	base := "/proc/" + strconv.Itoa(p.pid)
	b, err := os.ReadFile(base + "/environ")
	if err != nil {
		return false, errors.Is(err, fs.ErrPermission)
	}
	for v := range bytes.SplitSeq(b, []byte{0}) {
		if string(v) == mark {
			return true, true
		}
	}
	if len(b) == 0 && p.pid != kthreadd && p.ppid != kthreadd {
		b, err = os.ReadFile(base + "/cmdline")
		return false, err == nil && len(b) > 0
	}
	return false, true
}

// kthreadd is the parent of all kernel threads.
const kthreadd = 2

func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(bytes.TrimSpace(b))
}
