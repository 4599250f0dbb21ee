package shim

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Rouse signals the shim of dir past its socket, which may have been removed
// with its folder, or have nobody behind it because the shim was stopped: sig,
// then CONT. TERM has a shim end its gang, with its own grace. It tells whether
// one was found.
func Rouse(dir string, sig syscall.Signal) bool {
	for _, pid := range Living(filepath.Dir(dir))[filepath.Base(dir)] {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		defer unix.Close(fd)
		if shimDir(pid) != dir {
			continue // the number has gone to another meanwhile
		}
		_ = unix.PidfdSendSignal(fd, sig, nil, 0)
		_ = unix.PidfdSendSignal(fd, unix.SIGCONT, nil, 0)
		return true
	}
	return false
}

// Suspended tells whether a signal has stopped a rank that the journal says runs.
func Suspended(told []Event) bool {
	running := map[int]proc{}
	for _, ev := range told {
		switch ev.Kind {
		case Started:
			running[ev.Rank] = proc{pid: ev.PID, ticks: ev.Ticks}
		case Exited:
			delete(running, ev.Rank)
		}
	}
	for _, was := range running {
		if now, there := readProc(was.pid); there && now.born() == was && (now.stopped || willStop(was.pid)) {
			return true
		}
	}
	return false
}

// willStop: SIGSTOP has been sent to it, and a busy machine has not let it get there yet.
func willStop(pid int) bool {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	return err == nil && stopPending(string(status))
}

// stopPending reads what is pending for the whole process (proc_pid_status(5), ShdPnd: a mask in hex).
func stopPending(status string) bool {
	_, rest, _ := strings.Cut(status, "\nShdPnd:")
	line, _, _ := strings.Cut(rest, "\n")
	mask, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	return err == nil && mask&(1<<(unix.SIGSTOP-1)) != 0
}

// Living finds by the process table which folders below parent have shims,
// also where the folders are gone.
func Living(parent string) map[string][]int {
	found := map[string][]int{}
	procs, _ := processes()
	for _, p := range procs {
		if dir := shimDir(p.pid); !p.dead && dir != "" && filepath.Dir(dir) == parent {
			found[filepath.Base(dir)] = append(found[filepath.Base(dir)], p.pid)
		}
	}
	return found
}

// shimDir is the folder in a shim's command line. Another mount namespace has
// another /run: its shims are not ours.
func shimDir(pid int) string {
	base := "/proc/" + strconv.Itoa(pid)
	b, err := os.ReadFile(base + "/cmdline")
	argv := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
	if err != nil || len(argv) != 3 || argv[0] != "sparkrun" || argv[1] != "shim" {
		return ""
	}
	theirs, err := os.Readlink(base + "/ns/mnt")
	if ours, _ := os.Readlink("/proc/self/ns/mnt"); err != nil || theirs != ours {
		return ""
	}
	return argv[2]
}
