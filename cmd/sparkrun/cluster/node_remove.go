package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type nodeRemoveOptions struct {
	request   wire.RemoveNodeRequest
	yes       bool
	uninstall bool
	target    string // of ssh
	ssh       sshOptions
}

func newNodeRemoveCmd(a *app.App) *cobra.Command {
	opts := &nodeRemoveOptions{}
	cmd := &cobra.Command{
		Use: "remove HOST", Aliases: []string{"rm"},
		Short: "Take a machine out of the cluster for good",
		Long: `Takes HOST out, whether it answers or not: its certificate counts nowhere any more,
its open connections are closed, and the gossip key is changed on all others. A
machine that answers removes its own keys and ends its agent, as by sparkrun leave.
On one that does not, run sparkrun leave --force once it is back. To come in again
it needs a token.

While a job has ranks on HOST it is refused; --force ends those jobs. If the
machine is off, --force takes your word that nothing runs on it.

If somebody else was root on HOST, what its users could read there is known, and if
it was a voter or standby (sparkrun status) the cluster's CA key too. That key lets
nobody in whom the members do not list; to be rid of it, found the cluster anew.
It takes root.

--uninstall then removes sparkrun from HOST over ssh, as sparkrun down does. It logs in
first: where that fails, nothing is done. HOST may then be USER@HOST. By sudo it is
root's ssh that logs in, with root's keys and known_hosts. A HOST that neither root's
ssh_config nor the network knows by name is looked for at the address it has in the
cluster, which may be given in place of the name.`,
		Example: `  sudo sparkrun node remove spark3
  sudo sparkrun node remove spark3 --force --yes
  sudo sparkrun node remove --uninstall zeta@spark3`,
		Args:              app.Takes(1, "the host"),
		ValidArgsFunction: a.CompleteHosts,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.target = args[0]
			opts.request.Host = args[0][strings.LastIndex(args[0], "@")+1:]
			if opts.request.Host != args[0] && !opts.uninstall {
				return app.Usagef("%s: a user is for --uninstall", args[0])
			}
			return app.Running(a, opts, runRemoveNode)(cmd, args)
		},
	}
	cmd.Flags().BoolVar(&opts.request.Force, "force", false, "end the jobs that have ranks there")
	cmd.Flags().BoolVarP(&opts.yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&opts.uninstall, "uninstall", false, "remove sparkrun from it too, over ssh")
	sshFlags(cmd.Flags(), &opts.ssh)
	return cmd
}

// removePatience allows for the change of leaders when the leader is removed.
const removePatience = 20 * time.Second

func runRemoveNode(ctx context.Context, a *app.App, o nodeRemoveOptions) error {
	if _, notIP := netip.ParseAddr(o.request.Host); !o.yes || o.uninstall || notIP == nil {
		if err := knows(ctx, a, &o); err != nil {
			return err
		}
	}
	if !o.yes {
		if err := a.Confirm(ctx, fmt.Sprintf("Take %s out of the cluster?",
			o.request.Host), "to remove it"); err != nil {
			return err
		}
	}
	if !o.uninstall {
		return strike(ctx, a, o.request)
	}
	return runDown(ctx, a, downOptions{ssh: o.ssh, targets: []string{o.target},
		out: func(ctx context.Context, host string) error {
			if host != o.request.Host {
				return fmt.Errorf("the machine that ssh logs in to calls itself %s: mend the name, or remove %s "+
					"without --uninstall", host, o.request.Host)
			}
			return strike(ctx, a, o.request)
		}})
}

// knows refuses a host that is no member before it is contacted, and finds the name of a
// host given by its address. Where the members are not known, the leader will refuse it.
func knows(ctx context.Context, a *app.App, o *nodeRemoveOptions) error {
	b := a.Dial()
	defer b.Close()
	st, err := wire.ShowStatus.Call(ctx, b, wire.StatusRequest{})
	if err != nil || st.Leader == "" {
		return ctx.Err()
	}
	var known []string
	for _, n := range st.Nodes {
		known = append(known, n.Host)
		at := ""
		if n.Addr.IsValid() {
			at = n.Addr.String()
		}
		switch o.request.Host {
		case n.Host:
			if o.uninstall && at != "" && !resolves(ctx, n.Host) {
				o.ssh.addresses = map[string]string{n.Host: at}
			}
			return ctx.Err()
		case at:
			o.request.Host = n.Host
			return ctx.Err()
		}
	}
	return fmt.Errorf("remove %s: %w: the cluster has %s",
		o.request.Host, rendezvous.ErrNoNode, strings.Join(known, ", "))
}

// resolves tells whether this machine can resolve a name. Networks without a name server
// are common, and the cluster knows its members' addresses.
func resolves(ctx context.Context, host string) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := net.DefaultResolver.LookupHost(ctx, host)
	return err == nil
}

// strike has a host removed from the member list.
func strike(ctx context.Context, a *app.App, r wire.RemoveNodeRequest) error {
	b := a.Dial()
	defer b.Close()
	var again app.Pause
	tried := false
	for deadline := time.Now().Add(removePatience); ; tried = true {
		res, err := wire.RemoveNode.Call(ctx, b, r)
		switch {
		case err == nil:
			return sayRemoved(a, r.Host, res)
		case tried && errors.Is(err, rendezvous.ErrNoNode): // the answer to an earlier attempt was lost
			return sayRemoved(a, r.Host, wire.RemoveNodeResponse{Told: true})
		case !errors.Is(err, wire.ErrRetry) || time.Now().After(deadline):
			return err
		}
		if err := again.Wait(ctx); err != nil {
			return err
		}
	}
}

func sayRemoved(a *app.App, host string, res wire.RemoveNodeResponse) error {
	a.SayAlone(res.OnlyOn)
	if !res.Told {
		a.Say(host + " did not hear of it: once it is back, `sudo sparkrun leave --force` there removes its keys")
	}
	_, err := fmt.Fprintf(a.Out, "%s is out of the cluster\n", host)
	return err
}
