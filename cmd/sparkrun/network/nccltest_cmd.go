package network

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/launch"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads"
)

// testOptions are nccl-test's: its launch, and how its result is used.
type testOptions struct {
	launch.Options
	via     string  // viaTests, viaTorch; empty and "auto" mean the same
	folder  string  // of nccl-tests on the machines; empty: look for it
	gate    float64 // fraction of what is expected; 0: none
	svg     string
	read    string // a result to evaluate, in place of a test
	verbose bool
}

// NewNCCLTestCmd makes `sparkrun launch nccl-test`.
func NewNCCLTestCmd(a *app.App, opts *launch.Options) *cobra.Command {
	t, test := &testOptions{}, &opts.Request.NCCLTest
	cmd := &cobra.Command{
		Use:   "nccl-test [flags] [all_gather|all_reduce|reduce_scatter|alltoall|sendrecv|broadcast]",
		Short: "Measure the links with NCCL, and judge them",
		Long: `Runs one collective (default: all_gather) over growing messages on all machines that
are ready, and says whether the links between them give what they should. Its last line
is the verdict: good, low with the likely cause and the remedy, unjudged, or failed.

It needs PyTorch on the machines, or NVIDIA's nccl-tests (--via); --read FILE judges what
nccl-tests printed, whoever ran it. --gate 0.9 makes it exit with 1 below 90 % of what
is expected. sparkrun help nccl tells what is measured, and how it is judged.`,
		Example: `  sparkrun launch nccl-test
  sparkrun launch nccl-test all_reduce --on spark1,spark2 --min 1M --max 8G
  sparkrun launch nccl-test --gate 0.9 --json >link.json && ./train
  sparkrun launch nccl-test --via nccl-tests --nccl-tests /opt/nccl-tests
  sparkrun launch nccl-test --svg curve.svg --python /opt/venv/bin/python3
  sparkrun launch nccl-test all_gather --read old.txt
  mpirun -np 2 -H spark1,spark2 all_gather_perf -b 1G -e 16G -f 2 | sparkrun launch nccl-test --read -`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return app.Usagef("unexpected argument %q: one operation at a time", args[1])
			}
			return nil
		},
		ValidArgs: workloads.NCCLOps(),
	}
	launch := launch.WorkloadRun(a, opts, func(ctx context.Context, a *app.App, o launch.Options) error {
		t.Options = o
		return startNCCLTest(ctx, a, *t)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			test.Op = args[0]
		}
		return launch(cmd, nil)
	}
	fs := cmd.Flags()
	fs.Var(app.Amount{N: &test.Min}, "min", "the smallest message (default: 8M)")
	fs.Var(app.Amount{N: &test.Max}, "max", "the largest message (default: 4G, or what is safe)")
	fs.Var(app.Positive{N: &test.Factor}, "factor", "each size is `N` times the one before (default: 2)")
	fs.Var(app.Positive{N: &test.Iters}, "iters",
		"`N` timed runs of each size; fewer where a size takes more than 2 s (default: 20)")
	fs.Var(app.Choice{V: &t.via, Words: []string{"auto", viaTests, viaTorch}}, "via", "what measures (default: auto)")
	fs.StringVar(&t.folder, "nccl-tests", "",
		"nccl-tests' `FOLDER` on the machines, or in the image (default: $NCCL_TESTS_HOME/build, else PATH)")
	m := &opts.Request.MPI
	fs.Var(app.Choice{V: (*string)(&m.Family), Words: []string{string(launcher.MPICH), string(launcher.OpenMPI)}},
		"mpi", "the family that nccl-tests is built for (default: what it is linked to)")
	fs.StringVar(&m.Mpirun, "mpirun", "",
		"Open MPI's mpirun on the machines (default: beside nccl-tests' own Open MPI, else in PATH)")
	fs.StringVar(&opts.Request.Torchrun.Python, "python", "",
		"the interpreter (default: $VIRTUAL_ENV/bin/python3, else python3)")
	fs.Var(app.Part{V: &t.gate}, "gate", "exit with 1 below this `PART` of what is expected, such as 0.9")
	fs.StringVar(&t.svg, "svg", "", "write the curve to this `FILE` (- for standard output)")
	fs.StringVar(&t.read, "read", "",
		"start nothing: judge what nccl-tests printed, or wrote with -J, to `FILE` (- for standard input)")
	fs.BoolVarP(&t.verbose, "verbose", "v", false, "show what the ranks write, NCCL's log included, on standard error")
	app.CompleteWords(cmd, "via", "mpi")
	return cmd
}

// checkTest refuses what does not go with a test.
func checkTest(o testOptions) error {
	t := o
	for _, c := range []struct {
		given bool
		flag  string
	}{
		{o.Detach, "--detach"}, {o.TTY, "--tty"}, {o.Output.Kind != "" && o.Output.Kind != "json", "--output"},
		{len(o.Stage) > 0, "--stage"},
		{o.Request.Job.MaxRestarts > 0, "--max-restarts"},
	} {
		if c.given {
			return app.Usagef("%s does not go with nccl-test, which waits for its result", c.flag)
		}
	}
	switch {
	case t.via == viaTorch && t.folder != "":
		return app.Usagef("--via torch and --nccl-tests: give one of them")
	case t.via == viaTorch && (o.Request.MPI.Family != "" || o.Request.MPI.Mpirun != ""):
		return app.Usagef("--via torch: --mpi and --mpirun are for nccl-tests")
	case t.via == viaTests && o.Request.Torchrun.Python != "":
		return app.Usagef("--via nccl-tests and --python: give one of them")
	case t.svg == "-" && o.JSON:
		return app.Usagef("--svg - and --json: both would go to standard output")
	}
	return nil
}
