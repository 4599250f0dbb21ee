package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type leaveOptions struct{ yes, force bool }

func newLeaveCmd(a *app) *cobra.Command {
	opts := &leaveOptions{}
	cmd := &cobra.Command{
		Use:   "leave",
		Short: "Take this machine out of its cluster",
		Long: `Takes this machine out for good: the others forget it, its keys are removed, and
its agent ends. It asks first. To come back it needs a new token.

--force tells nobody: for a machine that the others have taken out while it was
off, or that is the last of a cluster whose other machines are gone.

To stop for a while, stop the agent instead: a member may be away for as long as
it likes.`,
		Example: `  sudo sparkrun leave
  sudo sparkrun leave --yes`,
		Args: takes(0, ""),
		RunE: running(a, opts, a.leave),
	}
	cmd.Flags().BoolVar(&opts.force, "force", false, "remove this machine's keys without a word to the others")
	cmd.Flags().BoolVarP(&opts.yes, "yes", "y", false, "do not ask")
	return cmd
}

func (a *app) leave(ctx context.Context, o leaveOptions) error {
	if !o.yes {
		if err := a.confirm(ctx, "Take this machine out of its cluster?", "to leave the cluster"); err != nil {
			return err
		}
	}
	b := a.dialHere()
	defer b.close()
	if err := b.Leave(ctx, wire.LeaveRequest{Force: o.force}); err != nil {
		return err
	}
	fmt.Fprintln(a.out, "this machine is in no cluster any more")
	return nil
}
