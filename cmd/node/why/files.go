package why

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// forFile are parts of the names of functions of the kernel in which a thread waits for a file's lock.
var forFile = []string{"locks_lock", "lock_inode_wait", "fcntl_setlk", "lock_file_wait", "nlmclnt_block"}

// fileLock is the lock for which a thread waits, and who holds it; nil: it waits for none.
func (w *Why) fileLock(pid, tid int, before map[int]proc.Work) *wire.FileLock {
	fs := w.cfg.Proc
	at := fs.WaitsIn(pid, tid)
	if !slices.ContainsFunc(forFile, func(part string) bool { return strings.Contains(at, part) }) {
		return nil
	}
	_, args, ok := fs.Call(pid, tid)
	if !ok || args[0] >= 1<<20 {
		return nil
	}
	var st unix.Stat_t
	lock := &wire.FileLock{File: fs.File(pid, int(args[0]))} //nolint:gosec // it is bounded
	_ = unix.Stat(fmt.Sprintf("%s/%d/fd/%d", string(fs), pid, args[0]), &st)
	h := &lock.Holder
	if h.PID = fs.LockHolder(pid, st.Ino); h.PID <= 0 {
		return lock
	}
	h.Name, h.Job = path.Base(fs.Name(h.PID)), w.jobOf(h.PID)
	if is, lives := fs.Work(h.PID); lives {
		h.CPU = (is.CPU - before[h.PID].CPU).Seconds() / window.Seconds()
	} else {
		h.Name = ""
	}
	for _, t := range fs.Threads(h.PID, 1) {
		in := w.waitsFor(h.PID, t, fs.WaitsIn(h.PID, t.TID))
		lock.Works = h.CPU >= 0.005 || in == "disk" || in == "network"
	}
	return lock
}

// ofFiles are parts of the names of functions of the kernel in which a thread waits for what serves a file system: FUSE, NFS,
// SMB, Ceph.
var ofFiles = []string{"request_wait_answer", "fuse_", "rpc_wait", "nfs", "smb2_", "cifs_", "ceph_"}

// hang is the file for which a thread waits; nil: it waits for none.
func (w *Why) hang(pid, tid int, at string) *wire.FileWait {
	if !slices.ContainsFunc(ofFiles, func(part string) bool { return strings.Contains(at, part) }) {
		return nil
	}
	h := &wire.FileWait{PID: pid, Name: path.Base(w.cfg.Proc.Name(pid))}
	_, args, calls := w.cfg.Proc.Call(pid, tid)
	switch {
	case calls && args[0] < 1<<20:
		h.File = w.cfg.Proc.File(pid, int(args[0])) //nolint:gosec // it is bounded
	case !calls: // it waits for a page of a file that is in its memory
		for _, file := range w.cfg.Proc.Mapped(pid) {
			if _, kind := w.cfg.Proc.Mount(pid, file); slices.ContainsFunc(served, func(s string) bool {
				return strings.HasPrefix(kind, s)
			}) {
				h.File = file
				break
			}
		}
	}
	if path.IsAbs(h.File) {
		h.Mount, h.Type = w.cfg.Proc.Mount(pid, h.File)
	}
	return h
}

// unread reports whether a thread waits to write to a pipe that its parent alone could read, which waits for it to end.
func (w *Why) unread(pid, tid int, at string) bool {
	const byPID = 1 // P_PID of waitid(2)
	fs := w.cfg.Proc
	number, args, calls := fs.Call(pid, tid)
	if !strings.Contains(at, "pipe_write") || !calls || number != unix.SYS_WRITE && number != unix.SYS_WRITEV || args[0] >= 1<<20 {
		return false
	}
	is, _ := fs.Stat(pid)
	if !slices.Equal(fs.Readers(pid, int(args[0])), []int{is.PPID}) { //nolint:gosec // it is bounded
		return false
	}
	number, args, calls = fs.Call(is.PPID, is.PPID)
	child := uint64(fs.InnerPID(pid)) //nolint:gosec // it is none below 0
	return calls && (number == unix.SYS_WAIT4 && args[0] == child || number == unix.SYS_WAITID && args[0] == byPID && args[1] == child) &&
		!slices.ContainsFunc(fs.Threads(is.PPID, threadsMost), func(t proc.Thread) bool { // one that reads, or hands on what it has
			at := fs.WaitsIn(is.PPID, t.TID)
			return strings.Contains(at, "pipe") || strings.Contains(at, "nanosleep")
		})
}

// served begin the types of file systems that are served by a process or over a network.
var served = []string{"fuse", "nfs", "cifs", "smb", "ceph"}

// jobOf is the job whose mark a process bears, which anybody can set; empty: it has none.
func (w *Why) jobOf(pid int) launcher.JobID {
	mark, _ := w.cfg.Proc.Env(pid, "SPARKRUN_GANG")
	if job, _, _ := strings.Cut(mark, "."); launcher.IsName(job) {
		return launcher.JobID(job)
	}
	return ""
}

// dead are processes that have ended, and that nobody has waited for.
func (w *Why) dead(pids []int) (dead []int) {
	for _, pid := range pids {
		if s, ok := w.cfg.Proc.Stat(pid); ok && s.Dead() {
			dead = append(dead, pid)
		}
	}
	return dead
}

// failed are those of them, but for the rank's own, that have not ended well.
func (w *Why) failed(k *watched) (out []wire.DeadChild) {
	for _, pid := range w.dead(k.dead) {
		status, known := w.cfg.Proc.ExitCode(pid)
		if !known || status == 0 || pid == k.root || pid == k.look.PID {
			continue
		}
		end := fmt.Sprintf("exit %d", unix.WaitStatus(status).ExitStatus()) //nolint:gosec // 16 bits
		if s := unix.WaitStatus(status); s.Signaled() {                     //nolint:gosec // the same
			end = fmt.Sprintf("killed by %s (%d)", unix.SignalName(s.Signal()), s.Signal())
		}
		out = append(out, wire.DeadChild{PID: pid, Name: w.cfg.Proc.Name(pid), End: end})
	}
	return out
}

// files are about a lock and a file for which a rank waits, files of which it may open no more, and processes of its own
// that it has lost or that are locked up. A rank that works may well have a lock for which another one of its job waits.
func (e Evidence) files(host string, r wire.RankLook,
	add func(code string, sure int, text, remedy string, evidence ...string)) {
	program := fmt.Sprintf("%s (pid %d), %d threads", r.Name, r.PID, r.Count)
	if f := r.FileLock; f != nil && (f.Holder.Job != r.Job || !f.Works) {
		holder, remedy := "which another machine seems to hold", ""
		switch h := f.Holder; {
		case h.PID != 0 && h.Name == "":
			holder = fmt.Sprintf("which a process took that has ended (pid %d), and one that it started holds", h.PID)
		case h.PID != 0:
			holder = fmt.Sprintf("which %s (pid %d) holds", h.Name, h.PID)
			remedy = fmt.Sprintf("ps -fp %d   # on %s", h.PID, host)
		}
		add("file-locked", 80, fmt.Sprintf("waits for the lock of %s, %s", f.File, holder), remedy, program, e.others(r))
	}
	killed := ""
	if g := r.Group; g.Killed > 0 {
		killed = fmt.Sprintf("at its cgroup's limit of %s (%s) the kernel has killed %d processes", launcher.Size(g.Limit),
			g.LimitFile, g.Killed)
	}
	r.Host = host
	cores, known := e.lately(r)
	idles := known && max(cores, r.CPU) < 2*quiet && !e.serves(r.Job)
	if h := r.Hang; h != nil && idles {
		text, remedy := fmt.Sprintf("waits for a file that its file system does not give: %s (pid %d)", h.Name, h.PID), ""
		if h.Mount != "" {
			text = fmt.Sprintf("waits for %s, which its file system, %s at %s, does not give: %s (pid %d)", h.File, h.Type, h.Mount,
				h.Name, h.PID)
			remedy = fmt.Sprintf("timeout 5 ls %s   # on %s: what serves it does not answer", h.Mount, host)
		}
		add("file-silent", 86, text, remedy, where(r), e.others(r))
	}
	if f := r.Full; f != nil {
		add("files-full", 87, fmt.Sprintf("has %d of %d files open (%d are sockets), and can open no more, nor take connections: "+
			"%s (pid %d)", f.Open, f.Limit, f.Sockets, f.Name, f.PID),
			fmt.Sprintf("prlimit --pid %d --nofile=65536   # on %s; then launch it with --ulimit nofile=65536", f.PID, host),
			e.talksMost(r))
	}
	if r.Stuck != nil && idles {
		add("child-locked", 85, fmt.Sprintf("has a process, %s (pid %d), that is locked up: each of its threads waits, without "+
			"an end, for another thread of that process", r.Stuck.Name, r.Stuck.PID),
			fmt.Sprintf("py-spy dump --pid %d   # on %s", r.Stuck.PID, host), where(r), e.others(r),
			"fork copies a lock that a thread has, and not that thread: such a process may have to be spawned instead")
	}
	for _, d := range r.Dead[:min(len(r.Dead), 3)] {
		add("child-dead", 75, fmt.Sprintf("goes on without %s (pid %d), a process of its own, which has ended: %s", d.Name,
			d.PID, d.End), fmt.Sprintf("sparkrun logs %s --rank %d", r.Job, r.Rank), program, killed)
	}
}

// talksMost is the machine to which a rank has most of its connections, where it has many.
func (e Evidence) talksMost(r wire.RankLook) string {
	count, most := map[netip.Addr]int{}, netip.Addr{}
	for _, c := range r.Conns {
		if at := c.Remote.Addr(); !at.IsLoopback() {
			if count[at]++; count[at] > count[most] {
				most = at
			}
		}
	}
	if count[most] < connsMost/4 {
		return ""
	}
	return strings.TrimSpace(fmt.Sprintf("most of its connections are with %s %s", most, e.hostOf(most)))
}
