package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/remote"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type clientOptions struct {
	request wire.RemoveClientsRequest
	json    bool
}

// NewClientCmd makes `sparkrun client`.
func NewClientCmd(a *app.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "client",
		Aliases: []string{"clients"},
		Short:   "Show or remove machines that use the cluster and are no members",
		Long: `A client is a machine of a user's from which the cluster is used without being a
member: a laptop. It comes in by sparkrun login with a token of its user's.`,
		Example: "  sparkrun client list\n  sparkrun client remove ada@book",
	}
	app.Group(cmd)
	opts := &clientOptions{}
	ls := &cobra.Command{
		Use: "list", Aliases: []string{"ls"},
		Short:   "List the clients",
		Long:    "Lists the machines that have logged in, and whose calls theirs are.",
		Example: "  sparkrun client list\n  sparkrun client list --json | jq -r '.[] | select(.user == \"ada\").host'",
		Args:    app.Takes(0, ""),
		RunE:    app.Running(a, opts, listClients),
	}
	ls.Flags().BoolVar(&opts.json, "json", false, "print JSON")
	rm := &cobra.Command{
		Use: "remove [CLIENT]", Aliases: []string{"rm"},
		Short: "Take a client out for good",
		Long: `Takes a client off the list, by its id, host, or USER@HOST: within a second its open
connections are closed, and it gets no new ones. Tokens that wait for another client of
the same user are void as well. Jobs go on. To come in again it needs a new token.

Everybody may remove their own clients, root anybody's. --user removes all of one user's:
do that too when an account is closed, as a client does not ask for the group sparkrun.`,
		Example:           "  sparkrun client remove book\n  sudo sparkrun client remove --user ada",
		ValidArgsFunction: a.CompleteClients,
		Args:              cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				opts.request.Client = args[0]
			}
			if (opts.request.Client == "") == (opts.request.User == "") {
				return app.Usagef("name one client, or give --user")
			}
			return app.Running(a, opts, removeClients)(cmd, args)
		},
	}
	rm.Flags().StringVar(&opts.request.User, "user", "", "all clients of this user")
	cmd.AddCommand(ls, rm)
	return cmd
}

func listClients(ctx context.Context, a *app.App, o clientOptions) error {
	b := a.Dial()
	defer b.Close()
	res, err := app.Patiently(ctx, func() (wire.ClientsResponse, error) {
		return wire.Clients.Call(ctx, b, wire.Empty{})
	})
	if err != nil {
		return err
	}
	if o.json {
		return a.Object(append([]rendezvous.Client{}, res.Clients...))
	}
	rows := [][]string{{"USER", "HOST", "SINCE", "ID"}}
	for _, c := range res.Clients {
		rows = append(rows, []string{c.User, c.Host, c.At.Local().Format(time.DateOnly), c.ID})
	}
	return a.Table(rows)
}

func removeClients(ctx context.Context, a *app.App, o clientOptions) error {
	b := a.Dial()
	defer b.Close()
	res, err := app.Patiently(ctx, func() (wire.RemoveClientsResponse, error) {
		return wire.RemoveClients.Call(ctx, b, o.request)
	})
	if err != nil && !errors.Is(err, remote.ErrLoggedOut) {
		// A client that removes itself loses the connection over which the answer would
		// come.
		if _, now := wire.Clients.Call(ctx, b, wire.Empty{}); errors.Is(now, remote.ErrLoggedOut) {
			a.Say("this machine's own login was meant: it is out; `sparkrun logout` removes its key here")
			return nil
		}
	}
	if err != nil {
		return err
	}
	a.SayAlone(res.OnlyOn)
	for _, c := range res.Removed {
		if _, err := fmt.Fprintf(a.Out, "%s@%s is out (%s)\n", c.User, c.Host, c.ID); err != nil {
			return err
		}
	}
	return nil
}
