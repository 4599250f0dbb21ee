package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/workloads/recipe"
)

type recipeListOptions struct {
	text      string // text to search for; empty: all
	all, json bool
}

func newRecipeListCmd(a *app.App) *cobra.Command {
	opts := &recipeListOptions{}
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"},
		Short: "List the recipes of all registries",
		Long: `Lists the recipes of all registries: the name that finds one, the model, what serves it
and on how many machines, if nothing else is asked for. A file that is no recipe is told
on standard error.`,
		Example: "  sparkrun recipe list\n  sparkrun recipe list --json | jq -r '.[].model' | sort -u",
		Args:    app.Takes(0, ""),
		RunE:    app.Running(a, opts, listRecipes),
	}
	bindRecipeList(cmd, opts)
	return cmd
}

func newRecipeSearchCmd(a *app.App) *cobra.Command {
	opts := &recipeListOptions{}
	cmd := &cobra.Command{
		Use:     "search TEXT",
		Short:   "List the recipes with a word in name, model or description",
		Long:    "Lists the recipes that have TEXT in their name, model or description, in capitals or not.",
		Example: "  sparkrun recipe search nemotron",
		Args:    app.Takes(1, "what to search for"),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		opts.text = args[0]
		return app.Running(a, opts, listRecipes)(cmd, args)
	}
	bindRecipeList(cmd, opts)
	return cmd
}

func bindRecipeList(cmd *cobra.Command, o *recipeListOptions) {
	cmd.Flags().BoolVarP(&o.all, "all", "a", false, "those of registries too that their makers keep out of lists")
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON")
}

// recipeRow is a recipe as --json lists it.
type recipeRow struct {
	Name        string `json:"name"`
	File        string `json:"file"`
	Registry    string `json:"registry"`
	Version     string `json:"version"`
	Model       string `json:"model,omitempty"`
	Workload    string `json:"workload,omitempty"`
	Nodes       int    `json:"nodes,omitempty"` // its own number of machines; 0: it cannot be launched as it is
	Image       string `json:"image,omitempty"`
	Description string `json:"description,omitempty"`
}

func listRecipes(_ context.Context, a *app.App, o recipeListOptions) error {
	all, err := allRegistries(a)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		a.Say("there is no registry yet: `sparkrun recipe add FOLDER` adds a folder with recipes")
	}
	out := []recipeRow{}
	var failed []error
	for i := range all {
		if all[i].hidden && !o.all {
			continue
		}
		files, err := all[i].files()
		if err != nil {
			failed = append(failed, err)
		}
		for _, file := range files {
			name := "@" + all[i].name + "/" + all[i].nested(file)
			r, err := openRecipe(name, file, &all[i])
			if err != nil {
				a.Say(plain.Text(strings.ReplaceAll(err.Error(), "\n", "; ")))
				continue
			}
			if row := r.row(a.Environ); row.matches(o.text) {
				out = append(out, row)
			}
		}
	}
	err = errors.Join(failed...)
	if o.json {
		return errors.Join(err, a.Object(out))
	}
	if len(out) == 0 && o.text != "" {
		return errors.Join(err, fmt.Errorf("recipe %s: %w in the registries", o.text, errNoRecipe))
	}
	rows := [][]string{{"RECIPE", "MODEL", "SERVER", "MACHINES", "DESCRIPTION"}}
	for _, r := range out {
		nodes := "-"
		if r.Nodes > 0 {
			nodes = strconv.Itoa(r.Nodes)
		}
		rows = append(rows, []string{plain.Text(r.Name), plain.Text(cmp.Or(r.Model, "-")), cmp.Or(r.Workload, "-"),
			nodes, plain.Text(r.Description)})
	}
	return errors.Join(err, a.Table(rows))
}

func (r foundRecipe) row(environ []string) recipeRow {
	row := recipeRow{Name: r.name, File: r.file, Version: r.Version, Model: r.Model, Workload: r.Workload(),
		Image: r.Image, Description: r.Description}
	if r.from != nil {
		row.Registry = r.from.name
	}
	if l, err := r.Launch(recipe.Options{Name: r.name, Environ: environ, Trusted: true}); err == nil {
		row.Nodes, row.Model = l.Nodes, l.Serve.Model
	}
	return row
}

func (r recipeRow) matches(text string) bool {
	text = strings.ToLower(text)
	return strings.Contains(strings.ToLower(strings.Join([]string{r.Name, r.Model, r.Description}, "\n")), text)
}
