package model

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/pull"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/launcher/modeldir"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type pullOptions struct {
	request wire.ModelPullRequest
	secret  string
	json    bool
}

func newPullCmd(a *app.App) *cobra.Command {
	opts := &pullOptions{}
	cmd := &cobra.Command{
		Use:   "pull ORG/NAME[@REVISION]",
		Short: "Fetch a model from the Hub, to one machine or more",
		Long: `Fetches a model's files: those that engines load, no second format of the same
weights, and says what it leaves out. Without --on, --nodes or --all they come to
the machine that is asked.

The machines go on when this command ends or is interrupted, and after a reboot:
asked again it shows how far they are, and changes --limit and --secret. model rm
gives a pull up. Where the Hub is not reached a model comes from a machine that has it.

A gated or private model takes a token, and only users whose token the Hub accepts
can read it there. As root you decide that every user of these machines can.`,
		Example: `  sparkrun model pull Qwen/Qwen3-8B --all
  sparkrun model pull org/data@v1.2 --type dataset --on spark1,spark2
  sparkrun model pull meta-llama/Llama-3.1-8B --nodes 2 --secret HF_TOKEN=token.txt`,
		Args: app.Takes(1, "a model: ORG/NAME"),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := named(args[0], &opts.request.ModelRepo, &opts.request.Revision); err != nil {
			return err
		}
		return app.Running(a, opts, pullModel)(cmd, args)
	}
	fs := cmd.Flags()
	r := &opts.request
	pull.TargetFlags(a, cmd, &r.On, &r.Nodes, &r.All, "those that have most of it first")
	fs.BoolVar(&opts.request.OwnCache, "own-cache", false,
		"put it into your own cache there as well, by default ~/.cache/huggingface")
	typeFlag(cmd, &opts.request.Type)
	fs.StringArrayVar(&opts.request.Include, "include", nil,
		"only files like this `PATTERN`, whatever engines load; repeat for more")
	fs.StringArrayVar(&opts.request.Exclude, "exclude", nil, "no files like this `PATTERN`; repeat for more")
	app.CompleteFlag(cmd, "exclude", cobra.NoFileCompletions)
	fs.StringVar(&opts.secret, "secret", "",
		"the token for the Hub: `NAME[=FILE]`, this shell's variable or a file, shown to nobody")
	fs.Var(app.Amount{N: &opts.request.Limit, Least: 1}, "limit", "each machine takes in at most this `SIZE` a second")
	jsonFlag(fs, &opts.json, "print what is told as JSON, a line each")
	return cmd
}

func pullModel(ctx context.Context, a *app.App, o pullOptions) error {
	b := a.Dial()
	defer b.Close()
	o.request.ID = launcher.NewJobID()
	if o.request.OwnCache {
		o.request.OwnDir = ownDir(a)
	}
	if o.secret != "" {
		var err error
		if o.request.Token, err = sealToken(ctx, a, b, o.request.ID, o.secret); err != nil {
			return err
		}
	}
	r := o.request
	v := newView(a, r.ModelRepo, r.Revision, pull.Targets(r.On, r.Nodes, r.All), a.ErrTTY && !o.json)
	tell := v.Take
	if o.json {
		tell = v.Lines(a.Out)
	}
	if err := v.Follow(ctx, callOf(b, o.request), tell); err != nil {
		return err
	}
	if err := v.Missing(); err != nil || o.json {
		return err
	}
	for _, dir := range v.Dirs() { // one, unless the machines' policies differ
		if _, err := fmt.Fprintln(a.Out, dir); err != nil {
			return err
		}
	}
	return nil
}

// ownDir is the caller's cache where this shell names one; empty: the one in the home on each machine.
func ownDir(a *app.App) string {
	env := func(name string) string {
		value, _ := a.Getenv(name)
		return value
	}
	if away, err := a.Away(); err != nil || away != nil || env("HF_HUB_CACHE") == "" && env("HF_HOME") == "" {
		return ""
	}
	return modeldir.Cache(env)
}

// newView shows a pull to the machines that these flags name.
func newView(a *app.App, repo wire.ModelRepo, revision, targets string, live bool) *pull.View {
	name := typed(repo, revision)
	return pull.NewView(a, pull.Kind{Command: "sparkrun model pull", Targets: targets, Begin: begins,
		GiveUp: ", `sudo sparkrun model rm " + name + "` gives it up",
		Whole:  func(p wire.ModelProgress) string { return "whole: " + p.Dir }}, name, live)
}

// typed is a model as commands take it.
func typed(repo wire.ModelRepo, revision string) string {
	name := repo.Name
	if revision != "" {
		name += "@" + revision
	}
	if repo.Type != "" && repo.Type != modelcache.Model {
		name += " --type " + repo.Type
	}
	return name
}

func callOf(b *wire.Client, r wire.ModelPullRequest) pull.Call {
	return func(ctx context.Context, again bool, each func(wire.ModelProgress) error) error {
		r.Again = again
		return wire.ModelPull.Call(ctx, b, r, each)
	}
}

// begins says what is fetched, and what is not.
func begins(p wire.ModelPlan) []string {
	lines := []string{fmt.Sprintf("%s@%s: %s, %s, to %s", p.Repo.Name, short(p.Commit), app.Count(p.Files, "file"),
		launcher.Size(p.Bytes), app.Hosts(p.Hosts))}
	switch {
	case p.For != "":
		lines = append(lines, fmt.Sprintf("it is gated or private: there %s can read it, by a token that the Hub accepts, "+
			"and root", p.For))
	case p.Restricted:
		lines = append(lines, "it is gated or private: by root's word every user of these machines can read it now")
	}
	if p.Offline != "" {
		lines = append(lines, "it comes from machines that have it: "+p.Offline)
	}
	for _, why := range slices.Sorted(maps.Keys(p.Left)) {
		lines = append(lines, fmt.Sprintf("left out: %s: %s", app.Count(p.Left[why], "file"), why))
	}
	return lines
}
