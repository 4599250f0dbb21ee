package gateway

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous"
)

type virtualIPOptions struct{ addr netip.Prefix }

func newVirtualIPCmd(a *app.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "virtual-ip",
		Short: "One more address, on whichever machine leads",
		Long: `A further address of the management network, which the machine that leads holds:
clients that know only one address go on when a machine dies. It moves with the
leadership, within about 8 seconds; connections to the machine that had it end. It
takes three machines or more. Clients that know all machines need none.`,
		Example: `  sudo sparkrun gateway virtual-ip set 10.0.0.100/24`,
	}
	app.Group(cmd)
	cmd.AddCommand(newVirtualIPSetCmd(a), newVirtualIPLsCmd(a), newVirtualIPRmCmd(a))
	return cmd
}

func newVirtualIPSetCmd(a *app.App) *cobra.Command {
	opts := &virtualIPOptions{}
	return &cobra.Command{
		Use:   "set ADDR/NET",
		Short: "Set the address, or another one",
		Long: `ADDR is an IPv4 address of the management network that no machine has and no DHCP server
gives away; NET is the length of the network, as in ip addr. The machine that takes it
asks first whether somebody answers for it. It takes root.`,
		Example: `  sudo sparkrun gateway virtual-ip set 10.0.0.100/24`,
		Args:    app.Takes(1, "ADDR/NET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if opts.addr, err = netip.ParsePrefix(args[0]); err != nil {
				return app.Usagef("%s: want an address with its network, such as 10.0.0.100/24", args[0])
			}
			return app.Running(a, opts, setVirtualIP)(cmd, args)
		},
	}
}

func newVirtualIPRmCmd(a *app.App) *cobra.Command {
	opts := &virtualIPOptions{}
	return &cobra.Command{
		Use: "rm", Aliases: []string{"remove"},
		Short:   "Take the address away",
		Long:    `The machine that holds the address drops it at once. It takes root.`,
		Example: `  sudo sparkrun gateway virtual-ip rm`,
		Args:    app.Takes(0, ""),
		RunE:    app.Running(a, opts, setVirtualIP),
	}
}

type virtualIPLsOptions struct{ json bool }

func newVirtualIPLsCmd(a *app.App) *cobra.Command {
	opts := &virtualIPLsOptions{}
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "Show the address, and who holds it",
		Long: `Shows the address, and the machine that holds it now or why none does.

--json prints an object: addr, host and why, or null.`,
		Example: `  sparkrun gateway virtual-ip ls`,
		Args:    app.Takes(0, ""),
		RunE:    app.Running(a, opts, showVirtualIP),
	}
	cmd.Flags().BoolVar(&opts.json, "json", false, "print JSON")
	return cmd
}

func showVirtualIP(ctx context.Context, a *app.App, o virtualIPLsOptions) error {
	b := a.Dial()
	defer b.Close()
	g, err := show(ctx, b)
	if err != nil {
		return err
	}
	if o.json {
		return a.Object(g.VirtualIP)
	}
	rows := [][]string{{"ADDRESS", "HOST"}}
	if v := g.VirtualIP; v != nil {
		rows = append(rows, []string{v.Addr.String(), cmp.Or(v.Host, "none: "+cmp.Or(plain.Text(v.Why), "it is being taken"))})
	}
	return a.Table(rows)
}

func setVirtualIP(ctx context.Context, a *app.App, o virtualIPOptions) error {
	now, err := change(ctx, a, rendezvous.GatewayChange{VirtualIP: &o.addr})
	if err != nil {
		return err
	}
	if !o.addr.IsValid() {
		_, err = fmt.Fprintln(a.Out, "there is no virtual IP")
		return err
	}
	sayReach(a, now)
	_, err = fmt.Fprintf(a.Out, "the leader's machine takes %s within seconds: `sparkrun gateway ls` shows it\n", o.addr.Addr())
	return err
}
