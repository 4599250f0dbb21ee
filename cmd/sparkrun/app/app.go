// Package app decides what commands share: streams, the cluster they talk to and how it
// is chosen, flags' values, shell completion, and the errors that carry an exit code.
//
// It must not know a command, nor start or follow a job.
package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/help"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous/discover"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// App is what the commands use of the outside world; tests provide their own.
type App struct {
	In             io.Reader
	Out, Err       io.Writer
	OutTTY, ErrTTY bool
	Environ        []string
	Getwd          func() (string, error)
	Version        string
	Shim           []byte // the shim's program, for the agent; nil: none was built in

	// YAML: what is printed for programs is YAML, by -o yaml.
	YAML bool

	// Columns gives the terminal's width, Rows its height (nil or 0: not known); evidence and survey read this machine where no
	// agent runs.
	Columns  func() int
	Rows     func() int
	Survey   func(context.Context) (envgen.Inventory, error)
	Evidence func(context.Context, func(wire.Evidence) error) error

	// Find and browseSSH listen for clusters and hosts that announce themselves.
	Find      func(context.Context, node.Config) (node.Finding, error)
	BrowseSSH func(context.Context) ([]discover.Instance, error)

	Context    string                                         // --context
	Dial       func() *wire.Client                            // the cluster of the context, or this machine's
	DialHere   func() *wire.Client                            // this machine's agent, whatever the context
	Standalone func() (c *wire.Client, end func(), err error) // this machine alone, by an agent in this process
	Signals    func() (c <-chan os.Signal, stop func())
}

// Group makes a command that only has subcommands: alone it shows its help, and an
// unknown word is an error with a suggestion.
func Group(cmd *cobra.Command) {
	cmd.Args, cmd.SuggestionsMinimumDistance = cobra.ArbitraryArgs, 2
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		near := ""
		if !cmd.HasParent() {
			near = "; `sparkrun help` lists the commands, `sparkrun help habits` what they are called elsewhere"
		}
		s := cmd.SuggestionsFor(args[0])
		for _, c := range cmd.Commands() { // a synonym that we list is a better guess than a similar word
			if slices.Contains(c.SuggestFor, args[0]) {
				s = []string{c.Name()}
			}
		}
		if len(s) > 0 {
			near = fmt.Sprintf(": did you mean %s?", strings.Join(s, " or "))
		}
		for _, c := range cmd.Commands() { // vllm, for launch vllm
			if sub, _, err := c.Find(args); err == nil && sub != c && !cmd.HasParent() && c.Name() == "launch" {
				near = fmt.Sprintf(": did you mean `sparkrun launch %s`?", args[0])
			}
		}
		group := strings.Fields(cmd.CommandPath())[1:]
		if known := help.HabitOfCommand(group, args); known != "" {
			near = ": " + known + "; `sparkrun help habits` has more"
		}
		return Usagef("unknown command %q for %s%s", args[0], cmd.CommandPath(), near)
	}
}

// Takes checks the number of arguments; what describes them in the error.
func Takes(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) > n:
			return Usagef("unexpected argument %q", args[n])
		case len(args) < n:
			return Usagef("%s is missing", what)
		}
		return nil
	}
}

// TakesJob is Takes for one job.
func TakesJob(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return Usagef("the job is missing: `sparkrun ps --all` lists them")
	}
	return Takes(1, "")(nil, args)
}

// Running gives a command's function a context that ends with Ctrl-C.
func Running[O any](a *App, opts *O, run func(context.Context, *App, O) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		ctx, stop := Stoppable(cmd.Context())
		defer stop()
		err := run(ctx, a, *opts)
		if ctx.Err() != nil && err != nil {
			return Exits(ExitOf(os.Interrupt), nil)
		}
		return err
	}
}

// Say prints one of sparkrun's own lines. It may contain names, recipes and texts of
// other machines, so control characters that would move the terminal's cursor are
// removed.
func (a *App) Say(line string) { fmt.Fprintln(a.Err, "sparkrun: "+plain.Text(line)) }

// Colour tells whether to colour a stream: https://no-color.org.
func (a *App) Colour(tty bool) bool {
	no, _ := a.Getenv("NO_COLOR")
	term, _ := a.Getenv("TERM")
	return tty && no == "" && term != "dumb"
}

// Getenv reads a variable of the caller's environment.
func (a *App) Getenv(name string) (string, bool) {
	for _, kv := range a.Environ {
		if k, v, _ := strings.Cut(kv, "="); k == name {
			return v, true
		}
	}
	return "", false
}

// Table prints rows in columns.
func (a *App) Table(rows [][]string) error {
	_, err := io.WriteString(a.Out, TableText(rows))
	return err
}

// TableText are rows in columns.
func TableText(rows [][]string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(w, strings.Join(r, "\t"))
	}
	w.Flush() //nolint:errcheck // memory takes all
	return b.String()
}

// Fit leaves columns out, the first of these first, until the rows are as narrow as that; 0: they may be as wide as they
// are.
func Fit(rows [][]string, width int, leftOut []string) [][]string {
	const gap = 3 // of TableText
	for next := 0; width > 0 && next < len(leftOut); next++ {
		wide := -gap
		for i := range rows[0] {
			most := 0
			for _, r := range rows {
				most = max(most, utf8.RuneCountInString(r[i]))
			}
			wide += most + gap
		}
		if wide <= width {
			break
		}
		if i := slices.Index(rows[0], leftOut[next]); i >= 0 {
			narrow := make([][]string, len(rows))
			for k, r := range rows {
				narrow[k] = slices.Delete(slices.Clone(r), i, i+1)
			}
			rows = narrow
		}
	}
	return rows
}

// Height is the terminal's; 0: not known.
func (a *App) Height() int {
	if a.Rows == nil {
		return 0
	}
	return a.Rows()
}

// Object prints one JSON value, indented for people as jq would, or as YAML.
func (a *App) Object(v any) error {
	text, err := a.ObjectText(v)
	if err == nil {
		_, err = io.WriteString(a.Out, text)
	}
	return err
}

// ObjectText is what Object prints.
func (a *App) ObjectText(v any) (string, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil || !a.YAML {
		return b.String(), err
	}
	var n yaml.Node // JSON is YAML, so that keys and their order are the same
	if err := yaml.Unmarshal(b.Bytes(), &n); err != nil {
		return "", err
	}
	inBlocks(&n)
	b.Reset()
	y := yaml.NewEncoder(&b)
	y.SetIndent(2) //nolint:mnd // as kubectl
	err := y.Encode(&n)
	return b.String(), err
}

// inBlocks takes JSON's braces and quotes away where YAML needs none.
func inBlocks(n *yaml.Node) {
	n.Style = 0
	for _, c := range n.Content {
		inBlocks(c)
	}
}

// WriteFile writes to a file, or to standard output where the name is "-".
func (a *App) WriteFile(name string, content []byte) error {
	if name == "-" {
		_, err := a.Out.Write(content)
		return err
	}
	if err := os.WriteFile(name, content, 0o644); err != nil {
		return fmt.Errorf("write %s: %w", name, errors.Unwrap(err))
	}
	return nil
}
