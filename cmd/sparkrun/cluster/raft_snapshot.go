package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/durable"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type raftSnapshotOptions struct {
	file  string
	force bool
}

func newRaftSnapshotCmd(a *app.App) *cobra.Command {
	opts := &raftSnapshotOptions{}
	cmd := &cobra.Command{
		Use:   "snapshot FILE",
		Short: "Write the cluster's record to a file",
		Long: `Has the leader prove that it leads, and writes its copy of the record to FILE: all
that anybody was told is recorded is in it. FILE appears whole or not at all, is
readable by its owner only (0600), and is not overwritten without --force.

In it are the members, the jobs of the history and those that run (command lines
and --env values with them), the fabric's addresses, and when, where and by which
version it was taken, with a SHA-256 of it all. No private key is in it, no token
and no hash of one: a restored cluster makes new tokens. What a machine needs
besides is its own /var/lib/sparkrun/trust, node.json and failover.json; keep a copy
of those of one voter, as carefully as a private key, against the loss of all
machines.

Take one after machines have joined or left, and from time to time. It takes root.`,
		Example: `  sudo sparkrun raft snapshot /backup/sparkrun-$(date +%F).snap
  sudo sparkrun raft snapshot --force /backup/sparkrun.snap`,
		Args: app.Takes(1, "the file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.file = args[0]
			return app.Running(a, opts, runRaftSnapshot)(cmd, args)
		},
	}
	cmd.Flags().BoolVar(&opts.force, "force", false, "overwrite FILE")
	return cmd
}

func runRaftSnapshot(ctx context.Context, a *app.App, o raftSnapshotOptions) error {
	if _, err := os.Lstat(o.file); err == nil && !o.force {
		return fmt.Errorf("write snapshot %s: %w: --force overwrites it", o.file, fs.ErrExist)
	}
	b := a.Dial()
	defer b.Close()
	var content bytes.Buffer
	if err := wire.SaveRaft.Call(ctx, b, wire.Empty{}, func(p wire.RaftPiece) error {
		if p.Offset != int64(content.Len()) {
			return fmt.Errorf("write snapshot %s: a piece at %d after %d bytes", o.file, p.Offset, content.Len())
		}
		content.Write(p.Data)
		return nil
	}); err != nil {
		return err
	}
	s, err := rendezvous.ReadBackup(bytes.NewReader(content.Bytes())) // what is written must be restorable
	if err != nil {
		return fmt.Errorf("write snapshot %s: %w", o.file, err)
	}
	write := durable.Create // refuses a file that has appeared meanwhile
	if o.force {
		write = durable.Write
	}
	if err := write(o.file, content.Bytes(), 0o600); err != nil {
		return fmt.Errorf("write snapshot %s: %w", o.file, err)
	}
	_, err = fmt.Fprintf(a.Out, "%s: entry %d of epoch %d, %s, sha256 %s\n", o.file, s.Index, s.Epoch.N, kib(s.Size),
		s.Sum)
	return err
}
