package main

import (
	"errors"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/cluster"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/help"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/job"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/launch"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/model"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/network"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

func newRootCmd(a *app.App) *cobra.Command {
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
	app.Group(root)
	showVersion, alone := root.Flags().BoolP("version", "v", false, "version for sparkrun"), root.RunE
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if *showVersion {
			return cluster.PrintVersion(cmd.Context(), a, cluster.VersionOptions{})
		}
		return alone(cmd, args)
	}
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
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
			job.NewAttachCmd(a), job.NewExecCmd(a), job.NewStopCmd(a), job.NewServiceCmd(a), model.NewRecipeCmd(a),
		}},
		{Title: "Cluster", Commands: []*cobra.Command{
			cluster.NewUpCmd(a), cluster.NewInitCmd(a), cluster.NewJoinCmd(a), cluster.NewStatusCmd(a),
			cluster.NewVersionCmd(a), cluster.NewTokenCmd(a), cluster.NewNodeCmd(a), cluster.NewLeaveCmd(a),
			cluster.NewDownCmd(a), cluster.NewAgentCmd(a), cluster.NewMarkDeadCmd(a), cluster.NewTakeoverCmd(a),
			cluster.NewRaftCmd(a),
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

// elsewhere gives launch's name for a flag of mpirun or srun that it does not have.
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
