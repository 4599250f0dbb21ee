package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// proc is a process as this machine numbers it: the lab's hosts are PID
// namespaces below ours, so its own table shows what is on each.
type proc struct {
	pid  int
	args string
	env  []string // empty where it may not be read any more
}

// init gives the PID of a host's first process, as this machine counts.
func (l *lab) init(host string) string {
	l.t.Helper()
	b, err := os.ReadFile("/var/tmp/sparkrun-lab/" + l.name + "/hosts/" + host + "/on")
	if err != nil {
		l.t.Fatal(err)
	}
	pid, _, _ := strings.Cut(strings.TrimSpace(string(b)), " ")
	return pid
}

// table lists what lives on a host, without what has only to be waited for.
func (l *lab) table(host string) (all []proc) {
	l.t.Helper()
	init := l.init(host)
	space, err := os.Readlink("/proc/" + init + "/ns/pid")
	if err != nil {
		l.t.Fatal(err)
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		l.t.Fatal(err)
	}
	for _, d := range dirs {
		if its, err := os.Readlink(d + "/ns/pid"); err != nil || its != space {
			continue
		}
		stat, _ := os.ReadFile(d + "/stat")
		if _, rest, ok := strings.Cut(string(stat), ") "); !ok || strings.ContainsAny(rest[:1], "ZX") {
			continue
		}
		args, _ := os.ReadFile(d + "/cmdline")
		if len(args) == 0 { // it exits: its memory is gone, and it is no zombie yet
			comm, _ := os.ReadFile(d + "/comm")
			args = fmt.Appendf(nil, "[%s]", strings.TrimSpace(string(comm)))
		}
		env, _ := os.ReadFile(d + "/environ")
		p := proc{args: strings.TrimRight(strings.ReplaceAll(string(args), "\x00", " "), " "), env: strings.Split(string(env), "\x00")}
		if p.pid, err = strconv.Atoi(filepath.Base(d)); err == nil && strconv.Itoa(p.pid) != init {
			all = append(all, p)
		}
	}
	return all
}

// ours are the processes that a lab has beside ranks and what they left.
var ours = []string{"sparkrun agent", "sparkrun shim", "sparkrun launch", "sparkrun stop", "sparkrun logs", "sparkrun attach", "sparkrun ps", "[sparkrun", "baddisk"}

// living lists ranks and whatever descends from them.
func (l *lab) living(host string) []proc {
	l.t.Helper()
	return slices.DeleteFunc(l.table(host), func(p proc) bool {
		return slices.ContainsFunc(ours, func(o string) bool { return strings.Contains(p.args, o) })
	})
}

// find gives the PIDs of a host's processes with that in their command line, and
// that in their environment.
func (l *lab) find(host, args, env string) (pids []int) {
	l.t.Helper()
	for _, p := range l.table(host) {
		if strings.Contains(p.args, args) && (env == "" || slices.Contains(p.env, env)) {
			pids = append(pids, p.pid)
		}
	}
	return pids
}

// reaped waits until killed processes are reaped: their sockets and locks may go later
// than their command lines, and who comes after them needs those.
func reaped(t testing.TB, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		eventually(t, time.Minute, fmt.Sprintf("process %d is reaped", pid), func() bool { return !fileIs(fmt.Sprintf("/proc/%d", pid)) })
	}
}

// gone waits until no rank is left on any host, and tells when.
func (l *lab) gone(within time.Duration) time.Time {
	l.t.Helper()
	for began := time.Now(); ; time.Sleep(2 * time.Millisecond) {
		var left []string
		for _, h := range hosts {
			for _, p := range l.living(h) {
				left = append(left, fmt.Sprintf("%s: %s", h, p.args))
			}
		}
		if len(left) == 0 {
			return time.Now()
		}
		if time.Since(began) > within {
			l.t.Fatalf("left after %s:\n%s", within, strings.Join(left, "\n"))
		}
	}
}

// memory is what a process holds at most since it was last reset, in bytes.
func memoryPeak(t testing.TB, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if text, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			var kib int64
			if _, err := fmt.Sscan(text, &kib); err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("process %d has no VmHWM", pid)
	return 0
}

// resetMemoryPeak: proc_pid_clear_refs(5), 5 is "reset the peak".
func resetMemoryPeak(t testing.TB, pid int) {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
		t.Fatal(err)
	}
}
