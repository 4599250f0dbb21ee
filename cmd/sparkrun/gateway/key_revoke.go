package gateway

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type keyRevokeOptions struct{ names []string }

func newKeyRevokeCmd(a *app.App) *cobra.Command {
	opts := &keyRevokeOptions{}
	return &cobra.Command{
		Use:     "revoke NAME...",
		Aliases: []string{"rm"},
		Short:   "Take keys back for good",
		Long: `No machine takes a request with the key any more; requests that are under way go on. A
machine that is cut off from the cluster goes by what it knew for 30 seconds more. After
the last key every machine listens on 127.0.0.1 alone, unless gateway open was given. Of
several, one that there is not is named, keeps no other from it, and makes the exit code
1. It takes root.`,
		Example: `  sudo sparkrun gateway key revoke webui
  sudo sparkrun gateway key revoke ada bob`,
		Args: func(_ *cobra.Command, args []string) error {
			return app.Takes(max(1, len(args)), "the key's NAME")(nil, args)
		},
		ValidArgsFunction: completeKey(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.names = args
			return app.Running(a, opts, revokeKey)(cmd, args)
		},
	}
}

func revokeKey(ctx context.Context, a *app.App, o keyRevokeOptions) error {
	var now *wire.GatewayResponse
	code := 0
	for _, name := range o.names {
		after, err := change(ctx, a, rendezvous.GatewayChange{Revoke: name})
		switch {
		case err != nil && (len(o.names) == 1 || ctx.Err() != nil):
			return err
		case err != nil:
			a.Say(err.Error())
			code = app.ExitFailure
			continue
		}
		now = after
		if _, err := fmt.Fprintf(a.Out, "key %s is revoked\n", name); err != nil {
			return err
		}
	}
	if now != nil && len(now.Keys) == 0 {
		sayReach(a, now)
	}
	return app.Exits(code, nil)
}
