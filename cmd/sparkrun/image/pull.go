package image

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/pull"
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
		return app.Running(a, opts, pullImage)(cmd, args)
	}
	fs := cmd.Flags()
	r := &opts.request
	pull.TargetFlags(a, cmd, &r.On, &r.Nodes, &r.All, "those that have it first")
	fs.BoolVar(&opts.json, "json", false, "print what is told as JSON, a line each")
	return cmd
}

func pullImage(ctx context.Context, a *app.App, o pullOptions) error {
	b := a.Dial()
	defer b.Close()
	r := o.request
	v := newView(a, r.Ref, pull.Targets(r.On, r.Nodes, r.All), a.ErrTTY && !o.json)
	tell := v.Take
	if o.json {
		tell = v.Lines(a.Out)
	}
	if err := follow(ctx, a, b, v, r, tell); err != nil {
		return err
	}
	if err := v.Missing(); err != nil || o.json {
		return err
	}
	_, err := fmt.Fprintln(a.Out, v.Plan.Commit)
	return err
}

func newView(a *app.App, ref, targets string, live bool) *pull.View {
	return pull.NewView(a, pull.Kind{Command: "sparkrun image pull", Targets: targets, Begin: begins,
		Whole: func(p wire.ModelProgress) string { return "has it: " + short(p.Dir) }}, ref, live)
}

func begins(p wire.ModelPlan) (lines []string) {
	if p.Offline != "" {
		lines = append(lines, p.Offline)
	}
	if len(p.Hosts) > 0 {
		lines = append(lines, fmt.Sprintf("%s@%s: %s, to %s", p.Repo.Name, short(p.Commit), launcher.Size(p.Bytes),
			app.Hosts(p.Hosts)))
	}
	return lines
}

// short is a digest as docker shows it.
func short(digest string) string {
	digest = strings.TrimPrefix(digest, "sha256:")
	return digest[:min(len(digest), 12)]
}

func follow(ctx context.Context, a *app.App, b *wire.Client, v *pull.View, r wire.ImagePullRequest,
	tell func(wire.ModelProgress) error) (err error) {
	r.ID = launcher.NewJobID()
	if r.Login, err = sealLogin(ctx, a, b, r.ID, r.Ref); err != nil {
		return err
	}
	return v.Follow(ctx, func(ctx context.Context, _ bool, each func(wire.ModelProgress) error) error {
		return wire.ImagePull.Call(ctx, b, r, each)
	}, tell)
}

// Fetch brings an image to machines, which keep one of that name where missing is set.
func Fetch(ctx context.Context, a *app.App, b *wire.Client, ref string, hosts []string, missing, quiet bool) error {
	v := newView(a, ref, pull.Targets(hosts, 0, false), a.ErrTTY && !quiet)
	err := follow(ctx, a, b, v, wire.ImagePullRequest{Ref: ref, On: hosts, Missing: missing}, v.Take)
	if err == nil {
		err = v.Missing()
	}
	return err
}

// Bring fetches an image for a launch. Where that cannot be it says why, and each machine's Docker pulls it by itself.
func Bring(ctx context.Context, a *app.App, b *wire.Client, ref string, hosts []string, missing, quiet bool) error {
	err := Fetch(ctx, a, b, ref, hosts, missing, quiet)
	if err != nil && ctx.Err() == nil {
		a.Say(fmt.Sprintf("image %s was not brought first: %v; each machine's Docker pulls it by itself", ref, err))
		return nil
	}
	return err
}
