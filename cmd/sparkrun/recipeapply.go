package main

import (
	"cmp"
	"errors"
	"path"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/launcher/stage"
	"github.com/sparkrun/sparkrun/workloads/engine"
	"github.com/sparkrun/sparkrun/workloads/recipe"
)

// bindRecipe binds them for a workload that serves.
func bindRecipe(a *app, cmd *cobra.Command, o *recipeOptions) {
	fs := cmd.Flags()
	fs.StringVar(&o.name, "recipe", "", "serve the model of this recipe: a file, or a `NAME` of sparkrun recipe list")
	bindFill(fs, o)
	completeFlag(cmd, "recipe", func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		return a.completeRecipe(cmd, nil, typed) // what else stands in the line does not matter
	})
}

// bindFill binds what fills a recipe in.
func bindFill(fs *pflag.FlagSet, o *recipeOptions) {
	fs.StringArrayVarP(&o.set, "option", "o", nil, "give a value of the recipe another: `NAME=VALUE`; repeat for more")
	fs.BoolVar(&o.trust, "trust-recipe", false, "let the recipe change its image (mods, pre_exec), ask for more rights than you have, and take folders and variables of yours into its image")
}

// applyRecipe puts a launch's recipe into its options, where nothing else was asked for: the
// command line counts more than the recipe, and the recipe more than defaults. What of the recipe
// is not followed is said.
func (a *app) applyRecipe(o *launchOptions) error {
	switch {
	case o.recipe.name == "" && (len(o.recipe.set) > 0 || o.recipe.trust):
		return usagef("-o and --trust-recipe are about a recipe: name one with --recipe")
	case o.recipe.name == "":
		return nil
	case o.request.Serve.Model != "":
		return usagef("%s and --recipe: the recipe names its model; -o model=%[1]s gives it another", o.request.Serve.Model)
	case o.request.Serve.Program != "":
		e, _ := engine.Named(o.workload)
		return usagef("--%s %s and --recipe: the recipe's command names its program: leave --%[1]s out, or launch the model without a recipe", e.Program.Name, o.request.Serve.Program)
	}
	r, err := a.findRecipe(o.recipe.name)
	if err != nil {
		return err
	}
	l, err := a.fillRecipe(r, *o)
	if err != nil {
		return err
	}
	if o.workload != "" && o.workload != l.Workload {
		return usagef("recipe %s serves with %s: sparkrun launch %[2]s --recipe %[1]s", r.name, l.Workload)
	}
	for _, n := range l.Notes {
		a.say("recipe: " + plain.Text(n.String()))
	}
	mods, err := a.modsOf(r, l)
	if err != nil {
		return err
	}
	for _, m := range mods {
		a.say("recipe: " + m.Dst + " changes the image, by " + filepath.Join(m.Src, "run.sh"))
	}
	o.stage = append(o.stage, mods...)
	o.take(l)
	return nil
}

// modsOf are a recipe's mods, to be brought along.
func (a *app) modsOf(r foundRecipe, l recipe.Launch) (out []stage.Source, err error) {
	var missing []error
	for _, mod := range l.Mods {
		dir, err := a.modFolder(r, mod)
		if err != nil {
			missing = append(missing, err)
			continue
		}
		out = append(out, stage.Source{Src: dir, Dst: path.Join(recipe.ModsDir, path.Base(mod))})
	}
	return out, errors.Join(missing...)
}

// take puts a filled-in recipe into the options.
func (o *launchOptions) take(l recipe.Launch) {
	l.Into(&o.request)
	o.workload = l.Workload
	if l.Image != "" {
		o.box.image, o.serve.image = l.Image, false
	}
	o.box.shm = cmp.Or(o.box.shm, l.ShmBytes)
	o.box.args = append(l.Args, o.box.args...)
	o.secrets = append(o.secrets, l.Secrets...)
}

// fillRecipe fills a recipe in with what a launch asks for.
func (a *app) fillRecipe(r foundRecipe, o launchOptions) (recipe.Launch, error) {
	set, err := o.recipe.settings()
	if err != nil {
		return recipe.Launch{}, err
	}
	nodes := o.request.Job.Nodes
	if o.request.Job.MinNodes != 0 {
		return recipe.Launch{}, usagef("--nodes %d:%d: a server is made for a number of machines: give one", o.request.Job.MinNodes, nodes)
	}
	if nodes == 0 {
		nodes = len(o.request.Job.On)
	}
	if o.standalone {
		nodes = 1
	}
	image := o.box.image
	if o.serve.image { // which nobody has named
		image = ""
	}
	return r.Launch(recipe.Options{
		Name: r.name, Set: set, Nodes: nodes, Serve: o.request.Serve, Image: image, OnHost: o.serve.runtime == runtimeHost,
		Env: o.request.Env, Secrets: o.secrets, Environ: a.environ, Trusted: o.recipe.trust,
	})
}
