package preflight

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// secrets refuses secrets that could not be opened here, or would be written to a disk.
func secrets(_ context.Context, c *Case) error {
	if len(c.Assignment.Spec.Secrets) == 0 {
		return nil
	}
	if !c.Secrets {
		return errors.New("this node takes no secrets: leave --secret out")
	}
	var st unix.Statfs_t
	if err := unix.Statfs(c.RunDir, &st); err != nil {
		return fmt.Errorf("look at the folder of secrets: %w", err)
	}
	if st.Type != unix.TMPFS_MAGIC && st.Type != unix.RAMFS_MAGIC {
		return fmt.Errorf("--secret: %s is not in memory: mount a tmpfs there, or run the agent with SPARKRUN_RUN "+
			"in one",
			c.RunDir)
	}
	return nil
}
