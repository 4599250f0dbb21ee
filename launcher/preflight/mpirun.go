package preflight

import (
	"context"
	"fmt"

	"github.com/sparkrun/sparkrun/launcher/mpi"
)

// mpirun checks what runs on rank 0's node alone: the named mpirun, and the program that
// rank 0 starts beside it.
func mpirun(_ context.Context, c *Case) error {
	if c.Yet || c.Container != nil || c.Assignment.NodeRank != 0 {
		return nil
	}
	o, is := mpi.OptionsOf(c.First.Argv)
	if !is {
		return nil
	}
	if o.Mpirun != "" {
		if _, err := c.find(o.Mpirun); err != nil {
			return fmt.Errorf("--mpirun %s: %w", o.Mpirun, err)
		}
	}
	if o.Task > 0 && o.Task < len(o.Argv) {
		if _, err := c.find(o.Argv[o.Task]); err != nil {
			return fmt.Errorf("program %q: %w", o.Argv[o.Task], err)
		}
	}
	return nil
}
