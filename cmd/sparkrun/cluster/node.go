// Package cluster decides what a person types about the cluster: who is in it, how
// machines join and leave, its record, and this machine's agent.
//
// It must not know jobs.
package cluster

import (
	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
)

// NewNodeCmd makes `sparkrun node`.
func NewNodeCmd(a *app.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Drain machines, or take them out of the cluster",
		Long:  `Commands about the cluster's machines. sparkrun status lists them.`,
		Example: `  sudo sparkrun node drain spark3
  sudo sparkrun node remove spark3`,
	}
	app.Group(cmd)
	cmd.AddCommand(newNodeDrainCmd(a), newNodeResumeCmd(a), newNodeRemoveCmd(a))
	return cmd
}
