package gateway

import (
	"math"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

func newKeyCmd(a *app.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "key",
		Aliases: []string{"keys"},
		Short:   "Make, list and revoke the keys for models",
		Long: `A key lets its holder use the models, or some of them, at the address of any machine. The
cluster keeps only a hash of it.`,
		Example: `  sudo sparkrun gateway key create webui
  sparkrun gateway key ls
  sudo sparkrun gateway key revoke webui`,
	}
	app.Group(cmd)
	cmd.AddCommand(newKeyCreateCmd(a), newKeyLsCmd(a), newKeyRevokeCmd(a))
	return cmd
}

// completeKey offers names of keys.
func completeKey(a *app.App) cobra.CompletionFunc {
	return complete(a, math.MaxInt, func(g wire.GatewayResponse, _ []string) (names []string) {
		for _, k := range g.Keys {
			names = append(names, k.Name)
		}
		return names
	})
}
