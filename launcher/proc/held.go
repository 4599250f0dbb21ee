package proc

import (
	"iter"
	"os"
	"path"
	"strconv"
	"strings"
	"time"
)

// Groups are where the trees of cgroups are mounted.
type Groups string

// GroupsHere are this machine's.
const GroupsHere Groups = "/sys/fs/cgroup"

// Held is what the groups of a process, up to the root, hold it back by.
type Held struct {
	Path      string
	Throttled time.Duration // how long its quota of processor time was used up; of the group where that is longest
	Quota     string        // of that group, as it was written
	Stalled   *Pressure     // of the v2 tree; nil: its kernel does not say
	Limit     int64         // of memory: the one that is nearest to being reached; 0: there is none
	Used      int64         // of Limit
	LimitFile string        // the file that has Limit
	Refaults  int64         // of that group: pages that were taken from it and, a short while later, read again
	Killed    int64         // processes of that group that were killed at its limit
}

// files are the names of what a version of cgroups tells.
type files struct {
	quota, throttled string
	unit             time.Duration // of throttled
	limits           []string
	used, refaults   string
	events           string // where oom_kill is counted
}

var (
	v1 = files{"cpu.cfs_quota_us", "throttled_time", time.Nanosecond, []string{"memory.limit_in_bytes"},
		"memory.usage_in_bytes", "total_workingset_refault_", "memory.oom_control"}
	v2 = files{"cpu.max", "throttled_usec", time.Microsecond, []string{"memory.max", "memory.high"},
		"memory.current", "workingset_refault_", "memory.events"}
)

// Held reads it. What cannot be read is left out.
func (fs FS) Held(g Groups, pid int) (h Held) {
	b, _ := os.ReadFile(fs.path(pid, "cgroup"))
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3) // cgroups(7)
		if len(f) != 3 {
			continue
		}
		if f[0] == "0" {
			root := string(g)
			if _, err := os.Stat(root + "/unified"); err == nil {
				root += "/unified"
			}
			h.Path = f[2]
			h.walk(root, f[2], v2)
			if text, err := os.ReadFile(path.Join(root, f[2], "memory.pressure")); err == nil {
				if p, err := ParsePressure(string(text)); err == nil {
					h.Stalled = &p
				}
			}
			continue
		}
		for controller := range strings.SplitSeq(f[1], ",") {
			if controller == "cpu" || controller == "memory" {
				h.walk(string(g)+"/"+controller, f[2], v1)
			}
		}
	}
	if dir := path.Dir(h.LimitFile); h.Limit > 0 {
		of := v2
		if path.Base(h.LimitFile) == v1.limits[0] {
			of = v1
		}
		h.Refaults = count(dir+"/memory.stat", func(name string) bool { return strings.HasPrefix(name, of.refaults) })
		h.Killed = count(path.Join(dir, of.events), func(name string) bool { return name == "oom_kill" })
	}
	return h
}

// walk looks at a group and those above it.
func (h *Held) walk(root, group string, of files) {
	for at := path.Clean("/" + group); ; at = path.Dir(at) {
		dir := path.Join(root, at)
		n := count(dir+"/cpu.stat", func(name string) bool { return name == of.throttled })
		if t := time.Duration(n) * of.unit; t > h.Throttled {
			b, _ := os.ReadFile(path.Join(dir, of.quota))
			h.Throttled, h.Quota = t, of.quota+" "+strings.TrimSpace(string(b))+" of "+at
		}
		for _, limit := range of.limits {
			most, has := number(path.Join(dir, limit)), number(path.Join(dir, of.used))
			// v1 says that there is no limit by a number that no machine has.
			if most > 0 && most < 1<<56 && (h.Limit == 0 || most-has < h.Limit-h.Used) {
				h.Limit, h.Used, h.LimitFile = most, has, path.Join(dir, limit)
			}
		}
		if at == "/" {
			return
		}
	}
}

// numbers are the lines "NAME N" of a file.
func numbers(file string) iter.Seq2[string, int64] {
	return func(yield func(string, int64) bool) {
		b, _ := os.ReadFile(file)
		for line := range strings.Lines(string(b)) {
			name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
			if n, err := strconv.ParseInt(text, 10, 64); err == nil && !yield(name, n) {
				return
			}
		}
	}
}

// count sums some of them.
func count(file string, counts func(name string) bool) (sum int64) {
	for name, n := range numbers(file) {
		if counts(name) {
			sum += n
		}
	}
	return sum
}

func number(file string) int64 {
	b, _ := os.ReadFile(file)
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n
}
