package cluster

import (
	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
)

// NewNodeCmd makes `sparkrun node`.
func NewNodeCmd(a *app.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "node",
		Short:   "Take machines out of the cluster",
		Long:    `Commands about the cluster's machines. sparkrun status lists them.`,
		Example: `  sudo sparkrun node remove spark3`,
	}
	app.Group(cmd)
	unknown := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 && (args[0] == "list" || args[0] == "ls") {
			return app.Usagef("unknown command %q for %s: sparkrun status lists the machines",
				args[0], cmd.CommandPath())
		}
		return unknown(cmd, args)
	}
	cmd.AddCommand(newNodeRemoveCmd(a))
	return cmd
}
