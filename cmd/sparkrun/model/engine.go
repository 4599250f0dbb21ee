package model

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/help"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/launch"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

// NewEngineCmd makes `sparkrun launch NAME` for an engine.
func NewEngineCmd(a *app.App, e engine.Engine, opts *launch.Options, run launch.Starter) *cobra.Command {
	o := &serveOptions{}
	cmd := &cobra.Command{
		Use: e.Name + " [flags] " + e.Help.Args, Short: e.Help.Short, Long: e.Help.Long, Example: e.Help.Example,
		Args: cobra.ArbitraryArgs,
		RunE: o.run(a, opts, run),
	}
	chapters := "serving"
	if len(e.Recipes.Commands) > 0 {
		chapters += " recipes"
	}
	if e.Image != "" {
		chapters += " containers"
	}
	cmd.Annotations = map[string]string{help.OwnChapters: chapters}
	bindServe(cmd, o, opts)
	if e.Backends != nil {
		bindBackend(cmd, opts)
	}
	if len(e.Recipes.Commands) > 0 {
		bindRecipe(a, cmd, &o.recipe)
	}
	fs := cmd.Flags()
	fs.StringVar(&opts.Request.Serve.Program, e.Program.Name, "", e.Program.Usage)
	for _, o := range e.Options {
		if o.Text != nil {
			fs.StringVar(o.Text(&opts.Request), o.Name, "", o.Usage)
		} else {
			fs.StringArrayVar(o.List(&opts.Request), o.Name, nil, o.Usage)
		}
	}
	if e.Image == "" {
		fs.Lookup("runtime").Usage = "run it on the host, or in a container (default: host, but with an image)"
	}
	fs.Lookup("port").Usage = fmt.Sprintf("the port of its API (default: %d)", e.Port)
	for name, usage := range e.Usages {
		fs.Lookup(name).Usage = usage
	}
	return cmd
}
