package job

import (
	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/launch"
)

// NewLaunchExecCmd makes `sparkrun launch exec`.
func NewLaunchExecCmd(a *app.App, opts *launch.Options, run launch.Starter) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec [flags] -- COMMAND [ARG...]",
		Short: "Run any program, once a rank",
		Long: `Runs COMMAND on the chosen machines, once a rank. It is not given to a shell: write
sh -c '...' where one is meant. Flags come before the command. It gets the same
variables as a torch worker. With --serve it is a service: sparkrun help serving.`,
		Example: `  sparkrun launch exec --nodes 3 -- hostname
  sparkrun launch exec --nodes 2 -- sh -c 'echo I am $RANK of $WORLD_SIZE'
  sparkrun launch exec -d --name nightly --on spark2 -- ./nightly.sh
  sparkrun launch exec --name llm --serve 8080 --health /health --autostart -- llama-server --host 0.0.0.0 -m /models/m.gguf
  sparkrun launch exec --nodes 2 --image ubuntu:24.04 --mount /data:/data:ro -- ls /data`,
		Args: cobra.ArbitraryArgs,
		RunE: launch.WorkloadRun(a, opts, run),
	}
	cmd.Flags().SetInterspersed(false) // flags after the command belong to it
	launch.AddServeFlags(cmd, &opts.Service)
	return cmd
}
