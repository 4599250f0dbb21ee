package cluster

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous"
)

type raftInspectOptions struct {
	file string
	json bool
}

func newRaftInspectCmd(a *app.App) *cobra.Command {
	opts := &raftInspectOptions{}
	cmd := &cobra.Command{
		Use:   "inspect FILE",
		Short: "Check a snapshot, and show what it holds",
		Long: `Reads a file that raft snapshot has written, checks all of it as raft restore
would, and shows of which cluster and when it is. It needs no agent.`,
		Example: `  sparkrun raft inspect /backup/sparkrun.snap`,
		Args:    app.Takes(1, "the file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.file = args[0]
			return app.Running(a, opts, runRaftInspect)(cmd, args)
		},
	}
	cmd.Flags().BoolVar(&opts.json, "json", false, "print one JSON object")
	return cmd
}

// inspected is a snapshot as --json prints it.
type inspected struct {
	rendezvous.BackupHead
	Bytes    int64    `json:"bytes"`
	SHA256   string   `json:"sha256"`
	Hosts    []string `json:"hosts"`
	Jobs     int      `json:"jobs"`
	NotEnded int      `json:"jobs_not_ended"`
}

func runRaftInspect(_ context.Context, a *app.App, o raftInspectOptions) error {
	s, err := readSnapshot(o.file)
	if err != nil {
		return err
	}
	all, open := s.Jobs()
	if o.json {
		return a.Object(inspected{s.BackupHead, s.Size, s.Sum, s.Hosts(), all, open})
	}
	return a.Table([][]string{
		{"cluster", s.Cluster},
		{"epoch", fmt.Sprint(s.Epoch.N)},
		{"index", fmt.Sprint(s.Index)},
		{"taken", s.Taken.UTC().Format(time.RFC3339) + " on " + s.Host + ", by sparkrun " + s.Version},
		{"machines", strings.Join(s.Hosts(), " ")},
		{"jobs", fmt.Sprintf("%d, of which %d had not ended", all, open)},
		{"size", fmt.Sprintf("%d bytes", s.Size)},
		{"sha256", s.Sum},
	})
}

// readSnapshot reads a file and verifies all of it.
func readSnapshot(name string) (rendezvous.Backup, error) {
	f, err := os.Open(name)
	if err != nil {
		return rendezvous.Backup{}, fmt.Errorf("read snapshot: %w", err)
	}
	defer f.Close()
	s, err := rendezvous.ReadBackup(f)
	if err != nil {
		return s, fmt.Errorf("read snapshot %s: %w", name, err)
	}
	return s, nil
}
