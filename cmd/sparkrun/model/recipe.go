package model

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
)

// NewRecipeCmd makes `sparkrun recipe`.
func NewRecipeCmd(a *app.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "recipe",
		Aliases: []string{"recipes", "registry"},
		Short:   "Find, read and check recipes, files that say how to serve a model",
		Long: `A recipe is a YAML file that says how one model is served: image, command, variables.
Those of eugr/spark-vllm-docker (version 1) and of the Python tool sparkrun (version 2)
are read as they are. sparkrun run RECIPE, or launch vllm --recipe, starts one.

RECIPE is a file, or a name in the registries: folders with recipes, such as a checkout
of one of these projects. sparkrun recipe add FOLDER adds one. @REGISTRY/NAME is the one
of that registry, where several have the name.`,
		Example: `  git clone https://github.com/eugr/spark-vllm-docker && sparkrun recipe add spark-vllm-docker
  sparkrun recipe search qwen3.5
  sparkrun recipe check qwen3.5-122b-int4-autoround --nodes 2`,
	}
	app.Group(cmd)
	cmd.AddCommand(
		newRecipeListCmd(a), newRecipeSearchCmd(a), newRecipeShowCmd(a),
		newRecipeCheckCmd(a), newRecipeAddCmd(a), newRecipeRemoveCmd(a),
	)
	return cmd
}

// recipeCompletion completes the names of recipes in the registries; the shell completes
// files itself.
func recipeCompletion(a *app.App) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		list, err := openRegistries(a)
		if err != nil {
			return nil, cobra.ShellCompDirectiveDefault
		}
		all, err := list.all(func(string) {})
		if err != nil {
			return nil, cobra.ShellCompDirectiveDefault
		}
		var out []string
		for _, r := range all {
			files, err := r.files()
			if err != nil || r.hidden && !strings.HasPrefix(typed, "@") {
				continue
			}
			for _, f := range files {
				name := stem(f)
				if strings.HasPrefix(typed, "@") {
					name = "@" + r.name + "/" + r.nested(f)
				}
				if strings.HasPrefix(name, typed) {
					out = append(out, name)
				}
			}
		}
		return out, cobra.ShellCompDirectiveDefault
	}
}

// onRecipe makes a command about one recipe.
func onRecipe[O any](a *app.App, cmd *cobra.Command, opts *O, name *string,
	run func(context.Context, *app.App, O) error) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = app.Takes(1, "the recipe"), recipeCompletion(a)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		*name = args[0]
		return app.Running(a, opts, run)(cmd, args)
	}
	return cmd
}
