package cluster

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/bootstrap"
	"github.com/sparkrun/sparkrun/rendezvous/membership"
)

type downOptions struct {
	ssh     sshOptions
	targets []string
	dryRun  bool
	json    bool
	out     func(ctx context.Context, host string) error // see bootstrap.Config
}

// NewDownCmd makes `sparkrun down`.
func NewDownCmd(a *app.App) *cobra.Command {
	opts := &downOptions{}
	cmd := &cobra.Command{
		Use:   "down [USER@]HOST[:PORT]...",
		Short: "Remove sparkrun from hosts that are in no cluster any more, over ssh",
		Long: `Undoes sparkrun up: it logs in as up does, ends the agent, and removes the unit, the
program, the group, and all that the agent has kept in /var/lib/sparkrun, output of
jobs included. Users, netplan files and what jobs have written elsewhere stay.

A host that is in a cluster is refused: sparkrun node remove --uninstall, on a member,
takes it out first, and so does sparkrun leave there.
So is one on which ranks run, and one where a package has installed sparkrun, which
the package manager removes. Running it again is harmless.`,
		Example: `  ssh -t spark3 sudo sparkrun leave && sparkrun down spark3
  sparkrun down --dry-run spark3`,
		Args: hostsMissing,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.targets = args
			return app.Running(a, opts, runDown)(cmd, args)
		},
	}
	sshFlags(cmd.Flags(), &opts.ssh)
	cmd.Flags().BoolVar(&opts.dryRun, "dry-run", false, "look at the hosts, and change nothing")
	cmd.Flags().BoolVar(&opts.json, "json", false, "print JSON")
	return cmd
}

func runDown(ctx context.Context, a *app.App, o downOptions) error {
	show := newUpView(a, o.targets, o.json)
	ssh, err := sshOf(a, o.ssh, show)
	if err != nil {
		return err
	}
	out := o.out
	if out != nil { // out prints too
		out = func(ctx context.Context, host string) (err error) {
			show.asking(func() { err = o.out(ctx, host) })
			return err
		}
	}
	results, err := bootstrap.Down(ctx, bootstrap.Config{
		Targets: o.targets, SSH: ssh, ClusterOf: membership.ClusterOf, Out: out, DryRun: o.dryRun, Tell: show.take,
	})
	if err != nil {
		return app.Usagef("%v", err)
	}
	return show.end(results, o.dryRun, "sparkrun is removed")
}
