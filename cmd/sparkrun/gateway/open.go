package gateway

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous"
)

type openOptions struct{ open bool }

func newOpenCmd(a *app.App) *cobra.Command {
	opts := &openOptions{open: true}
	return &cobra.Command{
		Use:   "open",
		Short: "Let everybody use the models while there is no key",
		Long: `Has every machine listen on the management network although there is no key: whoever
reaches it may use all models. Once there is a key it is asked for, open or not.
sparkrun gateway close takes it back. It takes root.`,
		Example: `  sudo sparkrun gateway open`,
		Args:    app.Takes(0, ""),
		RunE:    app.Running(a, opts, setOpen),
	}
}

func setOpen(ctx context.Context, a *app.App, o openOptions) error {
	now, err := change(ctx, a, rendezvous.GatewayChange{Open: &o.open})
	if err != nil {
		return err
	}
	sayReach(a, now)
	return nil
}
