package model

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/launch"
)

// NewRunCmd makes `sparkrun run`.
func NewRunCmd(a *app.App, run launch.Starter) *cobra.Command {
	opts, o := &launch.Options{}, &serveOptions{}
	cmd := &cobra.Command{
		Use:   "run RECIPE [flags] [-- ARG...]",
		Short: "Serve a model by a recipe",
		Long: `Serves the model of a recipe: the same as launch vllm --recipe RECIPE, or launch sglang,
whichever the recipe is for, with the flags of launch. Machines are as many as the recipe
wants, unless --nodes or --on say otherwise. What comes behind -- goes to the server as
it is. sparkrun recipe check RECIPE shows beforehand what would run.

The command line counts most, then the recipe, then defaults: -o NAME=VALUE gives a value
of the recipe another. What of a recipe is not followed is said. A recipe that changes
its image (mods, pre_exec), wants more rights than you have, serves a folder of your
machines or takes variables of yours needs --trust-recipe.

This command is for those who know the Python tool of the same name; sparkrun help
recipes says how the two differ.`,
		Example: `  sparkrun run minimax-m2.7-awq
  sparkrun run ./my.yaml --nodes 2 -o max_model_len=32768 -- --enforce-eager
  sparkrun run @eugr/qwen3.5-122b-int4-autoround --trust-recipe --dry-run`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: recipeCompletion(a),
		RunE: o.run(a, opts, func(ctx context.Context, a *app.App, l launch.Options) error {
			o.recipe.name = l.Request.Serve.Model
			switch args := l.Request.Serve.Args; {
			case o.recipe.name == "" && len(args) > 0:
				return app.Usagef("the recipe is missing: sparkrun run RECIPE; a program is run by "+
					"`sparkrun launch exec -- %s`", app.QuoteAll(args))
			case o.recipe.name == "":
				return app.Usagef("the recipe is missing: sparkrun run RECIPE")
			}
			l.Request.Serve.Model, l.Workload = "", "" // the recipe gives both
			return run(ctx, a, l)
		}),
	}
	fs := cmd.Flags()
	launch.BindLaunch(fs, opts)
	launch.BindContainer(fs, &opts.Container)
	launch.GroupLaunch(fs)
	bindServe(cmd, o, opts)
	bindBackend(cmd, opts)
	bindFill(fs, &o.recipe)
	app.CompleteLaunch(a, cmd)
	return cmd
}
