package notify

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

func newTestCmd(a *app.App) *cobra.Command {
	opts := &nameOptions{}
	return &cobra.Command{
		Use:   "test NAME",
		Short: "Send one a test, and see whether it arrives",
		Long: `The machine that leads calls the webhook or runs the command once, with the event test,
and says what went wrong. It takes root.`,
		Example:           `  sudo sparkrun notify test team`,
		Args:              app.Takes(1, "the NAME"),
		ValidArgsFunction: completeName(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.name = args[0]
			return app.Running(a, opts, test)(cmd, args)
		},
	}
}

func test(ctx context.Context, a *app.App, o nameOptions) error {
	b := a.Dial()
	defer b.Close()
	res, err := wire.TestNotify.Call(ctx, b, wire.NotifyTestRequest{Name: o.name})
	if err == nil {
		_, err = fmt.Fprintf(a.Out, "%s has got a test from %s\n", o.name, res.Host)
	}
	return err
}
