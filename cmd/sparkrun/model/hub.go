package model

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// NewModelCmd makes `sparkrun model`.
func NewModelCmd(a *app.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "model",
		Aliases: []string{"models"},
		Short:   "Fetch models once, and have them on every machine",
		Long: `Each machine keeps models in one cache, in the layout of Hugging Face's own tools.
A model comes from outside once, over one machine, and goes on from machine to
machine over the fabric while it arrives.`,
		Example: "  sparkrun model pull Qwen/Qwen3-8B --all\n  sparkrun model ls",
	}
	app.Group(cmd)
	cmd.AddCommand(newPullCmd(a), newLsCmd(a), newVerifyCmd(a), newRmCmd(a), newAddCmd(a))
	return cmd
}

// typeFlag binds --type.
func typeFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().Var(app.Choice{V: to, Words: []string{modelcache.Model, modelcache.Dataset}}, "type",
		"what the repository holds: `model` or dataset")
	app.CompleteWords(cmd, "type")
}

// onFlag binds --on.
func onFlag(a *app.App, cmd *cobra.Command, to *[]string, what string) {
	cmd.Flags().StringSliceVar(to, "on", nil, what)
	app.CompleteFlag(cmd, "on", a.CompleteHosts)
}

func jsonFlag(fs *pflag.FlagSet, to *bool, what string) { fs.BoolVar(to, "json", false, what) }

// named reads ORG/NAME, ORG/NAME@REVISION.
func named(text string, repo *wire.ModelRepo, revision *string) error {
	name, rev, has := strings.Cut(text, "@")
	name = strings.TrimPrefix(name, "https://huggingface.co/")
	var dataset bool
	if repo.Name, dataset = strings.CutPrefix(name, "datasets/"); dataset {
		repo.Type = modelcache.Dataset
	}
	if has && rev == "" {
		return app.Usagef("%s: want a branch, a tag or a commit behind the @", text)
	}
	if *revision = rev; rev != "" && (strings.HasPrefix(rev, "-") || strings.ContainsAny(rev, " \t\n")) {
		return app.Usagef("%s: %q is no revision", text, rev)
	}
	if _, err := repo.Cached(); err != nil {
		return app.Usagef("%q is no model: want ORG/NAME, as on the Hub", text)
	}
	return nil
}

// short is a commit as people read it.
func short(commit string) string { return commit[:min(len(commit), 10)] }
