package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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

func newRootCmd(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "sparkrun",
		Short: "Run jobs on several DGX Sparks as on one machine",
		Long: `sparkrun joins machines to a cluster and starts programs on all of them at once,
each with the rank, the addresses and the network settings it needs.

From a machine with an ssh login on each: sparkrun up. Or by hand: on the first
machine sparkrun init, then the agent; on every other sparkrun join, then the agent.
From then on any of them can launch, watch and stop jobs, without ssh, and so can a
laptop: sparkrun login. A single machine needs none of this: launch --standalone.

sparkrun exits with 0, or 1 when something went wrong, or 2 when the command line
made no sense. launch exits as its ranks do, and with 125 for its own failures.`,
		Example: `  sparkrun up zeta@spark1 zeta@spark2
  sudo sparkrun init && sudo systemctl start sparkrun
  sparkrun status
  sparkrun launch torchrun --nodes 2 -- train.py --lr 0.1
  sparkrun launch exec --nodes 3 -- hostname`,
	}
	group(root)
	showVersion, alone := root.Flags().BoolP("version", "v", false, "version for sparkrun"), root.RunE
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if *showVersion {
			return a.printVersion(cmd.Context(), versionOptions{})
		}
		return alone(cmd, args)
	}
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usagef("%s%s", plainly(err), elsewhere(cmd, err)) })
	root.PersistentFlags().StringVar(&a.context, "context", "", "the cluster to use, of those of sparkrun context list")
	completeFlag(root, "context", a.completeContext)
	root.PersistentPreRunE = a.checkContext
	root.AddCommand(
		newInitCmd(a),
		newJoinCmd(a),
		newUpCmd(a),
		newDownCmd(a),
		newAgentCmd(a),
		newTokenCmd(a),
		newLeaveCmd(a),
		newNodeCmd(a),
		newLoginCmd(a),
		newLogoutCmd(a),
		newContextCmd(a),
		newClientCmd(a),
		newStatusCmd(a),
		newEnvCmd(a),
		newFabricCmd(a),
		newReportCmd(a),
		newDoctorCmd(a),
		newNetplanCmd(a),
		newLaunchCommands(a, start),
		newRunCmd(a, serve),
		newRecipeCmd(a),
		newNCCLTestGroupCmd(a),
		newAttachCmd(a),
		newExecCmd(a),
		newPsCmd(a),
		newLogsCmd(a),
		newStopCmd(a),
		newServiceCmd(a),
		newMarkDeadCmd(a),
		newTakeoverCmd(a),
		newRaftCmd(a),
		newVersionCmd(a),
	)
	for _, path := range [][]string{
		{"init"}, {"join"}, {"up"}, {"down"}, {"agent"}, {"token"}, {"leave"}, {"takeover"}, {"raft", "restore"}, {"raft", "inspect"},
		{"login"},
	} {
		if cmd, _, err := root.Find(path); err == nil {
			aboutThisMachine(cmd)
		}
	}
	pager, _ := a.getenv("PAGER")
	help.Install(root, nouns, help.Output{TTY: a.outTTY, Pager: pager, Usage: usagef})
	return root
}

// plainly says of a value that is no number just that.
func plainly(err error) string {
	text := err.Error()
	if bad, ok := errors.AsType[*strconv.NumError](err); ok {
		text = strings.Replace(text, bad.Error(), "want a whole number: "+bad.Err.Error(), 1)
	}
	return text
}

// elsewhere says what a flag of mpirun or srun that launch doesn't have is called here.
func elsewhere(cmd *cobra.Command, err error) string {
	var unknown *pflag.NotExistError
	switch {
	case !errors.As(err, &unknown):
		return ""
	case cmd.CommandPath() == "sparkrun exec":
		return ": what belongs to the command comes behind --: sparkrun exec JOB -- COMMAND"
	case !isLaunch(cmd):
		return ""
	}
	switch unknown.GetSpecifiedName() {
	case "n", "np", "N", "ntasks":
		return ": --nodes is how many machines, torchrun's --nproc-per-node how many ranks on each"
	case "H", "host", "nodelist", "w":
		return ": --on names machines"
	case "x":
		return ": --env K=V sets a variable"
	case "solo":
		return ": --nodes 1 takes one machine"
	case "hosts", "cluster":
		return ": --on names machines, --nodes says how many"
	case "gpu-mem", "gpu-memory-utilization", "max-model-len", "served-model-name", "max-num-seqs":
		return ": -o NAME=VALUE gives a recipe's value another; a server's own flags come behind --"
	}
	return ""
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
