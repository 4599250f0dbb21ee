package main

import (
	"github.com/spf13/cobra"
)

func newNodeCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "node",
		Short:   "Take machines out of the cluster",
		Long:    `Commands about the cluster's machines. sparkrun status lists them.`,
		Example: `  sudo sparkrun node remove spark3`,
	}
	group(cmd)
	unknown := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 && (args[0] == "list" || args[0] == "ls") {
			return usagef("unknown command %q for %s: sparkrun status lists the machines", args[0], cmd.CommandPath())
		}
		return unknown(cmd, args)
	}
	cmd.AddCommand(newNodeRemoveCmd(a))
	return cmd
}
