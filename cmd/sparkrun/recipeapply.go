package main

import (
	"cmp"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sparkrun/sparkrun/launcher/stage"
	"github.com/sparkrun/sparkrun/workloads/recipe"
)

// recipeOptions are of launches by a recipe.
type recipeOptions struct {
	name  string // or file; empty: none
	set   []string
	trust bool
}

func bindRecipe(fs *pflag.FlagSet, o *recipeOptions) {
	fs.StringArrayVarP(&o.set, "option", "o", nil, "give a value of the recipe another: `NAME=VALUE`; repeat for more")
	fs.BoolVar(&o.trust, "trust-recipe", false, "let the recipe change its image (mods, pre_exec) and ask for more rights than you have")
}

func (o recipeOptions) settings() (out []recipe.Setting, err error) {
	for _, text := range o.set {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, usagef("-o %q: want NAME=VALUE, such as -o max_model_len=32768", text)
		}
		out = append(out, recipe.Setting{Name: strings.ReplaceAll(name, "-", "_"), Value: value})
	}
	return out, nil
}

// applyRecipe puts a launch's recipe into its options, where nothing else was asked for: the
// command line counts more than the recipe, and the recipe more than defaults. What of the recipe
// is not followed is said.
func (a *app) applyRecipe(o *launchOptions, onHost bool) error {
	if o.recipe.name == "" {
		if len(o.recipe.set) > 0 || o.recipe.trust {
			return usagef("-o and --trust-recipe are about a recipe: name one with --recipe")
		}
		return nil
	}
	r, err := a.findRecipe(o.recipe.name)
	if err != nil {
		return err
	}
	l, err := a.fillRecipe(r, *o, onHost)
	if err != nil {
		return err
	}
	if o.workload != "" && o.workload != l.Workload {
		return usagef("recipe %s serves with %s: sparkrun launch %[2]s --recipe %[1]s", r.name, l.Workload)
	}
	for _, n := range l.Notes {
		a.say("recipe: " + printable(n.String()))
	}
	for _, mod := range l.Mods {
		dir, err := a.modFolder(r, mod)
		if err != nil {
			return err
		}
		o.stage = append(o.stage, stage.Source{Src: dir, Dst: path.Join(recipe.ModsDir, path.Base(mod))})
		a.say("recipe: " + mod + " changes the image: " + filepath.Join(dir, "run.sh"))
	}
	o.workload = l.Workload
	l.Into(&o.request)
	o.box.image = l.Image
	o.box.shm = cmp.Or(o.box.shm, l.ShmBytes)
	o.box.args = append(l.Args, o.box.args...)
	o.secrets = append(o.secrets, l.Secrets...)
	return nil
}

// fillRecipe fills a recipe in with what a launch asks for.
func (a *app) fillRecipe(r foundRecipe, o launchOptions, onHost bool) (recipe.Launch, error) {
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
	return r.Launch(recipe.Options{
		Name: r.name, Set: set, Nodes: nodes, Serve: o.request.Serve, Image: o.box.image, OnHost: onHost,
		Env: o.request.Env, Secrets: o.secrets, Environ: a.environ, Trusted: o.recipe.trust,
	})
}
