package shim

import (
	"os"
	"slices"

	"github.com/sparkrun/sparkrun/launcher/proc"
)

// descendants are all living ones of this process, without the subtrees of
// those in except.
func descendants(except map[int]bool) []proc.Stat {
	procs, _ := proc.Here.All()
	return below(procs, []int{os.Getpid()}, except)
}

// below gives the living descendants of the roots (proc.Below).
func below(procs []proc.Stat, roots []int, except map[int]bool) []proc.Stat {
	return slices.DeleteFunc(proc.Below(procs, roots, except), proc.Stat.Dead)
}
