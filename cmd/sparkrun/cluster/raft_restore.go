package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type raftRestoreOptions struct {
	file  string
	force bool
	yes   bool
}

func newRaftRestoreCmd(a *app.App) *cobra.Command {
	opts := &raftRestoreOptions{}
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Begin anew from a snapshot, when the cluster's record is lost",
		Long: `For a cluster whose record is lost or damaged on every machine that had it. While
one machine has a good copy, sparkrun takeover on it is better: it loses nothing.

It makes this machine the leader of a new epoch, whose record begins with FILE.
This machine must be in FILE and must have been voter or standby, and its agent
must run; where the agent refuses to start over a damaged file, its message says
how to get there. FILE is checked whole before anything is changed. A record that
is here already is kept, in /var/lib/sparkrun/raft.old. The other machines enter
the new epoch by themselves; one that has a copy of its own brings what it knows.

Nothing is started by it. Jobs that ended after FILE was taken are known as they
were; of one that had not ended, what runs goes on and gets its end recorded, and
it gets no other attempt. Where no machine has a trace of it, it ends as failed, its
end not known. What runs and is not in FILE at all is left alone: sparkrun status
names it, and its machine gets no jobs until it ends or sparkrun stop ends it. A
launch that was under way is answered "unknown" and not started. Machines that
have joined since are not members any more (remove /var/lib/sparkrun there and
join them anew); machines that have left since are members again, and away.

While somebody leads it is refused. --force has this machine lead all the same,
with FILE in place of its own copy: the leader gives way, and what it has recorded
is merged in. It takes root.`,
		Example: `  sparkrun raft inspect /backup/sparkrun.snap
  sudo sparkrun raft restore /backup/sparkrun.snap`,
		Args: app.Takes(1, "the file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.file = args[0]
			return app.Running(a, opts, runRaftRestore)(cmd, args)
		},
	}
	cmd.Flags().BoolVar(&opts.force, "force", false, "beside a leader, or over a newer copy here")
	cmd.Flags().BoolVarP(&opts.yes, "yes", "y", false, "do not ask")
	return cmd
}

func runRaftRestore(ctx context.Context, a *app.App, o raftRestoreOptions) error {
	s, err := readSnapshot(o.file)
	if err != nil {
		return err
	}
	b := a.DialHere()
	defer b.Close()
	if err := bring(ctx, b, o.file); err != nil {
		return err
	}
	r := wire.RaftRestoreRequest{Sum: s.Sum, Force: o.force, Check: true}
	res, err := askToRestore(ctx, b, r)
	if err != nil {
		return err
	}
	all, open := s.Jobs()
	a.Say(fmt.Sprintf("%s: taken %s on %s, %d machines (%s), %d jobs, of which %d had not ended", o.file,
		s.Taken.UTC().Format(time.RFC3339), s.Host,
		len(s.Hosts()), strings.Join(s.Hosts(), " "), all, open))
	if !o.yes {
		if err := a.Confirm(ctx, fmt.Sprintf("Begin epoch %d with it, led by %s? What was recorded since is lost.",
			res.Epoch, res.Host), "to restore"); err != nil {
			return err
		}
	}
	r.Check = false
	if res, err = askToRestore(ctx, b, r); err != nil {
		return err
	}
	if err := awaitLeads(ctx, b, "restore", res.Host, res.Epoch); err != nil {
		return err
	}
	fmt.Fprintf(a.Out, "%s leads, in epoch %d, with the record of %s\n", res.Host, res.Epoch,
		s.Taken.UTC().Format(time.RFC3339))
	if res.Kept != "" {
		fmt.Fprintf(a.Out, "the record that was here is kept in %s\n", res.Kept)
	}
	return nil
}

// bring sends the file to the agent, which may not see the same files.
func bring(ctx context.Context, b *wire.Client, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("read snapshot: %w", err)
	}
	defer f.Close()
	piece := make([]byte, wire.MaxPiece)
	for at := int64(0); ; {
		n, err := io.ReadFull(f, piece)
		if n > 0 {
			if err := wire.RaftBring.Call(ctx, b, wire.RaftPiece{Offset: at, Data: piece[:n]}); err != nil {
				return err
			}
			at += int64(n)
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read snapshot: %w", err)
		}
	}
}

// askToRestore waits out an election, or an agent that has just started: before, nobody
// knows whether there is a leader.
func askToRestore(ctx context.Context, b *wire.Client, r wire.RaftRestoreRequest) (wire.RaftRestoreResponse, error) {
	var again app.Pause
	for end := time.Now().Add(leadsWithin); ; {
		res, err := wire.RaftRestore.Call(ctx, b, r)
		if !errors.Is(err, wire.ErrRetry) || time.Now().After(end) || again.Wait(ctx) != nil {
			return res, err
		}
	}
}
