package cluster

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/policy"
)

type initOptions struct {
	node       node.Config
	containers string
}

// NewInitCmd makes `sparkrun init`.
func NewInitCmd(a *app.App) *cobra.Command {
	opts := &initOptions{}
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make this machine the first of a new cluster",
		Long: `Makes a cluster: a certificate authority, this machine's own key and certificate,
and the key of its gossip, all below /var/lib/sparkrun. Other machines come in by
a token (sparkrun token create, sparkrun join).

It starts nothing: the agent does the work, as a service or by sparkrun agent. It
changes nothing on a machine that is in a cluster already, but for --containers, which
lets a user or a group of this machine run ranks in containers: as much as Docker's group
gives, which is root in effect. It is written into /etc/sparkrun/policy.yaml.`,
		Example: `  sudo sparkrun init
  sudo systemctl start sparkrun
  sudo sparkrun init --management enP7s7
  sudo sparkrun init --containers zeta`,
		Args: app.Takes(0, ""),
		RunE: app.Running(a, opts, runInit),
	}
	app.NodeFlags(cmd.Flags(), &opts.node)
	cmd.Flags().StringVar(&opts.containers, "containers", "", "let `USER|GROUP` run ranks in containers here")
	return cmd
}

func runInit(ctx context.Context, a *app.App, o initOptions) error {
	c := nodeConfig(a, o.node)
	if o.containers != "" {
		written, err := policy.AllowContainers(c.Paths.Policy, o.containers)
		if err != nil {
			return err
		}
		if written {
			a.Say(fmt.Sprintf("%s may run containers here: %s has it", o.containers, c.Paths.Policy))
		}
		if in, err := c.Paths.Folder().Enrolled(); in || err != nil {
			return err
		}
	}
	f, err := node.Init(ctx, c)
	if err != nil {
		return err
	}
	for _, w := range f.Warnings {
		a.Say("warning: " + w)
	}
	fmt.Fprintf(a.Out, "cluster %s is founded, %s is its first machine\n", f.Cluster, f.Host)
	fmt.Fprintf(a.Err, `next:  sudo systemctl start sparkrun      the agent (or: sudo sparkrun agent)
       sudo sparkrun token create         lets others in; they run: sudo sparkrun join %s
`, f.Addr.Addr())
	return nil
}

// nodeConfig completes the configuration that the flags give.
func nodeConfig(a *app.App, c node.Config) node.Config {
	c.Paths, c.Version = node.DefaultPaths(), a.Version
	c.NetplanApply, _ = a.Getenv("SPARKRUN_NETPLAN_APPLY")
	c.HubEndpoint, _ = a.Getenv("HF_ENDPOINT")
	return c
}
