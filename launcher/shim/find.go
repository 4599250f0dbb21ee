package shim

import (
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher/proc"
)

// SignalShim signals the shim of dir directly, for its socket may have been removed with its
// folder, or not answer because the shim was stopped: sig, then CONT. TERM makes a shim end
// its attempt, with its own grace. It reports whether a shim was found.
func SignalShim(dir string, sig syscall.Signal) bool {
	for _, pid := range Living(filepath.Dir(dir))[filepath.Base(dir)] {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		defer unix.Close(fd)
		if shimDir(pid) != dir {
			continue // the PID was reused meanwhile
		}
		_ = unix.PidfdSendSignal(fd, sig, nil, 0)
		_ = unix.PidfdSendSignal(fd, unix.SIGCONT, nil, 0)
		return true
	}
	return false
}

// Suspended reports whether a signal has stopped a rank that runs according to the journal.
func Suspended(told []Event) bool {
	running := map[int]proc.Stat{}
	for _, ev := range told {
		switch ev.Kind {
		case Started:
			running[ev.Rank] = proc.Stat{PID: ev.PID, Ticks: ev.Ticks}
		case Exited:
			delete(running, ev.Rank)
		}
	}
	for _, was := range running {
		if now, there := proc.Here.Stat(was.PID); there && now.Born() == was &&
			(now.Stopped() || proc.Here.StopPending(was.PID)) {
			return true
		}
	}
	return false
}

// Living finds by the process table which folders below parent have shims, even if the
// folders are gone.
func Living(parent string) map[string][]int {
	found := map[string][]int{}
	procs, _ := proc.Here.All()
	for _, p := range procs {
		if dir := shimDir(p.PID); !p.Dead() && dir != "" && filepath.Dir(dir) == parent {
			found[filepath.Base(dir)] = append(found[filepath.Base(dir)], p.PID)
		}
	}
	return found
}

// shimDir is the folder in a shim's command line. Another mount namespace has another /run:
// its shims are not ours.
func shimDir(pid int) string {
	argv := proc.Here.Args(pid)
	if len(argv) != 3 || argv[0] != "sparkrun" || argv[1] != "shim" || !proc.Here.SameMounts(pid) {
		return ""
	}
	return argv[2]
}
