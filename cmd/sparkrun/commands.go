package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/workloads/engine"
)

// newLaunchCommands is launch with all workloads. Tests have them run by their own.
func newLaunchCommands(a *app, run starter) *cobra.Command {
	opts := &launchOptions{}
	cmd := newLaunchCmd(a, opts)
	cmd.AddCommand(
		newLaunchExecCmd(a, opts, run),
		newIBTestCmd(a, opts, run),
		newLaunchMPICmd(a, opts, run),
		newNCCLTestCmd(a, opts, run),
		newLaunchRayCmd(a, opts, run),
		newTorchrunCmd(a, opts, run),
	)
	for _, e := range engine.All() {
		cmd.AddCommand(newEngineCmd(a, e, opts, run))
	}
	return cmd
}

// start runs a workload's command: some ask, or watch, where others just launch.
func start(ctx context.Context, a *app, o launchOptions) error {
	switch {
	case o.workload == "mpi":
		return startMPI(ctx, a, o)
	case o.workload == ncclTestName:
		return a.startNCCLTest(ctx, o)
	case o.workload == ibTestName:
		return a.ibTest(ctx, o)
	case engine.Serves(o.workload):
		return serve(ctx, a, o)
	}
	return a.launch(ctx, o)
}
