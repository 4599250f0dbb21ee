package gateway

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous"
)

type keyRevokeOptions struct{ name string }

func newKeyRevokeCmd(a *app.App) *cobra.Command {
	opts := &keyRevokeOptions{}
	return &cobra.Command{
		Use:     "revoke NAME",
		Aliases: []string{"rm"},
		Short:   "Take a key back for good",
		Long: `No machine takes a request with the key any more; requests that are under way go on. A
machine that is cut off from the cluster goes by what it knew for 30 seconds more. After
the last key every machine listens on 127.0.0.1 alone, unless gateway open was given. It
takes root.`,
		Example: `  sudo sparkrun gateway key revoke webui`,
		Args:    app.Takes(1, "the key's NAME"), ValidArgsFunction: completeKey(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.name = args[0]
			return app.Running(a, opts, revokeKey)(cmd, args)
		},
	}
}

func revokeKey(ctx context.Context, a *app.App, o keyRevokeOptions) error {
	now, err := change(ctx, a, rendezvous.GatewayChange{Revoke: o.name})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.Out, "key %s is revoked\n", o.name)
	if now != nil && len(now.Keys) == 0 {
		sayReach(a, now)
	}
	return err
}
