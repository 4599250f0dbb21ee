package main

import (
	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/job"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/launch"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/model"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/network"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

// newLaunchCommands is launch with all workloads. Tests have them run by their own.
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
