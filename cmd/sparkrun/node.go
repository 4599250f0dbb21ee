package main

import (
	"context"

	"github.com/spf13/cobra"
)

func newNodeCmd(complete completion, remove func(context.Context, nodeRemoveOptions) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "node",
		Short:   "Take machines out of the cluster",
		Long:    `Commands about the cluster's machines. sparkrun status lists them.`,
		Example: `  sudo sparkrun node remove spark3`,
	}
	group(cmd)
	cmd.AddCommand(newNodeRemoveCmd(complete, remove))
	return cmd
}
