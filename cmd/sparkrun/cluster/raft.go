package cluster

import (
	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
)

// NewRaftCmd makes `sparkrun raft`.
func NewRaftCmd(a *app.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "raft",
		Short: "Look at the cluster's record, back it up, restore it",
		Long: `The agents keep one record of members and jobs, and agree on it by raft: voters
decide, standbys have a copy. These commands show where each copy stands, write
the record to a file, and begin anew from such a file when every copy is lost.`,
		Example: `  sparkrun raft status
  sudo sparkrun raft snapshot /backup/sparkrun.snap`,
	}
	app.Group(cmd)
	cmd.AddCommand(newRaftStatusCmd(a), newRaftSnapshotCmd(a), newRaftInspectCmd(a), newRaftRestoreCmd(a))
	return cmd
}
