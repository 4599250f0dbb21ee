package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Name is the name that the kernel keeps of a process: 15 bytes, which the process chooses.
func (fs FS) Name(pid int) string {
	b, _ := os.ReadFile(fs.path(pid, "comm"))
	return strings.TrimSuffix(string(b), "\n")
}

// Args is a process's command line; nil if it has none, or is gone.
func (fs FS) Args(pid int) []string {
	b, err := os.ReadFile(fs.path(pid, "cmdline"))
	if err != nil || len(b) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
}

// Env is a variable's value in a process's initial environment, which its parent has
// chosen.
func (fs FS) Env(pid int, name string) (value string, set bool) {
	b, _ := os.ReadFile(fs.path(pid, "environ"))
	for v := range bytes.SplitSeq(b, []byte{0}) {
		if value, found := bytes.CutPrefix(v, []byte(name+"=")); found {
			return string(value), true
		}
	}
	return "", false
}

// kthreadd is the parent of all kernel threads.
const kthreadd = 2

// HasEnv reports whether a process began with NAME=value in its environment. known is false
// if that cannot be told at this moment: the process is gone, or in the middle of an exec,
// where it has neither environment nor command line (as a kernel thread never has).
func (fs FS) HasEnv(s Stat, entry string) (yes, known bool) {
	b, err := os.ReadFile(fs.path(s.PID, "environ"))
	if err != nil {
		return false, errors.Is(err, os.ErrPermission)
	}
	for v := range bytes.SplitSeq(b, []byte{0}) {
		if string(v) == entry {
			return true, true
		}
	}
	if len(b) == 0 && s.PID != kthreadd && s.PPID != kthreadd {
		return false, fs.Args(s.PID) != nil
	}
	return false, true
}

// Opens reports whether a process has an open file that is wanted, by the links of its
// descriptors. If these may not be read there is none.
func (fs FS) Opens(pid int, wanted func(file string) bool) bool {
	base := fs.path(pid, "fd")
	d, err := os.Open(base)
	if err != nil {
		return false
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	for _, name := range names {
		if to, err := os.Readlink(base + "/" + name); err == nil && wanted(to) {
			return true
		}
	}
	return false
}

// OpenFiles are how many descriptors a process has, how many of them are sockets, and how many it may have; 0: that may not
// be read, or there is no limit.
func (fs FS) OpenFiles(pid int) (open, sockets, limit int) {
	fs.Opens(pid, func(file string) bool {
		open++
		if strings.HasPrefix(file, "socket:") {
			sockets++
		}
		return false
	})
	b, _ := os.ReadFile(fs.path(pid, "limits"))
	_, rest, _ := strings.Cut(string(b), "\nMax open files ") // the soft one, the hard one, their unit
	soft, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	limit, _ = strconv.Atoi(soft)
	return open, sockets, limit
}

// Resident is the memory of a process that the kernel cannot drop: anonymous and shared, not pages of files.
func (fs FS) Resident(pid int) (bytes int64) {
	b, _ := os.ReadFile(fs.path(pid, "status"))
	for _, name := range []string{"RssAnon", "RssShmem"} {
		text, _, _ := strings.Cut(statusField(string(b), name), " ")
		kib, _ := strconv.ParseInt(text, 10, 64)
		bytes += kib << 10
	}
	return bytes
}

// StopPending reports whether SIGSTOP was sent to a process that has not stopped yet, as on
// a busy machine.
func (fs FS) StopPending(pid int) bool {
	b, err := os.ReadFile(fs.path(pid, "status"))
	return err == nil && stopPending(string(b))
}

// stopPending reads the signals that are pending for the whole process: a mask in hex.
func stopPending(status string) bool {
	mask, err := strconv.ParseUint(statusField(status, "ShdPnd"), 16, 64)
	return err == nil && mask&(1<<(unix.SIGSTOP-1)) != 0
}

func statusField(status, name string) string {
	_, rest, _ := strings.Cut("\n"+status, "\n"+name+":")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}

// Mapped are the files that a process has in its memory, each once (proc_pid_maps(5)).
func (fs FS) Mapped(pid int) (files []string) {
	b, _ := os.ReadFile(fs.path(pid, "maps"))
	last := ""
	for line := range strings.Lines(string(b)) {
		if i := strings.IndexByte(line, '/'); i > 0 && line[i:] != last {
			last = line[i:]
			if file := strings.TrimSuffix(last, "\n"); !slices.Contains(files, file) {
				files = append(files, file)
			}
		}
	}
	return files
}

// Mount is the file system of a process's file: where it is mounted, and its type (proc_pid_mountinfo(5)).
func (fs FS) Mount(pid int, file string) (at, kind string) {
	b, _ := os.ReadFile(fs.path(pid, "mountinfo"))
	for line := range strings.Lines(string(b)) {
		before, after, _ := strings.Cut(line, " - ")
		f, of := strings.Fields(before), strings.Fields(after)
		if len(f) < 5 || len(of) == 0 || len(f[4]) < len(at) || f[4] != "/" && file != f[4] && !strings.HasPrefix(file, f[4]+"/") {
			continue
		}
		at, kind = f[4], of[0] // the last one covers those before
	}
	return at, kind
}

// SameMounts reports whether a process is in this process's mount namespace.
func (fs FS) SameMounts(pid int) bool {
	theirs, err := os.Readlink(fs.path(pid, "ns/mnt"))
	ours, _ := os.Readlink(string(fs) + "/self/ns/mnt")
	return err == nil && theirs == ours
}

// Listener is a process that listens on a TCP port. A process that has only bound the port
// is not found, nor one whose descriptors may not be read.
func (fs FS) Listener(port int) (pid int, found bool) {
	sockets := map[string]bool{}
	for _, table := range []string{"tcp", "tcp6"} {
		b, _ := os.ReadFile(string(fs) + "/net/" + table)
		for _, inode := range Listening(string(b), port) {
			sockets["socket:["+inode+"]"] = true
		}
	}
	if len(sockets) == 0 {
		return 0, false
	}
	for _, pid := range fs.PIDs() {
		if fs.Opens(pid, func(file string) bool { return sockets[file] }) {
			return pid, true
		}
	}
	return 0, false
}

// Listening gives the inodes of the sockets in /proc/net/tcp that listen on a port.
func Listening(table string, port int) (inodes []string) {
	end := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(table) {
		// sl local_address rem_address st ... inode, the tenth (proc_pid_net(5)); 0A is TCP_LISTEN.
		if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" && strings.HasSuffix(f[1], end) {
			inodes = append(inodes, f[9])
		}
	}
	return inodes
}

// OnlyChild is the only child of a process; 0: it has none or several, or the kernel does
// not tell (CONFIG_PROC_CHILDREN).
func (fs FS) OnlyChild(pid int) (child int) {
	tasks, _ := filepath.Glob(fs.path(pid, "task/*/children")) // a fork's parent is a thread (proc(5))
	for _, of := range tasks {
		text, _ := os.ReadFile(of)
		for _, f := range strings.Fields(string(text)) {
			n, err := strconv.Atoi(f)
			if err != nil || child != 0 {
				return 0
			}
			child = n
		}
	}
	return child
}

// Cgroup gives this process's group in the tree of a v1 controller, or in the v2 tree for an
// empty controller; empty if it is in none. cgroups(7) has the three fields. Not by
// thread-self: a process that has looked into /proc/PID/task/TID keeps whoever reaps it
// busy for 3 ms (proc_invalidate_siblings_dcache, fs/proc/inode.c, 6.18).
func (fs FS) Cgroup(controller string) (string, error) {
	b, err := os.ReadFile(string(fs) + "/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) == 3 && (f[0] == "0") == (controller == "") && slices.Contains(strings.Split(f[1], ","), controller) {
			return f[2], nil
		}
	}
	return "", nil
}

// GPUs counts the GPUs of NVIDIA's driver: it has a folder for each, named by its PCI
// address.
func (fs FS) GPUs() int {
	found, _ := filepath.Glob(string(fs) + "/driver/nvidia/gpus/*") // the pattern is valid
	return len(found)
}
