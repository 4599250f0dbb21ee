package model

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type addOptions struct {
	request wire.ModelAddRequest
	name    string
	json    bool
}

func newAddCmd(a *app.App) *cobra.Command {
	opts := &addOptions{}
	cmd := &cobra.Command{
		Use:   "add DIR --name ORG/NAME",
		Short: "Take a folder as a model, such as what a training job wrote",
		Long: `Takes the files of a folder of this machine into its cache, as a model that is
named by --name: USER/NAME with your own name, or any for root. They share their
blocks with the folder's where the file system can, else are copied. model pull
brings it to other machines, and does not ask the Hub for a name that was added here.`,
		Example: "  sparkrun model add out/merged --name ada/llama-tuned\n  sparkrun model pull ada/llama-tuned --all",
		Args:    app.Takes(1, "a folder"),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if opts.name == "" {
			return app.Usagef("give it a name: --name ORG/NAME")
		}
		if err := named(opts.name, &opts.request.ModelRepo, &opts.request.Ref); err != nil {
			return err
		}
		if opts.request.Dir = args[0]; !filepath.IsAbs(args[0]) {
			cwd, err := a.Getwd()
			if err != nil {
				return fmt.Errorf("find the working directory: %w; name the folder by its full path", err)
			}
			opts.request.Dir = filepath.Join(cwd, args[0])
		}
		return app.Running(a, opts, addModel)(cmd, args)
	}
	cmd.Flags().StringVar(&opts.name, "name", "", "what it is called: `ORG/NAME[@BRANCH]`")
	cmd.Flags().StringVar(&opts.request.User, "user", "", "read the folder with this user's rights; only root may")
	typeFlag(cmd, &opts.request.Type)
	jsonFlag(cmd.Flags(), &opts.json, "print JSON")
	return cmd
}

func addModel(ctx context.Context, a *app.App, o addOptions) error {
	b := a.Dial()
	defer b.Close()
	res, err := wire.ModelAdd.Call(ctx, b, o.request)
	if err != nil {
		return err
	}
	if o.json {
		return a.Object(res)
	}
	a.Say(fmt.Sprintf("%s@%s: %s, %s, in %s", res.Repo.Name, short(res.Commit), app.Count(res.Files, "file"),
		launcher.Size(res.Bytes), res.Took))
	_, err = fmt.Fprintln(a.Out, res.Dir)
	return err
}
