package cluster

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous/remote"
)

type contextOptions struct {
	name string
	json bool
}

// NewContextCmd makes `sparkrun context`.
func NewContextCmd(a *app.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:        "context",
		Aliases:    []string{"contexts"},
		SuggestFor: []string{"config"},
		Short:      "Choose which cluster commands use",
		Long: `A context is a cluster that this machine has logged in to: sparkrun login. Commands
use --context NAME, else the variable SPARKRUN_CONTEXT, else the current context; local,
and none of these, is this machine's own agent.`,
		Example: "  sparkrun context list\n  sparkrun context use lab\n  sparkrun --context lab ps\n  sparkrun " +
			"context use local",
	}
	app.Group(cmd)
	opts := &contextOptions{}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"},
		Short:   "List the contexts",
		Long:    "Lists the clusters that this machine has logged in to; * is the one that commands use.",
		Example: "  sparkrun context list\n  sparkrun context list --json | jq -r '.[].name'",
		Args:    app.Takes(0, ""),
		RunE:    app.Running(a, opts, listContexts),
	}
	list.Flags().BoolVar(&opts.json, "json", false, "print JSON")
	current := &cobra.Command{
		Use: "current", Aliases: []string{"show"},
		Short:   "Print the name of the context that commands use",
		Long:    "Prints the name of the context that commands use: local is this machine's own agent.",
		Example: "  sparkrun context current",
		Args:    app.Takes(0, ""),
		RunE:    app.Running(a, opts, showContext),
	}
	named := func(use, alias, short, long, example string,
		run func(context.Context, *app.App, contextOptions) error) *cobra.Command {
		c := &cobra.Command{Use: use, Short: short, Long: long, Example: example, Args: app.Takes(1, "the context"),
			ValidArgsFunction: a.CompleteContext}
		if alias != "" {
			c.Aliases = []string{alias}
		}
		c.RunE = func(cmd *cobra.Command, args []string) error {
			opts.name = args[0]
			return app.Running(a, opts, run)(cmd, args)
		}
		return c
	}
	cmd.AddCommand(list, current,
		named("use NAME", "", "Make a context the current one",
			"Has commands use this context from now on; local is this machine's own agent.",
			"  sparkrun context use lab", useContext),
		named("remove NAME", "rm", "Remove a context's key from this machine",
			`Removes the key and certificate of a context from this machine and tells nobody:
sparkrun logout has the cluster take the machine off its list as well.`, "  sparkrun context remove lab",
			removeContext))
	return cmd
}

// contextOf is a context as --json prints it.
type contextOf struct {
	Name    string   `json:"name"`
	Current bool     `json:"current"`
	User    string   `json:"user"`
	Cluster string   `json:"cluster"`
	Hosts   []string `json:"hosts"`
	Error   string   `json:"error,omitempty"`
}

func listContexts(_ context.Context, a *app.App, o contextOptions) error {
	all, err := a.Contexts()
	if err != nil {
		return err
	}
	names, err := all.List()
	if err != nil {
		return err
	}
	used, _, err := a.Chosen()
	if err != nil {
		a.Say(err.Error())
	}
	out := []contextOf{}
	rows := [][]string{{"", "CONTEXT", "USER", "CLUSTER", "MACHINES"}}
	for _, name := range names {
		c := contextOf{Name: name, Current: name == used}
		st, err := remote.Read(all.Folder(name))
		if err != nil {
			c.Error = err.Error()
			a.Say("context " + name + ": " + c.Error)
		}
		c.User, c.Cluster = st.User, st.Cluster
		for _, m := range st.Members {
			c.Hosts = append(c.Hosts, m.Host)
		}
		out = append(out, c)
		mark := ""
		if c.Current {
			mark = "*"
		}
		rows = append(rows, []string{mark, name, cmp.Or(c.User, "-"), cmp.Or(c.Cluster, "-"), fmt.Sprint(len(c.Hosts))})
	}
	if o.json {
		return a.Object(out)
	}
	return a.Table(rows)
}

func showContext(_ context.Context, a *app.App, _ contextOptions) error {
	name, _, err := a.Chosen()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.Out, cmp.Or(name, app.LocalContext))
	return err
}

func useContext(_ context.Context, a *app.App, o contextOptions) error {
	all, err := a.Contexts()
	if err != nil {
		return err
	}
	if o.name != app.LocalContext {
		if err := all.Has(o.name); err != nil {
			return err
		}
	}
	return all.Use(o.name)
}

func removeContext(_ context.Context, a *app.App, o contextOptions) error {
	all, err := a.Contexts()
	if err == nil {
		err = app.CheckContextName(o.name)
	}
	if err == nil {
		err = all.Has(o.name)
	}
	if err != nil {
		return err
	}
	return all.Forget(o.name)
}
