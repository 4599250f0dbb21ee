package gateway

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type aliasOptions struct{ alias rendezvous.GatewayAlias }

func newAliasSetCmd(a *app.App) *cobra.Command {
	opts := &aliasOptions{}
	return &cobra.Command{
		Use:   "set ALIAS MODEL",
		Short: "Give a model a further name, or an alias another model",
		Long: `Has requests for ALIAS go to the services that serve MODEL, the name that sparkrun
gateway ls shows. It need not be served yet. An ALIAS that ends in * is for all names
that begin so. It takes root.`,
		Example: `  sudo sparkrun gateway alias set gpt-4o qwen3-32b
  sudo sparkrun gateway alias set 'claude-*' qwen3-32b`,
		Args: app.Takes(2, "ALIAS or MODEL"),
		ValidArgsFunction: complete(a, 2, func(g wire.GatewayResponse, args []string) []string {
			if len(args) == 0 {
				return aliasesOf(g)
			}
			return modelsOf(g)
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.alias = rendezvous.GatewayAlias{Name: args[0], Model: args[1]}
			if args[1] == "" {
				return app.Usagef("MODEL is empty: sparkrun gateway alias rm removes an alias")
			}
			return app.Running(a, opts, setAlias)(cmd, args)
		},
	}
}

func setAlias(ctx context.Context, a *app.App, o aliasOptions) error {
	now, err := change(ctx, a, rendezvous.GatewayChange{Alias: &o.alias})
	if err != nil {
		return err
	}
	if now != nil && !known(*now, o.alias.Model) {
		a.Say(fmt.Sprintf("warning: no service serves %s now", o.alias.Model))
	}
	_, err = fmt.Fprintf(a.Out, "%s is %s\n", o.alias.Name, o.alias.Model)
	return err
}
