package model

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type rmOptions struct {
	request wire.ModelRemoveRequest
	json    bool
}

func newRmCmd(a *app.App) *cobra.Command {
	opts := &rmOptions{}
	cmd := &cobra.Command{
		Use: "rm ORG/NAME[@REVISION]", Aliases: []string{"remove"},
		Short: "Remove a model from machines",
		Long: `Removes a model, or one revision of it, from all machines that have it, or from those
of --on, and gives up a pull of it that is under way. Machines that are away are named,
and it exits with 1. Nothing is removed where a process, in a container or not, has a
file of it open or mapped, or was started with its folder, or with its name and this
cache. It takes root: a model is there for all users.`,
		Example: "  sudo sparkrun model rm Qwen/Qwen3-8B\n  sudo sparkrun model rm Qwen/Qwen3-8B@main --on spark2",
		Args:    app.Takes(1, "a model: ORG/NAME"),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := named(args[0], &opts.request.ModelRepo, &opts.request.Revision); err != nil {
			return err
		}
		return app.Running(a, opts, removeModel)(cmd, args)
	}
	onFlag(a, cmd, &opts.request.On, "from these machines: `HOST,HOST` (default: all that have it)")
	typeFlag(cmd, &opts.request.Type)
	jsonFlag(cmd.Flags(), &opts.json, "print JSON")
	return cmd
}

func removeModel(ctx context.Context, a *app.App, o rmOptions) error {
	b := a.Dial()
	defer b.Close()
	res, err := wire.ModelRemove.Call(ctx, b, o.request)
	if err != nil {
		return err
	}
	if o.json {
		if err := a.Object(res); err != nil {
			return err
		}
	}
	kept := 0
	for _, n := range res.Nodes {
		if n.Error != "" {
			kept++
		}
		switch {
		case o.json:
		case n.Error != "":
			a.Say(n.Host + ": " + n.Error)
		default:
			fmt.Fprintf(a.Out, "%s: %s freed\n", n.Host, launcher.Size(n.Bytes))
		}
	}
	if kept > 0 {
		return fmt.Errorf("remove %s: it was not removed from %d of %s", o.request.Name, kept, app.Count(len(res.Nodes), "machine"))
	}
	return nil
}
