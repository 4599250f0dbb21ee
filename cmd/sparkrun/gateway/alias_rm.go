package gateway

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

func newAliasRmCmd(a *app.App) *cobra.Command {
	opts := &aliasOptions{}
	return &cobra.Command{
		Use:     "rm ALIAS",
		Aliases: []string{"remove"},
		Short:   "Remove a further name of a model",
		Long: `Requests for it are refused from then on, as for a model that nobody serves. It takes
root.`,
		Example: `  sudo sparkrun gateway alias rm gpt-4o`,
		Args:    app.Takes(1, "the ALIAS"),
		ValidArgsFunction: complete(a, 1, func(g wire.GatewayResponse, _ []string) []string {
			return aliasesOf(g)
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.alias = rendezvous.GatewayAlias{Name: args[0]}
			return app.Running(a, opts, removeAlias)(cmd, args)
		},
	}
}

func removeAlias(ctx context.Context, a *app.App, o aliasOptions) error {
	if _, err := change(ctx, a, rendezvous.GatewayChange{Alias: &o.alias}); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.Out, "%s is no alias any more\n", o.alias.Name)
	return err
}
