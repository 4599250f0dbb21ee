package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/remote"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type logoutOptions struct{ name string }

// NewLogoutCmd makes `sparkrun logout`.
func NewLogoutCmd(a *app.App) *cobra.Command {
	opts := &logoutOptions{}
	return &cobra.Command{
		Use:   "logout [CONTEXT]",
		Short: "End this machine's login to a cluster",
		Long: `Has the cluster take this machine off its list of clients, and removes its key and
certificate here. Without CONTEXT it is the one in use. Where no machine of the cluster
answers the files are removed all the same; sparkrun client remove on a member then does
the other half.`,
		Example:           "  sparkrun logout\n  sparkrun logout lab",
		ValidArgsFunction: a.CompleteLogin,
		Args:              cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				opts.name = args[0]
			}
			return app.Running(a, opts, runLogout)(cmd, args)
		},
	}
}

// logoutWithin bounds the call to the cluster.
const logoutWithin = 15 * time.Second

func runLogout(ctx context.Context, a *app.App, o logoutOptions) error {
	if o.name != "" {
		a.Context = o.name
	}
	name, dir, err := a.Chosen()
	switch {
	case err != nil:
		return err
	case o.name == app.LocalContext:
		return app.Usagef("%s is this machine's own agent, and no login", app.LocalContext)
	case dir == "":
		return fmt.Errorf("log out: %w: this machine's agent is used; `sparkrun context list` shows what there is",
			app.ErrNoContext)
	}
	all, err := a.Contexts()
	if err != nil {
		return err
	}
	id, told := tellLogout(ctx, dir)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	used, err := all.Current()
	if err != nil {
		return err
	}
	if err := all.Forget(name); err != nil {
		return err
	}
	if told != nil {
		a.Say(fmt.Sprintf("the cluster was not told: %v", told))
		if id != "" {
			a.Say("on a member, `sparkrun client remove " + id + "` takes this machine off its list")
		}
	}
	if _, err = fmt.Fprintf(a.Out, "context %s is gone\n", name); err != nil {
		return err
	}
	if rest, err := all.List(); err == nil && used == name && len(rest) > 0 {
		a.Say("commands use this machine's own agent now; `sparkrun context use NAME` chooses another " +
			"cluster: " + strings.Join(rest, ", "))
	}
	return nil
}

// tellLogout has the cluster remove this machine from its list of clients.
func tellLogout(ctx context.Context, dir string) (id string, err error) {
	own, err := trust.LoadClient(dir)
	if err != nil {
		return "", err
	}
	r, err := remote.Open(dir, nil)
	if err != nil {
		return own.NodeID, err
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(ctx, logoutWithin)
	defer cancel()
	var again app.Pause
	for {
		_, err = wire.RemoveClients.Call(ctx, r.Client, wire.RemoveClientsRequest{Client: own.NodeID})
		switch {
		case errors.Is(err, remote.ErrLoggedOut), errors.Is(err, rendezvous.ErrNoClient), err == nil:
			return own.NodeID, nil // the removal closes the connection over which the answer would come
		case !errors.Is(err, wire.ErrRetry) && !errors.Is(err, wire.ErrUnreachable) || again.Wait(ctx) != nil:
			return own.NodeID, err
		}
	}
}
