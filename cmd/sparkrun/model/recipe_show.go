package model

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/workloads/recipe"
)

type recipeShowOptions struct {
	name string
	json bool
}

func newRecipeShowCmd(a *app.App) *cobra.Command {
	opts := &recipeShowOptions{}
	cmd := &cobra.Command{
		Use:   "show RECIPE",
		Short: "Show a recipe, and what its mods would run",
		Long: `Shows what a recipe says: model, image, machines, values and command, and what of it is
not followed. Of each mod its files are listed, and the script that it runs in the
container before the server starts is shown whole: read it before --trust-recipe.`,
		Example: "  sparkrun recipe show qwen3.5-122b-int4-autoround\n  sparkrun recipe show ./my.yaml --json | " +
			"jq .defaults",
	}
	cmd.Flags().BoolVar(&opts.json, "json", false, "print JSON")
	return onRecipe(a, cmd, opts, &opts.name, showRecipe)
}

// shownRecipe is a recipe as --json shows it.
type shownRecipe struct {
	recipeRow
	Revision string            `json:"model_revision,omitempty"`
	MinNodes int               `json:"min_nodes,omitempty"`
	MaxNodes int               `json:"max_nodes,omitempty"`
	Defaults map[string]string `json:"defaults,omitempty"`
	Env      map[string]string `json:"env,omitempty"`
	Command  string            `json:"command,omitempty"`
	PreExec  []string          `json:"pre_exec,omitempty"`
	Mods     []shownMod        `json:"mods,omitempty"`
	Notes    []recipe.Note     `json:"notes,omitempty"`
}

// shownMod is what a mod would do.
type shownMod struct {
	Name   string   `json:"name"`
	Folder string   `json:"folder,omitempty"`
	Files  []string `json:"files,omitempty"`
	Script string   `json:"script,omitempty"`
	Error  string   `json:"error,omitempty"` // why it could not be read
}

func showRecipe(_ context.Context, a *app.App, o recipeShowOptions) error {
	r, err := findRecipe(a, o.name)
	if err != nil {
		return err
	}
	s := shownRecipe{
		recipeRow: r.row(a.Environ), Revision: r.Revision, MinNodes: r.MinNodes, MaxNodes: r.MaxNodes,
		Defaults: asMap(r.Defaults), Env: asMap(r.Env),
		Command: r.Command, PreExec: r.Setup, Notes: r.Notes,
	}
	for _, mod := range r.Mods {
		s.Mods = append(s.Mods, lookAtMod(a, r, mod))
	}
	if o.json {
		return a.Object(s)
	}
	rows := [][]string{{"recipe", r.name}, {"file", r.file}, {"version", r.Version}}
	for _, row := range [][]string{
		{"about", r.Description}, {"model", strings.TrimSpace(s.Model + " " + r.Revision)}, {"served by", s.Workload},
		{"image", r.Image}, {"machines", machinesOf(r)},
	} {
		if row[1] != "" {
			rows = append(rows, row)
		}
	}
	for _, v := range r.Defaults {
		rows = append(rows, []string{"value", v.Name + "=" + v.Value})
	}
	for _, v := range r.Env {
		rows = append(rows, []string{"variable", v.Name + "=" + v.Value})
	}
	for _, c := range r.Setup {
		rows = append(rows, []string{"first runs", c})
	}
	for i := range rows {
		rows[i][1] = strings.ReplaceAll(plain.Text(rows[i][1]), "\n", " ")
	}
	if err := a.Table(rows); err != nil {
		return err
	}
	var b bytes.Buffer
	if r.Command != "" {
		fmt.Fprintf(&b, "\n%s\n", plain.Text(r.Command))
	}
	for _, m := range s.Mods {
		m.show(&b)
	}
	for _, n := range r.Notes {
		a.Say(n.String())
	}
	_, err = b.WriteTo(a.Out)
	return err
}

func (m shownMod) show(b *bytes.Buffer) {
	if m.Error != "" {
		fmt.Fprintf(b, "\nmod %s: %s\n", plain.Text(m.Name), plain.Text(m.Error))
		return
	}
	fmt.Fprintf(b, "\nmod %s, in %s: %s\nrun.sh, in each container before the server starts:\n", plain.Text(m.Name),
		plain.Text(m.Folder), plain.Text(strings.Join(m.Files, ", ")))
	for line := range strings.Lines(m.Script) {
		fmt.Fprintf(b, "  | %s\n", plain.Text(strings.TrimRight(line, "\r\n")))
	}
}

func machinesOf(r foundRecipe) string {
	switch {
	case r.MinNodes > 0 && r.MinNodes == r.MaxNodes:
		return fmt.Sprint(r.MinNodes)
	case r.MinNodes > 0 && r.MaxNodes > 0:
		return fmt.Sprintf("%d to %d", r.MinNodes, r.MaxNodes)
	case r.MinNodes > 0:
		return fmt.Sprintf("%d or more", r.MinNodes)
	case r.MaxNodes > 0:
		return fmt.Sprintf("at most %d", r.MaxNodes)
	}
	return "any number"
}

func asMap(all []recipe.Setting) map[string]string {
	out := map[string]string{}
	for _, s := range all {
		out[s.Name] = s.Value
	}
	return out
}

// Bounds of what is shown of a mod.
const (
	maxScript   = 1 << 20
	maxModFiles = 200
)

func lookAtMod(a *app.App, r foundRecipe, mod string) shownMod {
	m := shownMod{Name: mod}
	dir, err := modFolder(a, r, mod)
	if err != nil {
		m.Error = err.Error()
		return m
	}
	m.Folder = dir
	script, err := app.ReadFile(filepath.Join(dir, "run.sh"), maxScript)
	if err != nil {
		m.Error = err.Error()
		return m
	}
	m.Script = string(script)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if m.Files = append(m.Files, rel); len(m.Files) > maxModFiles {
			m.Files[maxModFiles] = "..."
			return fs.SkipAll
		}
		return err
	})
	if err != nil {
		m.Error = err.Error()
	}
	return m
}
