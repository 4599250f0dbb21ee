package gateway

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/plain"
)

type aliasLsOptions struct{ json bool }

func newAliasLsCmd(a *app.App) *cobra.Command {
	opts := &aliasLsOptions{}
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the further names of models",
		Long: `Lists the aliases, and the model that each stands for.

--json prints an object: the models by alias.`,
		Example: `  sparkrun gateway alias ls`,
		Args:    app.Takes(0, ""),
		RunE:    app.Running(a, opts, listAliases),
	}
	cmd.Flags().BoolVar(&opts.json, "json", false, "print JSON")
	return cmd
}

func listAliases(ctx context.Context, a *app.App, o aliasLsOptions) error {
	b := a.Dial()
	defer b.Close()
	g, err := show(ctx, b)
	if err != nil {
		return err
	}
	if g.Aliases == nil {
		g.Aliases = map[string]string{}
	}
	if o.json {
		return a.Object(g.Aliases)
	}
	rows := [][]string{{"ALIAS", "MODEL"}}
	for _, name := range aliasesOf(g) {
		rows = append(rows, []string{plain.Text(name), plain.Text(g.Aliases[name])})
	}
	return a.Table(rows)
}
