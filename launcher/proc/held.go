package proc

import (
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
}

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
			h.walk(root, f[2], "cpu.max", "throttled_usec", time.Microsecond, "memory.max", "memory.current")
			if text, err := os.ReadFile(path.Join(root, f[2], "memory.pressure")); err == nil {
				if p, err := ParsePressure(string(text)); err == nil {
					h.Stalled = &p
				}
			}
			continue
		}
		for controller := range strings.SplitSeq(f[1], ",") {
			if controller == "cpu" || controller == "memory" {
				h.walk(string(g)+"/"+controller, f[2], "cpu.cfs_quota_us", "throttled_time", time.Nanosecond,
					"memory.limit_in_bytes", "memory.usage_in_bytes")
			}
		}
	}
	return h
}

// walk looks at a group and those above it.
func (h *Held) walk(root, group, quota, throttled string, unit time.Duration, limit, used string) {
	for at := path.Clean("/" + group); ; at = path.Dir(at) {
		dir := path.Join(root, at)
		stat, _ := os.ReadFile(dir + "/cpu.stat")
		for line := range strings.Lines(string(stat)) {
			name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
			if n, err := strconv.ParseInt(text, 10, 64); err == nil && name == throttled &&
				time.Duration(n)*unit > h.Throttled {
				b, _ := os.ReadFile(path.Join(dir, quota))
				h.Throttled, h.Quota = time.Duration(n)*unit, quota+" "+strings.TrimSpace(string(b))+" of "+at
			}
		}
		most, has := number(path.Join(dir, limit)), number(path.Join(dir, used))
		// v1 says that there is no limit by a number that no machine has.
		if most > 0 && most < 1<<56 && (h.Limit == 0 || most-has < h.Limit-h.Used) {
			h.Limit, h.Used = most, has
		}
		if at == "/" {
			return
		}
	}
}

func number(file string) int64 {
	b, _ := os.ReadFile(file)
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n
}
