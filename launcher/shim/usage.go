package shim

import (
	"bytes"
	"os"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
)

// Usage is what the living processes of one gang hold.
type Usage struct {
	Bytes int64 // anonymous and shared memory in RAM; pages shared by two count twice
	GPU   bool  // one of them has an NVIDIA GPU open
}

// Usages finds the gangs of this machine by SPARKRUN_GANG in the environment
// that a process was born with, or that its parent was. It reads the whole
// process table: a matter of milliseconds, for moments that matter.
func Usages() map[launcher.Key]Usage {
	procs, _ := processes()
	parents := map[int]int{}
	for _, p := range procs {
		parents[p.pid] = p.ppid
	}
	keys := map[int]launcher.Key{}
	for _, p := range procs {
		if key, marked := gangOf(p.pid); marked {
			keys[p.pid] = key
		}
	}
	all := map[launcher.Key]Usage{}
	for _, p := range procs {
		key, found := keys[p.pid]
		for at, steps := parents[p.pid], 0; !found && at > 1 && steps < len(procs); at, steps = parents[at], steps+1 {
			key, found = keys[at]
		}
		if !found || p.dead {
			continue
		}
		u := all[key]
		u.Bytes += residentBytes(p.pid)
		u.GPU = u.GPU || hasGPU(p.pid)
		all[key] = u
	}
	return all
}

func gangOf(pid int) (launcher.Key, bool) {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	for v := range bytes.SplitSeq(b, []byte{0}) {
		mark, ok := bytes.CutPrefix(v, []byte(markName+"="))
		if !ok {
			continue
		}
		text, _, _ := strings.Cut(string(mark), "/")
		job, gen, _ := strings.Cut(text, ".")
		n, err := strconv.ParseUint(gen, 10, 64)
		return launcher.Key{Job: launcher.JobID(job), Generation: launcher.Generation(n)}, err == nil
	}
	return launcher.Key{}, false
}

// residentBytes leaves out what the kernel can drop: pages of files.
func residentBytes(pid int) (sum int64) {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) >= 2 && (f[0] == "RssAnon:" || f[0] == "RssShmem:") {
			kib, _ := strconv.ParseInt(f[1], 10, 64)
			sum += kib << 10
		}
	}
	return sum
}

func hasGPU(pid int) bool {
	base := "/proc/" + strconv.Itoa(pid) + "/fd/"
	fds, _ := os.ReadDir(base)
	for _, fd := range fds {
		if to, err := os.Readlink(base + fd.Name()); err == nil && strings.HasPrefix(to, "/dev/nvidia") {
			return true
		}
	}
	return false
}
