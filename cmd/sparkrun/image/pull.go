package image

import (
	"context"
	"encoding/json"
	"fmt"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type pullOptions struct {
	request wire.ImagePullRequest
	json    bool
}

func newPullCmd(a *app.App) *cobra.Command {
	opts := &pullOptions{}
	cmd := &cobra.Command{
		Use:   "pull REF",
		Short: "Bring a container image to one machine or more",
		Long: `Brings an image to machines' Docker, under its name. Without --on, --nodes or --all
it comes to the machine that is asked. Machines that have the very same one already
take nothing.

Your docker's login to the registry is used, also one that a credential helper keeps.
The machines go on when this command ends or is interrupted. An image that no
registry knows, such as one that was built on a machine, and one whose registry is
not reached, comes from a machine that has it.`,
		Example: `  sparkrun image pull nvcr.io/nvidia/pytorch:25.10-py3 --all
  sparkrun image pull vllm-node --on spark1,spark2`,
		Args: app.Takes(1, "an image: REF, as docker pull has it"),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		opts.request.Ref = args[0]
		ways := 0
		for _, given := range []bool{len(opts.request.On) > 0, opts.request.Nodes > 0, opts.request.All} {
			if given {
				ways++
			}
		}
		if ways > 1 {
			return app.Usagef("give one of --on, --nodes and --all")
		}
		return app.Running(a, opts, pull)(cmd, args)
	}
	fs := cmd.Flags()
	fs.StringSliceVar(&opts.request.On, "on", nil, "to these machines: `HOST,HOST`")
	app.CompleteFlag(cmd, "on", a.CompleteHosts)
	fs.Var(app.Positive{N: &opts.request.Nodes}, "nodes", "to `N` machines, those that have it first")
	fs.BoolVar(&opts.request.All, "all", false, "to all machines")
	fs.BoolVar(&opts.json, "json", false, "print what is told as JSON, a line each")
	return cmd
}

func pull(ctx context.Context, a *app.App, o pullOptions) error {
	b := a.Dial()
	defer b.Close()
	v := newView(a, a.ErrTTY && !o.json)
	tell := v.take
	if o.json {
		enc := json.NewEncoder(a.Out)
		tell = func(p wire.ModelProgress) error {
			v.remember(p)
			return enc.Encode(p)
		}
	}
	if err := v.follow(ctx, b, o.request, tell); err != nil {
		return err
	}
	if err := v.missing(); err != nil || o.json {
		return err
	}
	_, err := fmt.Fprintln(a.Out, v.plan.Commit)
	return err
}

// follow pulls, and tells until all machines have ended; it asks again where the agent is away.
func (v *view) follow(ctx context.Context, b *wire.Client, r wire.ImagePullRequest,
	tell func(wire.ModelProgress) error) (err error) {
	r.ID = launcher.NewJobID()
	if r.Login, err = sealLogin(ctx, v.app, b, r.ID, r.Ref); err != nil {
		return err
	}
	var pause app.Pause
	heard := time.Now()
	for {
		err := wire.ImagePull.Call(ctx, b, r, func(p wire.ModelProgress) error {
			heard = time.Now()
			pause.Reset()
			return tell(p)
		})
		v.erase()
		switch {
		case ctx.Err() != nil && v.plan != nil:
			v.app.Say(fmt.Sprintf("the machines go on: `sparkrun image pull %s` follows them again", r.Ref))
			return app.Exits(app.ExitOf(syscall.SIGINT), nil)
		case err == nil:
			return nil
		case v.plan == nil || !app.Passing(err) || time.Since(heard) > app.Patience:
			return err
		}
		if err := pause.Wait(ctx); err != nil {
			return err
		}
	}
}

// Bring brings an image to the machines of a launch, which keep one of that name where missing is set. Where that cannot
// be it says why, and each machine's Docker pulls it by itself.
func Bring(ctx context.Context, a *app.App, b *wire.Client, ref string, hosts []string, missing, quiet bool) error {
	v := newView(a, a.ErrTTY && !quiet)
	err := v.follow(ctx, b, wire.ImagePullRequest{Ref: ref, On: hosts, Missing: missing}, v.take)
	if err == nil {
		err = v.missing()
	}
	if err != nil && ctx.Err() == nil {
		a.Say(fmt.Sprintf("image %s was not brought first: %v; each machine's Docker pulls it by itself", ref, err))
		return nil
	}
	return err
}
