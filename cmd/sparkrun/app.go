package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/help"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous/discover"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// app is what the commands touch of the world outside; tests give their own.
type app struct {
	in             io.Reader
	out, err       io.Writer
	outTTY, errTTY bool
	environ        []string
	getwd          func() (string, error)
	version        string

	// columns gives the terminal's width; evidence and survey read this machine
	// where no agent does.
	columns  func() int
	survey   func(context.Context) (envgen.Inventory, error)
	evidence func(context.Context, func(wire.Evidence) error) error

	// find and browseSSH listen for clusters, and for hosts, that announce themselves.
	find      func(context.Context, node.Config) (node.Finding, error)
	browseSSH func(context.Context) ([]discover.Instance, error)

	context    string          // --context
	dial       func() *backend // the cluster of the context, else this machine's
	dialHere   func() *backend // this machine's agent, whatever the context
	standalone func() (*backend, error)
	signals    func() (c <-chan os.Signal, stop func())
}

// nouns are the headings under which help lists the commands.
var nouns = help.Nouns{
	{Title: "Jobs", Commands: "launch run ps logs attach exec stop service recipe"},
	{Title: "Cluster", Commands: "up init join status version token node leave down agent mark-dead takeover raft"},
	{Title: "Network", Commands: "doctor fabric netplan nccl-test env report"},
	{Title: "Remote", Commands: "login logout context client"},
}

// group makes a command that only holds others: alone it shows its help, and a
// word it does not know is an error with a suggestion.
func group(cmd *cobra.Command) {
	cmd.Args, cmd.SuggestionsMinimumDistance = cobra.ArbitraryArgs, 2
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		near := ""
		s := cmd.SuggestionsFor(args[0])
		for _, c := range cmd.Commands() { // what others call it is surer than what looks like it
			if slices.Contains(c.SuggestFor, args[0]) {
				s = []string{c.Name()}
			}
		}
		if len(s) > 0 {
			near = fmt.Sprintf(": did you mean %s?", strings.Join(s, " or "))
		}
		return usagef("unknown command %q for %s%s", args[0], cmd.CommandPath(), near)
	}
}

// takes checks the number of arguments; what names them.
func takes(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) > n:
			return usagef("unexpected argument %q", args[n])
		case len(args) < n:
			return usagef("%s is missing", what)
		}
		return nil
	}
}

// running gives a command's function a context that ends with Ctrl-C.
func running[O any](a *app, opts *O, run func(context.Context, O) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		ctx, stop := stoppable(cmd.Context())
		defer stop()
		err := run(ctx, *opts)
		if ctx.Err() != nil && err != nil {
			return exits(exitOf(os.Interrupt), nil)
		}
		return err
	}
}

// say prints one of sparkrun's own lines. Names, recipes and other machines' words are in it, and none of them
// moves the terminal's cursor.
func (a *app) say(line string) { fmt.Fprintln(a.err, "sparkrun: "+plain.Text(line)) }

// colour tells whether to colour a stream: https://no-color.org.
func (a *app) colour(tty bool) bool {
	no, _ := a.getenv("NO_COLOR")
	term, _ := a.getenv("TERM")
	return tty && no == "" && term != "dumb"
}

func (a *app) getenv(name string) (string, bool) {
	for _, kv := range a.environ {
		if k, v, _ := strings.Cut(kv, "="); k == name {
			return v, true
		}
	}
	return "", false
}

// table prints rows in columns.
func (a *app) table(rows [][]string) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 3, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(w, strings.Join(r, "\t"))
	}
	return w.Flush()
}

// object prints one JSON value, indented for people as jq would.
func (a *app) object(v any) error {
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
