package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/node"
)

type contextOptions struct {
	name string
	json bool
}

func newContextCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:        "context",
		Aliases:    []string{"contexts"},
		SuggestFor: []string{"config"},
		Short:      "Choose which cluster commands use",
		Long: `A context is a cluster that this machine has logged in to: sparkrun login. Commands
use --context NAME, else the variable SPARKRUN_CONTEXT, else the current context; local,
and none of these, is this machine's own agent.`,
		Example: "  sparkrun context list\n  sparkrun context use lab\n  sparkrun --context lab ps\n  sparkrun context use local",
	}
	group(cmd)
	opts := &contextOptions{}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"},
		Short:   "List the contexts",
		Long:    "Lists the clusters that this machine has logged in to; * is the one that commands use.",
		Example: "  sparkrun context list\n  sparkrun context list --json | jq -r '.[].name'",
		Args:    takes(0, ""),
		RunE:    running(a, opts, a.listContexts),
	}
	list.Flags().BoolVar(&opts.json, "json", false, "print JSON")
	current := &cobra.Command{
		Use: "current", Aliases: []string{"show"},
		Short:   "Print the name of the context that commands use",
		Long:    "Prints the name of the context that commands use: local is this machine's own agent.",
		Example: "  sparkrun context current",
		Args:    takes(0, ""),
		RunE:    running(a, opts, a.showContext),
	}
	named := func(use, alias, short, long, example string, run func(context.Context, contextOptions) error) *cobra.Command {
		c := &cobra.Command{Use: use, Short: short, Long: long, Example: example, Args: takes(1, "the context"), ValidArgsFunction: a.completeContext}
		if alias != "" {
			c.Aliases = []string{alias}
		}
		c.RunE = func(cmd *cobra.Command, args []string) error {
			opts.name = args[0]
			return running(a, opts, run)(cmd, args)
		}
		return c
	}
	cmd.AddCommand(list, current,
		named("use NAME", "", "Make a context the current one",
			"Has commands use this context from now on; local is this machine's own agent.", "  sparkrun context use lab", a.useContext),
		named("remove NAME", "rm", "Remove a context's key from this machine",
			`Removes the key and certificate of a context from this machine and tells nobody:
sparkrun logout has the cluster take the machine off its list as well.`, "  sparkrun context remove lab", a.removeContext))
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

func (a *app) listContexts(_ context.Context, o contextOptions) error {
	all, err := a.contexts()
	if err != nil {
		return err
	}
	names, err := all.list()
	if err != nil {
		return err
	}
	used, _, err := a.chosen()
	if err != nil {
		a.say(err.Error())
	}
	out := []contextOf{}
	rows := [][]string{{"", "CONTEXT", "USER", "CLUSTER", "MACHINES"}}
	for _, name := range names {
		c := contextOf{Name: name, Current: name == used}
		st, err := node.ReadRemote(all.folder(name))
		if err != nil {
			c.Error = err.Error()
			a.say("context " + name + ": " + c.Error)
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
		return a.object(out)
	}
	return a.table(rows)
}

func (a *app) showContext(_ context.Context, _ contextOptions) error {
	name, _, err := a.chosen()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.out, cmp.Or(name, localContext))
	return err
}

func (a *app) useContext(_ context.Context, o contextOptions) error {
	all, err := a.contexts()
	if err != nil {
		return err
	}
	if o.name != localContext {
		if err := all.has(o.name); err != nil {
			return err
		}
	}
	return all.use(o.name)
}

func (a *app) removeContext(_ context.Context, o contextOptions) error {
	all, err := a.contexts()
	if err == nil {
		err = checkContextName(o.name)
	}
	if err == nil {
		err = all.has(o.name)
	}
	if err != nil {
		return err
	}
	return all.forget(o.name)
}
