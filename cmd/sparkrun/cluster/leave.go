package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type leaveOptions struct{ yes, force bool }

// NewLeaveCmd makes `sparkrun leave`.
func NewLeaveCmd(a *app.App) *cobra.Command {
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
		Args: app.Takes(0, ""),
		RunE: app.Running(a, opts, runLeave),
	}
	cmd.Flags().BoolVar(&opts.force, "force", false, "remove this machine's keys without a word to the others")
	cmd.Flags().BoolVarP(&opts.yes, "yes", "y", false, "do not ask")
	return cmd
}

func runLeave(ctx context.Context, a *app.App, o leaveOptions) error {
	if !o.yes {
		if err := a.Confirm(ctx, "Take this machine out of its cluster?", "to leave the cluster"); err != nil {
			return err
		}
	}
	b := a.DialHere()
	defer b.Close()
	if err := wire.Leave.Call(ctx, b, wire.LeaveRequest{Force: o.force}); err != nil {
		return err
	}
	b.Close() // the agent would wait for an open connection
	if err := awaitAgentsEnd(ctx); err != nil {
		return err
	}
	fmt.Fprintln(a.Out, "this machine is in no cluster any more")
	return nil
}

// awaitAgentsEnd waits until the agent has ended and this machine's state is gone.
func awaitAgentsEnd(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if err := node.DefaultPaths().Folder().AwaitExit(ctx); err != nil {
		return fmt.Errorf("the cluster has let this machine go, but its agent has not ended: %w: see its log", err)
	}
	return nil
}
