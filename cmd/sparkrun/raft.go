package main

import (
	"context"

	"github.com/spf13/cobra"
)

// raftRuns are what the commands below `raft` do.
type raftRuns struct {
	status   func(context.Context, raftStatusOptions) error
	snapshot func(context.Context, raftSnapshotOptions) error
	inspect  func(context.Context, raftInspectOptions) error
	restore  func(context.Context, raftRestoreOptions) error
}

func newRaftCmd(run raftRuns) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "raft",
		Short: "Look at the cluster's record, back it up, restore it",
		Long: `The agents keep one record of members and jobs, and agree on it by raft: voters
decide, standbys have a copy. These commands show where each copy stands, write
the record to a file, and begin anew from such a file when every copy is lost.`,
		Example: `  sparkrun raft status
  sudo sparkrun raft snapshot /backup/sparkrun.snap`,
	}
	group(cmd)
	cmd.AddCommand(newRaftStatusCmd(run.status), newRaftSnapshotCmd(run.snapshot), newRaftInspectCmd(run.inspect), newRaftRestoreCmd(run.restore))
	return cmd
}
