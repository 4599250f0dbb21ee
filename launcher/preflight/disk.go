package preflight

import (
	"context"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// leastRunBytes is what an attempt needs in RunDir: assignment, journal, the shim's log.
const leastRunBytes = 4 << 20

// disk refuses an attempt whose output would be lost from the first byte.
func disk(_ context.Context, c *Case) error {
	if st, err := statfs(c.LogDir); err == nil {
		if keep := shim.ReservedBytes(st.total); st.free <= keep {
			return fmt.Errorf("%s has %s free, and %s are kept for the rest of the machine: free some space on "+
				"this node",
				c.LogDir, launcher.Size(st.free), launcher.Size(keep))
		}
	}
	if st, err := statfs(c.RunDir); err == nil && st.free < leastRunBytes {
		return fmt.Errorf("%s has %s free, want %s: free some space on this node",
			c.RunDir, launcher.Size(st.free), launcher.Size(leastRunBytes))
	}
	return nil
}

// RoomToStage refuses files of so many bytes in a folder if they would use space that is
// kept for the rest of the machine.
func RoomToStage(dir string, bytes int64) error {
	st, err := statfs(dir)
	if err != nil {
		return nil //nolint:nilerr // a disk that does not tell is no reason to refuse
	}
	if keep := shim.ReservedBytes(st.total); st.free-bytes < keep {
		return fmt.Errorf("%s has %s free, and staging takes %s while %s are kept for the rest of the machine: "+
			"free some space on this node", dir, launcher.Size(st.free), launcher.Size(bytes), launcher.Size(keep))
	}
	return nil
}

// FreeAbove is the free space of the file system that has, or would have, a folder, in
// bytes; nil: not known.
func FreeAbove(dir string) *int64 {
	for {
		if st, err := statfs(dir); err == nil {
			return &st.free
		}
		up := filepath.Dir(dir)
		if up == dir {
			return nil
		}
		dir = up
	}
}

type room struct{ total, free int64 } // bytes

func statfs(path string) (room, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return room{}, err
	}
	return room{total: int64(st.Blocks) * st.Bsize, free: int64(st.Bavail) * st.Bsize}, nil
}
