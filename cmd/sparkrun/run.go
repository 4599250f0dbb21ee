package main

import (
	"context"

	"github.com/spf13/cobra"
)

func newRunCmd(a *app, run starter) *cobra.Command {
	opts := &launchOptions{}
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
		ValidArgsFunction: a.completeRecipe,
		RunE: serveRun(a, opts, func(ctx context.Context, a *app, o launchOptions) error {
			o.recipe.name = o.request.Serve.Model
			switch args := o.request.Serve.Args; {
			case o.recipe.name == "" && len(args) > 0:
				return usagef("the recipe is missing: sparkrun run RECIPE; a program is run by `sparkrun launch exec -- %s`", quoteAll(args))
			case o.recipe.name == "":
				return usagef("the recipe is missing: sparkrun run RECIPE")
			}
			o.request.Serve.Model, o.workload = "", "" // the recipe says
			return run(ctx, a, o)
		}),
	}
	fs := cmd.Flags()
	bindLaunch(fs, opts)
	bindBox(fs, &opts.box)
	groupLaunch(fs)
	bindServe(cmd, opts)
	bindBackend(cmd, opts)
	bindFill(fs, &opts.recipe)
	completeLaunch(a, cmd)
	return cmd
}
