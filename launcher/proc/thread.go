package proc

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Thread is one of a process's threads.
type Thread struct {
	TID   int
	State byte
	// CPU and Queued are for how long it has run, and waited for a processor while it could have run; Ran is how often
	// it was given one (Documentation/scheduler/sched-stats.rst).
	CPU, Queued time.Duration
	Ran         uint64
}

// Threads lists at most so many threads of a process, the main one first, as the kernel does.
func (fs FS) Threads(pid, most int) (all []Thread) {
	base := fs.path(pid, "task")
	d, err := os.Open(base)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(most)
	for _, name := range names {
		task := base + "/" + name
		tid, err := strconv.Atoi(name)
		s, ok := readStat(task + "/stat")
		b, _ := os.ReadFile(task + "/schedstat")
		f := strings.Fields(string(b))
		if err != nil || !ok || len(f) < 3 {
			continue
		}
		t := Thread{TID: tid, State: s.State}
		cpu, _ := strconv.ParseInt(f[0], 10, 64)
		queued, _ := strconv.ParseInt(f[1], 10, 64)
		t.CPU, t.Queued = time.Duration(cpu), time.Duration(queued)
		t.Ran, _ = strconv.ParseUint(f[2], 10, 64)
		all = append(all, t)
	}
	return all
}

// WaitsIn is the function of the kernel in which a thread sleeps; empty: it runs, or that may not be read.
func (fs FS) WaitsIn(pid, tid int) string {
	b, err := os.ReadFile(fs.path(pid, "task/"+strconv.Itoa(tid)+"/wchan"))
	if err != nil || string(b) == "0" {
		return ""
	}
	return string(b)
}

// Call is the system call that a thread is in, with its arguments; ok is false if it is in none, or that may not be
// read (proc_pid_syscall(5)).
func (fs FS) Call(pid, tid int) (number int, args [6]uint64, ok bool) {
	b, _ := os.ReadFile(fs.path(pid, "task/"+strconv.Itoa(tid)+"/syscall"))
	f := strings.Fields(string(b))
	if len(f) < 7 {
		return 0, args, false
	}
	number, err := strconv.Atoi(f[0])
	for i := range args {
		args[i], _ = strconv.ParseUint(strings.TrimPrefix(f[i+1], "0x"), 16, 64)
	}
	return number, args, err == nil && number >= 0
}

// WaitsForOwn reports whether a thread waits, without an end in time, for a word of memory that only its own process
// changes (futex(2)).
func (fs FS) WaitsForOwn(pid, tid int) bool {
	const private, command, wait, waitBitset = 128, 0x7f, 0, 9
	n, args, ok := fs.Call(pid, tid)
	op := args[1] & command
	return ok && n == unix.SYS_FUTEX && args[1]&private != 0 && (op == wait || op == waitBitset) && args[3] == 0
}

// File is what a descriptor of a process is open to: "socket:[4711]", "/dev/pts/0".
func (fs FS) File(pid, fd int) string {
	to, _ := os.Readlink(fs.path(pid, "fd/"+strconv.Itoa(fd)))
	return to
}

// Readers are the processes that may read the pipe to which a descriptor of one writes.
func (fs FS) Readers(pid, fd int) (pids []int) {
	pipe := fs.File(pid, fd)
	if !strings.HasPrefix(pipe, "pipe:") {
		return nil
	}
	for _, reader := range fs.PIDs() {
		fds, _ := os.ReadDir(fs.path(reader, "fd"))
		if slices.ContainsFunc(fds, func(d os.DirEntry) bool {
			at := fs.path(reader, "fd/"+d.Name())
			to, _ := os.Readlink(at)
			info, err := os.Lstat(at) // what the owner may do is how it is open (proc_pid_fd(5))
			return to == pipe && err == nil && info.Mode()&0o400 != 0
		}) {
			pids = append(pids, reader)
		}
	}
	return pids
}

// Sockets are the inodes of a process's sockets.
func (fs FS) Sockets(pid int) (inodes []uint64) {
	fs.Opens(pid, func(file string) bool {
		if n, ok := SocketOf(file); ok {
			inodes = append(inodes, n)
		}
		return false
	})
	return inodes
}

// SocketOf is the inode of what File tells of a socket.
func SocketOf(file string) (inode uint64, ok bool) {
	text, ok := strings.CutPrefix(file, "socket:[")
	n, err := strconv.ParseUint(strings.TrimSuffix(text, "]"), 10, 64)
	return n, ok && err == nil
}

// ticks is USER_HZ, in which proc_pid_stat(5) counts: 100 on every architecture that Go runs on.
const ticks = 100

// Work is what a process has used.
type Work struct {
	CPU    time.Duration // of all its threads, the ended ones too
	Reaped time.Duration // of its children that have ended, and all below them
	Faults uint64        // pages that had to be read
}

// Work reads it; false for a process that does not exist.
func (fs FS) Work(pid int) (Work, bool) {
	b, err := os.ReadFile(fs.path(pid, "stat"))
	stat, ok := ParseStat(b)
	if err != nil || !ok {
		return Work{}, false
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]) // from the third field on
	faults, _ := strconv.ParseUint(string(f[12-3]), 10, 64)
	of := func(n uint64) time.Duration { return time.Duration(n) * (time.Second / ticks) } //nolint:gosec // centuries
	return Work{CPU: of(stat.Spent), Reaped: of(stat.Reaped), Faults: faults}, true
}

// Swapped is how much of a process's memory is in swap, in bytes.
func (fs FS) Swapped(pid int) int64 {
	b, _ := os.ReadFile(fs.path(pid, "status"))
	text, _, _ := strings.Cut(statusField(string(b), "VmSwap"), " ")
	kib, _ := strconv.ParseInt(text, 10, 64)
	return kib << 10
}

// Tracer is the process that traces another; 0: none does.
func (fs FS) Tracer(pid int) int {
	b, _ := os.ReadFile(fs.path(pid, "status"))
	n, _ := strconv.Atoi(statusField(string(b), "TracerPid"))
	return n
}

// Handles reports whether a process has a handler for one of these signals.
func (fs FS) Handles(pid int, signals ...unix.Signal) bool {
	b, _ := os.ReadFile(fs.path(pid, "status"))
	mask, _ := strconv.ParseUint(statusField(string(b), "SigCgt"), 16, 64)
	for _, s := range signals {
		if mask&(1<<(s-1)) != 0 {
			return true
		}
	}
	return false
}

// InnerPID is a process's id in its own namespace.
func (fs FS) InnerPID(pid int) int {
	b, _ := os.ReadFile(fs.path(pid, "status"))
	if f := strings.Fields(statusField(string(b), "NSpid")); len(f) > 0 {
		if n, err := strconv.Atoi(f[len(f)-1]); err == nil {
			return n
		}
	}
	return pid
}
