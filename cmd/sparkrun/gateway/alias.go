package gateway

import (
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

func newAliasCmd(a *app.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "alias",
		Short: "Give models further names",
		Long: `An alias is a further name of a model: programs that ask for one name get another model
behind it, without being changed.`,
		Example: `  sudo sparkrun gateway alias set gpt-4o qwen3-32b
  sudo sparkrun gateway alias rm gpt-4o`,
	}
	app.Group(cmd)
	cmd.AddCommand(newAliasSetCmd(a), newAliasLsCmd(a), newAliasRmCmd(a))
	return cmd
}

// aliasesOf are the names, sorted.
func aliasesOf(g wire.GatewayResponse) []string { return slices.Sorted(maps.Keys(g.Aliases)) }

// known tells whether a name is a model's or an alias.
func known(g wire.GatewayResponse, name string) bool {
	return g.Aliases[name] != "" || slices.Contains(modelsOf(g), name)
}
