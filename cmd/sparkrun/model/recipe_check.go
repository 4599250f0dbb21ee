package model

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/launch"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/workloads/engine"
	"github.com/sparkrun/sparkrun/workloads/recipe"
)

type recipeCheckOptions struct {
	serveOptions
	asJSON bool
}

func newRecipeCheckCmd(a *app.App) *cobra.Command {
	opts := &recipeCheckOptions{}
	cmd := &cobra.Command{
		Use:   "check RECIPE",
		Short: "Show what a launch of a recipe would run, on every machine",
		Long: `Shows what a recipe comes to on so many machines: image, command, variables and mounts of
each, what of the recipe is not followed, and what it needs consent for; or why it cannot
be launched so, with the nearest that works. Nothing is started and no cluster is asked:
<...> stands for what is known once the machines are chosen. launch --dry-run asks them.

Its exit code is 1 where a launch would be refused, with a mod missing, too; 0 else. What
only needs your consent (--trust-recipe) is said, and is no failure.`,
		Example: `  sparkrun recipe check minimax-m2.7-awq --nodes 4
  sparkrun recipe check ./my.yaml -o max_model_len=32768 --json | jq '.machines[0].steps[].argv'`,
	}
	fs := cmd.Flags()
	fs.Var(app.Positive{N: &opts.Request.Job.Nodes}, "nodes", "for `N` machines (default: as many as it wants)")
	fs.StringVar(&opts.Container.Image, "image", "", "in this image (`REF`) in place of the recipe's")
	fs.BoolVar(&opts.asJSON, "json", false, "print JSON")
	bindFill(fs, &opts.recipe)
	return onRecipe(a, cmd, opts, &opts.recipe.name, checkRecipe)
}

// recipePlan is what launching a recipe would do.
type recipePlan struct {
	Recipe string `json:"recipe"`
	File   string `json:"file"`
	recipe.Launch
	// Consent is why a launch needs --trust-recipe; empty: it is not needed, or was
	// given.
	Consent string `json:"consent,omitempty"`
	// Missing are the mods that a launch would not find.
	Missing  []string      `json:"missing,omitempty"`
	Machines []planMachine `json:"machines"`
}

type planMachine struct {
	Machine int        `json:"machine"` // from 0, the machine of rank 0
	Steps   []planStep `json:"steps"`   // one after the other
}

// planStep is what runs on a machine in one step of a job.
type planStep struct {
	Stage  string    `json:"stage"`
	Image  string    `json:"image,omitempty"`
	Argv   []string  `json:"argv"`
	Env    []planVar `json:"env"`
	Mounts []string  `json:"mounts,omitempty"`
	// ModelCache is each machine's folder of Hugging Face models, mounted where the
	// server looks.
	ModelCache string   `json:"model_cache,omitempty"`
	DockerArg  []string `json:"docker_args,omitempty"`
}

type planVar struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

func checkRecipe(ctx context.Context, a *app.App, o recipeCheckOptions) error {
	r, err := findRecipe(a, o.recipe.name)
	if err != nil {
		return err
	}
	p := recipePlan{Recipe: r.name, File: r.file}
	_, err = fillRecipe(a, r, o.serveOptions)
	if errors.Is(err, recipe.ErrUntrusted) {
		p.Consent, o.recipe.trust = err.Error(), true
	}
	if p.Launch, err = fillRecipe(a, r, o.serveOptions); err != nil {
		return err
	}
	if _, err := modsOf(a, r, p.Launch); err != nil {
		p.Missing = strings.Split(err.Error(), "\n")
	}
	spec, err := recipeSpec(ctx, a, o.serveOptions, p.Launch)
	if err != nil {
		return err
	}
	p.Machines = machinesOfSpec(spec)
	show := func(p recipePlan) error { return showPlan(a, p) }
	if o.asJSON {
		show = func(p recipePlan) error { return a.Object(p) }
	}
	if err := show(p); err != nil {
		return err
	}
	if len(p.Missing) > 0 {
		return fmt.Errorf("a launch would be refused: recipe %s lacks %s", r.name, app.Count(len(p.Missing), "mod"))
	}
	return nil
}

// recipeSpec is the job that a launch would make of a filled-in recipe; it asks no
// machine.
func recipeSpec(ctx context.Context, a *app.App, o serveOptions, l recipe.Launch) (launcher.Spec, error) {
	o.DryRun, o.ownImage = true, o.Container.Image == ""
	take(&o, l)
	if o.ownImage {
		e, _ := engine.Named(o.Workload)
		o.Container.Image = e.Image
	}
	if err := o.settle(ctx, a); err != nil {
		return launcher.Spec{}, err
	}
	return launch.Spec(a, o.Options)
}

// machinesOfSpec is what each machine of a job runs, while it is not known which machines
// those are.
func machinesOfSpec(spec launcher.Spec) []planMachine {
	var out []planMachine
	for n := range spec.Nodes {
		m := planMachine{Machine: n}
		for _, st := range spec.Steps() {
			if st.Where == launcher.OnHead && n > 0 || st.Where == launcher.OnRest && n == 0 {
				continue
			}
			m.Steps = append(m.Steps, planStepOf(st, map[launcher.Ref]int{launcher.NodeRank: n, launcher.NodeCount: spec.Nodes}))
		}
		out = append(out, m)
	}
	return out
}

func planStepOf(st launcher.Stage, known map[launcher.Ref]int) planStep {
	step := planStep{Stage: st.Name, Argv: []string{}, Env: []planVar{}}
	for _, v := range st.Command() {
		step.Argv = append(step.Argv, onMachine(v, known))
	}
	for i, v := range st.Env {
		if slices.ContainsFunc(st.Env[i+1:], func(later launcher.Var) bool { return later.Name == v.Name }) {
			continue // this one overrides it
		}
		step.Env = append(step.Env, planVar{v.Name, onMachine(v.Value, known), v.Source})
	}
	if c := st.Container; c != nil {
		step.Image, step.DockerArg = c.Image, c.Args
		if c.ModelCache != launcher.NoModelCache {
			step.ModelCache = c.ModelCache
		}
		for _, m := range c.Mounts {
			step.Mounts = append(step.Mounts, m.String())
		}
	}
	return step
}

// onMachine is a value, as far as it is known from the machine's number alone.
func onMachine(v launcher.Value, known map[launcher.Ref]int) string {
	out := make(launcher.Value, len(v))
	for i, p := range v {
		out[i] = p
		if n, ok := known[p.Ref]; ok {
			out[i] = launcher.Part{Lit: strconv.Itoa(n)}
		}
	}
	return out.String()
}

func showPlan(a *app.App, p recipePlan) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s: %s of %s on %s\n",
		p.Recipe, p.Workload, plain.Text(p.Serve.Model), app.Count(p.Nodes, "machine"))
	if p.Consent != "" {
		fmt.Fprintf(&b, "needs --trust-recipe: %s\n", plain.Text(p.Consent))
	}
	for _, m := range p.Missing {
		fmt.Fprintf(&b, "missing: %s\n", plain.Text(m))
	}
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "note: %s\n", plain.Text(n.String()))
	}
	for _, m := range p.Machines {
		fmt.Fprintf(&b, "\nmachine %d\n", m.Machine)
		for _, s := range m.Steps {
			s.show(&b)
		}
	}
	_, err := b.WriteTo(a.Out)
	return err
}

func (s planStep) show(b *bytes.Buffer) {
	fmt.Fprintf(b, "  %s", s.Stage)
	if s.Image != "" {
		fmt.Fprintf(b, " in %s", plain.Text(s.Image))
	}
	fmt.Fprintln(b)
	if s.ModelCache != "" {
		fmt.Fprintf(b, "    models of %s\n", plain.Text(s.ModelCache))
	}
	for _, m := range s.Mounts {
		fmt.Fprintf(b, "    mount %s\n", plain.Text(m))
	}
	for _, d := range s.DockerArg {
		fmt.Fprintf(b, "    docker %s\n", plain.Text(d))
	}
	fmt.Fprintf(b, "    $ %s\n", flagLines(s.Argv))
	width := 0
	for _, v := range s.Env {
		if n := len(v.Name) + 1 + len(app.Quote(v.Value)); n <= launch.Widest {
			width = max(width, n)
		}
	}
	for _, v := range s.Env {
		fmt.Fprintf(b, "    %-*s  # %s\n", width, plain.Text(v.Name+"="+app.Quote(v.Value)), v.Source)
	}
}

// flagLines puts each flag of a command, with its values, on a line of its own.
func flagLines(argv []string) string {
	var b strings.Builder
	for i, w := range argv {
		switch {
		case i == 0:
		case strings.HasPrefix(w, "-"):
			b.WriteString(" \\\n        ")
		default:
			b.WriteString(" ")
		}
		b.WriteString(plain.Text(app.Quote(w)))
	}
	return b.String()
}
