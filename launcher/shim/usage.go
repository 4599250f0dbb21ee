package shim

import (
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
)

// Usage is what the living processes of one attempt use.
type Usage struct {
	Bytes int64 // anonymous and shared memory in RAM; pages shared by two count twice
	GPU   bool  // one of them has an NVIDIA GPU open
	PIDs  []int
}

// Usages finds the attempts of this machine by SPARKRUN_GANG in the initial environment of
// a process, or of its parent. It reads the whole process table: that takes milliseconds,
// so it is for rare moments.
func Usages() map[launcher.Key]Usage {
	procs, _ := proc.Here.All()
	parents := map[int]int{}
	for _, p := range procs {
		parents[p.PID] = p.PPID
	}
	keys := map[int]launcher.Key{}
	for _, p := range procs {
		if key, marked := attemptOf(p.PID); marked {
			keys[p.PID] = key
		}
	}
	all := map[launcher.Key]Usage{}
	for _, p := range procs {
		key, found := keys[p.PID]
		for at, steps := parents[p.PID], 0; !found && at > 1 && steps < len(procs); at, steps = parents[at], steps+1 {
			key, found = keys[at]
		}
		if !found || p.Dead() {
			continue
		}
		u := all[key]
		u.PIDs = append(u.PIDs, p.PID)
		u.Bytes += proc.Here.Resident(p.PID)
		u.GPU = u.GPU || proc.Here.Opens(p.PID, isGPU)
		all[key] = u
	}
	return all
}

func isGPU(file string) bool { return strings.HasPrefix(file, "/dev/nvidia") }

func attemptOf(pid int) (launcher.Key, bool) {
	mark, marked := proc.Here.Env(pid, markName)
	text, _, _ := strings.Cut(mark, "/")
	job, gen, _ := strings.Cut(text, ".")
	n, err := strconv.ParseUint(gen, 10, 64)
	return launcher.Key{Job: launcher.JobID(job), Generation: launcher.Generation(n)}, marked && err == nil
}
