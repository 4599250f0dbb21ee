package main

import (
	"errors"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/bench"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/cluster"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/gateway"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/help"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/image"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/job"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/launch"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/model"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/network"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/notify"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/overview"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

func newRootCmd(a *app.App) *cobra.Command {
	root := &cobra.Command{
		Use:   "sparkrun",
		Short: "Run jobs on several DGX Sparks as on one machine",
		Long: `sparkrun joins machines to a cluster and starts programs on all of them at once,
each with the rank, the addresses and the network settings it needs.

From a machine with an ssh login on each: sparkrun up. Or by hand: on the first
machine sparkrun init, then the agent; on every other sparkrun join, which starts it.
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
	app.Group(root)
	showVersion, alone := root.Flags().BoolP("version", "v", false, "version for sparkrun"), root.RunE
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if *showVersion && len(args) == 0 {
			return cluster.PrintVersion(cmd.Context(), a, cluster.VersionOptions{})
		}
		return alone(cmd, args)
	}
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if words := cmd.Flags().Args(); len(words) > 0 && cmd.HasSubCommands() {
			return cmd.RunE(cmd, words) // the command is what is unknown, and its flags are not ours
		}
		return app.Usagef("%s%s", plainly(err), elsewhere(cmd, err))
	})
	root.PersistentFlags().StringVar(&a.Context, "context", "", "the cluster to use, of those of sparkrun context list")
	app.CompleteFlag(root, "context", a.CompleteContext)
	root.PersistentPreRunE = a.CheckContext
	pager, _ := a.Getenv("PAGER")
	help.Install(root, nouns(a), help.Output{TTY: a.OutTTY, Pager: pager, Usage: app.Usagef})
	for _, path := range [][]string{
		{"init"}, {"join"}, {"up"}, {"down"}, {"agent"}, {"token"}, {"leave"}, {"takeover"}, {"raft", "restore"},
		{"raft", "inspect"},
		{"login"},
	} {
		if cmd, _, err := root.Find(path); err == nil {
			app.AboutThisMachine(cmd)
		}
	}
	return root
}

// nouns are all commands, the most used ones of a heading first.
func nouns(a *app.App) help.Nouns {
	return help.Nouns{
		{Title: "Jobs", Commands: []*cobra.Command{
			newLaunchCommands(a, launch.Run), model.NewRunCmd(a, launch.Run), job.NewPsCmd(a), job.NewLogsCmd(a),
			job.NewWhyCmd(a), job.NewAttachCmd(a), job.NewExecCmd(a), job.NewStopCmd(a), job.NewServiceCmd(a), gateway.NewCmd(a),
			model.NewRecipeCmd(a), model.NewModelCmd(a), image.NewImageCmd(a), bench.NewCmd(a),
		}},
		{Title: "Cluster", Commands: []*cobra.Command{
			cluster.NewUpCmd(a), cluster.NewInitCmd(a), cluster.NewJoinCmd(a), overview.NewStatusCmd(a),
			overview.NewTopCmd(a), cluster.NewWebCmd(a),
			cluster.NewVersionCmd(a), cluster.NewTokenCmd(a), cluster.NewNodeCmd(a), cluster.NewLeaveCmd(a),
			cluster.NewDownCmd(a), cluster.NewAgentCmd(a), cluster.NewMarkDeadCmd(a), cluster.NewTakeoverCmd(a),
			cluster.NewRaftCmd(a), notify.NewCmd(a),
		}},
		{Title: "Network", Commands: []*cobra.Command{
			cluster.NewDoctorCmd(a), network.NewFabricCmd(a), network.NewNetplanCmd(a), network.NewNCCLTestGroupCmd(a),
			network.NewEnvCmd(a), network.NewReportCmd(a),
		}},
		{Title: "Remote", Commands: []*cobra.Command{
			cluster.NewLoginCmd(a), cluster.NewLogoutCmd(a), cluster.NewContextCmd(a), cluster.NewClientCmd(a),
		}},
	}
}

// plainly says that a value is no number, in place of strconv's text.
func plainly(err error) string {
	text := err.Error()
	if bad, ok := errors.AsType[*strconv.NumError](err); ok {
		text = strings.Replace(text, bad.Error(), "want a whole number: "+bad.Err.Error(), 1)
	}
	return text
}

// elsewhere says what a flag that a command does not have is here, by its engine's row and the chapter habits.
func elsewhere(cmd *cobra.Command, err error) string {
	command, launches := strings.TrimPrefix(cmd.CommandPath(), "sparkrun "), isLaunch(cmd)
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return after(": ", help.HabitOfFlag(command, "--"+bad.GetFlag().Name+" "+bad.GetValue(), launches))
	}
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	switch {
	case !ok:
		return ""
	case command == "exec":
		return ": what belongs to the command comes behind --: sparkrun exec JOB -- COMMAND"
	}
	word := "--" + unknown.GetSpecifiedName()
	if short := unknown.GetSpecifiedShortnames(); short != "" {
		word = "-" + short
	}
	e, serves := engine.Named(cmd.Name())
	if serves {
		if said := e.Instead(word); said != "" {
			return ": " + said
		}
	}
	said := help.HabitOfFlag(command, word, launches)
	if said == "" {
		said = nearFlag(cmd, word)
	}
	switch {
	case serves:
		said += "; the server's own flags come behind --: sparkrun launch " + e.Name + " MODEL -- " + word
	case command == "run":
		said += "; -o NAME=VALUE gives a recipe's value another; a server's own flags come behind --"
	case said == "" && launches:
		said = "`sparkrun help habits` has what other tools' flags are here"
	}
	return after(": ", strings.TrimPrefix(said, "; "))
}

// after is text behind a sign, and nothing where there is no text.
func after(sign, text string) string {
	if text == "" {
		return ""
	}
	return sign + text
}

// nearFlag names the flags of a command that one may have been meant for.
func nearFlag(cmd *cobra.Command, word string) string {
	const least = 5 // shorter ones are near to too many
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, "--"+f.Name)
		}
	})
	meant := help.Near(names, word)
	if len(word) < least || len(meant) == 0 {
		return ""
	}
	return "did you mean " + strings.Join(meant, " or ") + "?"
}

// newLaunchCommands is launch with all workloads. Tests pass their own run.
func newLaunchCommands(a *app.App, run launch.Starter) *cobra.Command {
	opts := &launch.Options{}
	cmd := launch.NewCmd(a, opts)
	cmd.AddCommand(
		job.NewLaunchExecCmd(a, opts, run),
		network.NewIBTestCmd(a, opts),
		job.NewMPICmd(a, opts, run),
		network.NewNCCLTestCmd(a, opts),
		job.NewRayCmd(a, opts, run),
		job.NewTorchrunCmd(a, opts, run),
	)
	for _, e := range engine.All() {
		cmd.AddCommand(model.NewEngineCmd(a, e, opts, run))
	}
	return cmd
}
