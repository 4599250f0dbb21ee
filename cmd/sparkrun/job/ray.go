package job

import (
	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/launch"
)

// NewRayCmd makes `sparkrun launch ray`.
func NewRayCmd(a *app.App, opts *launch.Options, run launch.Starter) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ray [flags] [-- COMMAND [ARG...]]",
		Short: "Run a Ray cluster, or a command on one",
		Long: `Starts Ray's head on the first machine, then a worker on each other one, then waits
until Ray itself sees them all. With COMMAND that runs on the head's machine then, with
RAY_ADDRESS set, and the job ends with its code. Without one the cluster is there until
it is stopped, and launch prints how to reach it.

Every machine needs Ray at the same path, or with --image that image. sparkrun help ray
tells of ports, tokens, and what comes back when a worker is lost.`,
		Example: `  sparkrun launch ray --nodes 3 -- python3 train.py
  sparkrun launch ray -d --name cluster --nodes 2 --max-restarts 3
  sparkrun launch ray --nodes 3 --image rayproject/ray:2.60.0 -- python3 -m pkg.train
  sparkrun exec cluster -- ray job submit -- python3 -c 'import ray; ray.init(); print(ray.nodes())'`,
		Args: cobra.ArbitraryArgs,
		RunE: launch.WorkloadRun(a, opts, run),
	}
	fs := cmd.Flags()
	fs.SetInterspersed(false) // flags after the command belong to it
	fs.StringVar(&opts.Request.Ray.Program, "ray", "", "the `PROGRAM` ray (default: $VIRTUAL_ENV/bin/ray, else ray)")
	fs.Uint16Var(&opts.Request.Ray.Port, "port", 0, "the head's `PORT`, in RAY_ADDRESS (default: one that is free)")
	fs.Uint16Var(&opts.Request.Ray.DashboardPort, "dashboard-port", 0,
		"the `PORT` of the dashboard, on the head machine's loopback (default: one that is free)")
	fs.BoolVar(&opts.Request.Ray.Whole, "restart-all", false,
		"with --max-restarts: start all of it anew where a worker is lost, not that worker alone")
	fs.StringArrayVar(&opts.Request.Ray.Args, "ray-arg", nil,
		"a further `ARGUMENT` of each ray start, such as --num-cpus=4; repeat for more")
	fs.StringArrayVar(&opts.Request.Ray.HeadArgs, "ray-head-arg", nil,
		"a further `ARGUMENT` of the head's ray start, such as --include-dashboard=false; repeat for more")
	return cmd
}
