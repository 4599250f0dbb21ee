package notify

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type nameOptions struct{ name string }

func newRmCmd(a *app.App) *cobra.Command {
	opts := &nameOptions{}
	return &cobra.Command{
		Use:     "rm NAME",
		Aliases: []string{"remove"},
		Short:   "Tell one of nothing any more",
		Long: `The webhook is not called any more, or the command not run; what it has yet to be told
of it never is. Its URL, headers or arguments are forgotten, but for snapshots of the
record. It takes root.`,
		Example:           `  sudo sparkrun notify rm team`,
		Args:              app.Takes(1, "the NAME"),
		ValidArgsFunction: completeName(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.name = args[0]
			return app.Running(a, opts, remove)(cmd, args)
		},
	}
}

func remove(ctx context.Context, a *app.App, o nameOptions) error {
	err := change(ctx, a, wire.NotifyChangeRequest{Remove: o.name})
	if err == nil {
		_, err = fmt.Fprintf(a.Out, "%s is told of nothing any more\n", o.name)
	}
	return err
}
