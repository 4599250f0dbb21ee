package model

import (
	"cmp"
	"errors"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/filesync"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/workloads/engine"
	"github.com/sparkrun/sparkrun/workloads/recipe"
)

// recipeOptions are for launches from a recipe.
type recipeOptions struct {
	name  string // a name or a file; empty: none
	set   []string
	trust bool
}

// settings are the recipe's values that -o overrides.
func (o recipeOptions) settings() (out []recipe.Setting, err error) {
	for _, text := range o.set {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, app.Usagef("-o %q: want NAME=VALUE, such as -o max_model_len=32768", text)
		}
		out = append(out, recipe.Setting{Name: strings.ReplaceAll(name, "-", "_"), Value: value})
	}
	return out, nil
}

// bindRecipe binds the recipe flags of a workload that serves.
func bindRecipe(a *app.App, cmd *cobra.Command, o *recipeOptions) {
	fs := cmd.Flags()
	fs.StringVar(&o.name, "recipe", "", "serve the model of this recipe: a file, or a `NAME` of sparkrun recipe list")
	bindFill(fs, o)
	app.CompleteFlag(cmd, "recipe",
		func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
			return recipeCompletion(a)(cmd, nil, typed) // the rest of the line does not matter
		})
}

// bindFill binds the flags that fill in a recipe.
func bindFill(fs *pflag.FlagSet, o *recipeOptions) {
	fs.StringArrayVarP(&o.set, "option", "o", nil, "give a value of the recipe another: `NAME=VALUE`; repeat for more")
	fs.BoolVar(&o.trust, "trust-recipe", false,
		"let the recipe change its image (mods, pre_exec), ask for more rights than you have, and take folders "+
			"and variables of yours into its image")
}

// applyRecipe puts a launch's recipe into its options, unless they say otherwise: the
// command line overrides the recipe, and the recipe overrides defaults. It prints which
// parts of the recipe are not followed.
func applyRecipe(a *app.App, o *serveOptions) error {
	switch {
	case o.recipe.name == "" && (len(o.recipe.set) > 0 || o.recipe.trust):
		return app.Usagef("-o and --trust-recipe are about a recipe: name one with --recipe")
	case o.recipe.name == "":
		return nil
	case o.Request.Serve.Model != "":
		return app.Usagef("%s and --recipe: the recipe names its model; -o model=%[1]s gives it another",
			o.Request.Serve.Model)
	case o.Request.Serve.Program != "":
		e, _ := engine.Named(o.Workload)
		return app.Usagef("--%s %s and --recipe: the recipe's command names its program: leave --%[1]s out, or "+
			"launch the model without a recipe", e.Program.Name, o.Request.Serve.Program)
	}
	r, err := findRecipe(a, o.recipe.name)
	if err != nil {
		return err
	}
	l, err := fillRecipe(a, r, *o)
	if err != nil {
		return err
	}
	if o.Workload != "" && o.Workload != l.Workload {
		return app.Usagef("recipe %s serves with %s: sparkrun launch %[2]s --recipe %[1]s", r.name, l.Workload)
	}
	for _, n := range l.Notes {
		a.Say("recipe: " + plain.Text(n.String()))
	}
	mods, err := modsOf(a, r, l)
	if err != nil {
		return err
	}
	for _, m := range mods {
		a.Say("recipe: " + m.Dst + " changes the image, by " + filepath.Join(m.Src, "run.sh"))
	}
	o.Stage = append(o.Stage, mods...)
	take(o, l)
	return nil
}

// modsOf are a recipe's mods, as files of the job.
func modsOf(a *app.App, r foundRecipe, l recipe.Launch) (out []filesync.Source, err error) {
	var missing []error
	for _, mod := range l.Mods {
		dir, err := modFolder(a, r, mod)
		if err != nil {
			missing = append(missing, err)
			continue
		}
		out = append(out, filesync.Source{Src: dir, Dst: path.Join(recipe.ModsDir, path.Base(mod))})
	}
	return out, errors.Join(missing...)
}

// take puts a filled-in recipe into the options.
func take(o *serveOptions, l recipe.Launch) {
	l.Into(&o.Request)
	o.Workload = l.Workload
	if l.Image != "" {
		o.Container.Image, o.ownImage = l.Image, false
	}
	o.Container.Shm = cmp.Or(o.Container.Shm, l.ShmBytes)
	o.Container.Args = append(l.Args, o.Container.Args...)
	o.Secrets = append(o.Secrets, l.Secrets...)
}

// fillRecipe fills in a recipe with what a launch asks for.
func fillRecipe(a *app.App, r foundRecipe, o serveOptions) (recipe.Launch, error) {
	set, err := o.recipe.settings()
	if err != nil {
		return recipe.Launch{}, err
	}
	nodes := o.Request.Job.Nodes
	if o.Request.Job.MinNodes != 0 {
		return recipe.Launch{}, app.Usagef("--nodes %d:%d: a server is made for a number of machines: give one",
			o.Request.Job.MinNodes, nodes)
	}
	if nodes == 0 {
		nodes = len(o.Request.Job.On)
	}
	if o.Standalone {
		nodes = 1
	}
	image := o.Container.Image
	if o.ownImage { // the default image, which nobody has named
		image = ""
	}
	return r.Launch(recipe.Options{
		Name: r.name, Set: set, Nodes: nodes, Serve: o.Request.Serve, Image: image, OnHost: o.runtime == runtimeHost,
		Env: o.Request.Env, Secrets: o.Secrets, Environ: a.Environ, Trusted: o.recipe.trust,
	})
}
