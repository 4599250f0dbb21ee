package agent

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// leastRunBytes is what a try needs in RunDir: assignment, journal, logs of a shim.
const leastRunBytes = 4 << 20

// hasResources refuses what this node has too little of at the moment.
func (a *Agent) hasResources(st launcher.Stage) error {
	err := errors.Join(a.hasRoom(), a.hasMemory(), shim.MayLimit(st.Ulimits))
	if st.GPU {
		err = errors.Join(err, gpuFree(proc.Here))
	}
	return err
}

// hasRoom refuses a try whose output would be lost from its first byte on.
func (a *Agent) hasRoom() error {
	if st, err := statfs(a.cfg.LogDir); err == nil {
		if keep := shim.ReservedBytes(st.total); st.free <= keep {
			return fmt.Errorf("%s has %s free, and %s are kept for the rest of the machine: free some space on this node", a.cfg.LogDir, launcher.Size(st.free), launcher.Size(keep))
		}
	}
	if st, err := statfs(a.cfg.RunDir); err == nil && st.free < leastRunBytes {
		return fmt.Errorf("%s has %s free, want %s: free some space on this node", a.cfg.RunDir, launcher.Size(st.free), launcher.Size(leastRunBytes))
	}
	return nil
}

type room struct{ total, free int64 } // bytes

func statfs(path string) (room, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return room{}, err
	}
	return room{total: int64(st.Blocks) * st.Bsize, free: int64(st.Bavail) * st.Bsize}, nil
}

// hasMemory refuses a try that the guard would end as soon as it ran.
func (a *Agent) hasMemory() error {
	m, err := proc.ReadMemory()
	if err != nil || m.Available >= a.cfg.MemoryFloor {
		return nil //nolint:nilerr // a kernel that doesn't tell is no reason to refuse
	}
	return fmt.Errorf("this node has %s of memory left, less than its --memory-floor of %s: end what uses it", launcher.Size(m.Available), launcher.Size(a.cfg.MemoryFloor))
}

// DefaultMemoryFloor is a fiftieth of the machine's memory, 1 GiB or more: what
// sshd, the agent and the kernel need to stay responsive. On small machines it
// is an eighth at most; 0 where the kernel doesn't tell.
func DefaultMemoryFloor() int64 {
	m, err := proc.ReadMemory()
	if err != nil {
		return 0
	}
	return floorOf(m.Total)
}

func floorOf(total int64) int64 { return min(max(total/50, 1<<30), total/8) }
