package main

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads"
)

func newLaunchRayCmd(a *app, opts *launchOptions, run starter) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ray [flags] [-- COMMAND [ARG...]]",
		Short: "Run a Ray cluster, or a command on one",
		Long: `Starts Ray's head on the first machine, then a worker on each other one, then waits
until Ray itself sees them all: what is waited for is told as it changes. Where nothing
moves for five minutes the job ends, and says which stage, machine and last lines.

With COMMAND that runs on the head's machine then, with RAY_ADDRESS set, and the job
ends with its code; only its output is shown (logs JOB has Ray's own). Without one
the cluster is there until it is stopped, and launch prints how to reach it.

Every machine needs Ray, at the same path: that of the active virtual environment, else
` + "`ray`" + ` in PATH. It listens on ports that were free a moment before, at the address where
the machines meet; the packet filter lets the job's machines in. Its token is made anew
for each job: Ray refuses who does not have it, and exec gives it to what runs in
a rank's place. The dashboard listens on the head machine's loopback. With --port and
--dashboard-port it is found under numbers that people know; where something else has
one, the launch says what and starts nothing.

A worker or its machine that is lost is told, and the cluster goes on without. With
--max-restarts N it comes back, while the rest runs on: a worker starts again where it
was, one whose machine was booted anew starts there again, N times in all. Should the
head or COMMAND fail, or a worker with --restart-all, the whole of it is started anew.

With --image every machine needs that image with Ray in it instead. Head, worker and
COMMAND run in a container each; those on one machine share /tmp/sparkrun.`,
		Example: `  sparkrun launch ray --nodes 3 -- python3 train.py
  sparkrun launch ray -d --name cluster --nodes 2 --max-restarts 3
  sparkrun launch ray --nodes 3 --image rayproject/ray:2.60.0 -- python3 -m pkg.train
  sparkrun exec cluster -- ray job submit -- python3 -c 'import ray; ray.init(); print(ray.nodes())'`,
		Args: cobra.ArbitraryArgs,
		RunE: workloadRun(a, opts, run),
	}
	fs := cmd.Flags()
	fs.SetInterspersed(false) // the command's flags are its own
	fs.StringVar(&opts.request.Ray.Program, "ray", "", "the `PROGRAM` ray (default: $VIRTUAL_ENV/bin/ray, else ray)")
	fs.Uint16Var(&opts.request.Ray.Port, "port", 0, "the head's `PORT`, in RAY_ADDRESS (default: one that is free)")
	fs.Uint16Var(&opts.request.Ray.DashboardPort, "dashboard-port", 0, "the `PORT` of the dashboard, on the head machine's loopback (default: one that is free)")
	fs.BoolVar(&opts.request.Ray.Whole, "restart-all", false, "with --max-restarts: start all of it anew where a worker is lost, not that worker alone")
	fs.StringArrayVar(&opts.request.Ray.Args, "ray-arg", nil, "a further `ARGUMENT` of each ray start, such as --num-cpus=4; repeat for more")
	fs.StringArrayVar(&opts.request.Ray.HeadArgs, "ray-head-arg", nil, "a further `ARGUMENT` of the head's ray start, such as --include-dashboard=false; repeat for more")
	return cmd
}

// rayToken makes the secret of a Ray cluster, unless the user brings one.
func rayToken(spec *launcher.Spec) ([]wire.Plain, error) {
	if spec.Stages[0].Name != workloads.RayHead || slices.ContainsFunc(spec.Secrets, func(s launcher.SealedSecret) bool { return s.Name == workloads.RayToken }) {
		return nil, nil
	}
	token := make([]byte, 32)
	rand.Read(token) // never fails: crypto/rand ends the program instead
	spec.Secrets = append(spec.Secrets, launcher.SealedSecret{Name: workloads.RayToken})
	return []wire.Plain{{Name: workloads.RayToken, Value: []byte(hex.EncodeToString(token))}}, spec.Validate()
}

// rayCommandOnly are the ranks whose output launch shows of a Ray job; nil: all.
func rayCommandOnly(spec launcher.Spec) []int {
	if main := spec.MainStage(); spec.Stages[0].Name == workloads.RayHead && main.Name != workloads.RayHead {
		step := slices.IndexFunc(spec.Steps(), func(st launcher.Stage) bool { return st.Main })
		return []int{spec.FirstOf(step, 0)}
	}
	return nil
}

// rayHints say how to use a cluster that is ready.
func rayHints(spec launcher.Spec, head string, p rendezvous.Progress) []string {
	gcs, known := p.Ports[workloads.RayGCS]
	if spec.Workload != "ray" || spec.MainStage().Name != workloads.RayHead || !known {
		return nil
	}
	name := string(spec.ID)
	if spec.Name != "" {
		name = spec.Name
	}
	submit := fmt.Sprintf("submit with: sparkrun exec %s -- %s job submit -- COMMAND", name, quote(rayProgram(spec)))
	if !rayTakesJobs(spec) {
		submit = "it runs without the dashboard, which is what takes jobs (ray job submit): drivers connect to RAY_ADDRESS"
	}
	return []string{fmt.Sprintf("RAY_ADDRESS=%s:%d", head, gcs.First), submit}
}

// rayProgram is `ray` as the cluster's own stages run it, by its path where that was given.
func rayProgram(spec launcher.Spec) string {
	if argv := spec.Stages[0].Command(); len(argv) > 0 && len(argv[0]) == 1 {
		return argv[0][0].Lit
	}
	return "ray"
}

// rayTakesJobs tells whether the head has the server of ray job, which is the dashboard's: of a flag that is
// given twice the last counts.
func rayTakesJobs(spec launcher.Spec) bool {
	takes := true
	argv := spec.Stages[0].Command()
	for i, v := range argv {
		if len(v) != 1 {
			continue
		}
		name, value, given := strings.Cut(v[0].Lit, "=")
		if name != "--include-dashboard" {
			continue
		}
		if !given && i+1 < len(argv) && len(argv[i+1]) == 1 {
			value = argv[i+1][0].Lit
		}
		if yes, err := strconv.ParseBool(strings.ToLower(value)); err == nil {
			takes = yes
		}
	}
	return takes
}
