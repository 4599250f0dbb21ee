package job

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/launch"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/mpi"
)

// NewMPICmd makes `sparkrun launch mpi`.
func NewMPICmd(a *app.App, opts *launch.Options, run launch.Starter) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mpi [flags] -- PROG [ARG...]",
		Short: "Run an MPI program, without ssh",
		Long: `Runs PROG, an MPI program that is on every machine at the same path, --nproc-per-node
times on each. No ssh, no host file and no -x list. Which MPI it is for is read from what
it is linked to; a script does not say: name the family with --mpi.

sparkrun help mpi tells how the families run, of containers, and of known limits.`,
		Example: `  # two ranks on each of three machines
  sparkrun launch mpi --nodes 3 --nproc-per-node 2 -- ./ring
  sparkrun launch mpi --on spark1,spark2 -- all_reduce_perf -b 8 -e 1G -f 2

  # a program that does not say which MPI it is for
  sparkrun launch mpi --nodes 2 --mpi openmpi -- python3 solve.py
  sparkrun launch mpi --nodes 2 --mpirun /opt/openmpi-5/bin/mpirun -- ./solve

  # in containers
  sparkrun launch mpi --nodes 2 --image nvcr.io/nvidia/pytorch:25.10-py3 -- all_reduce_perf -b 8 -e 1G -f 2

  # what would run, and with which variables
  sparkrun launch mpi --nodes 2 --dry-run -- ./ring`,
		Args: cobra.ArbitraryArgs,
		RunE: launch.WorkloadRun(a, opts, func(ctx context.Context, a *app.App, o launch.Options) error {
			o.Gather = gatherMPI
			return run(ctx, a, o)
		}),
	}
	m := &opts.Request.MPI
	fs := cmd.Flags()
	fs.SetInterspersed(false) // flags after the program belong to it
	fs.Var(app.Choice{V: (*string)(&m.Family), Words: []string{string(launcher.MPICH), string(launcher.OpenMPI)}},
		"mpi", "the family that PROG is for (default: what it is linked to)")
	fs.StringVar(&m.Mpirun, "mpirun", "",
		"Open MPI's mpirun on the machines (default: beside PROG's own Open MPI, else in PATH)")
	app.CompleteWords(cmd, "mpi")
	return cmd
}

// gatherMPI finds out which MPI a launch's program was built for: from this machine's own
// copy where there is one (each node checks its own before it starts anything), otherwise
// by asking the nodes.
func gatherMPI(ctx context.Context, a *app.App, o *launch.Options) (err error) {
	m := &o.Request.MPI
	if m.Forced || len(o.Request.Args) == 0 {
		return nil
	}
	if m.Family != "" {
		m.Forced = true
		return nil
	}
	if o.Container.Image != "" { // the program is in the image
		defer func() {
			if err != nil {
				err = fmt.Errorf("find out which MPI %s is for, as no --mpi says it: %w", o.Request.Args[0], err)
			}
		}()
	} else if m.Family = mpiHere(a, *o); m.Family != "" {
		return nil
	}
	ask := *o
	ask.Request.Job.Wait = false
	res, err := launch.Ask(ctx, a, ask)
	if err != nil {
		return err
	}
	by := map[launcher.MPIFamily]string{}
	var refused []error
	for _, n := range res.Nodes {
		switch {
		case n.Error != "":
			refused = append(refused, fmt.Errorf("%s: %s", n.Host, n.Error))
		case len(n.Ranks) > 0 && n.Ranks[0].MPI != "":
			m.Family = n.Ranks[0].MPI
			by[m.Family] = n.Host
		}
	}
	switch {
	case len(refused) > 0:
		return errors.Join(refused...)
	case len(by) > 1:
		return fmt.Errorf("%s is for MPICH's family on %s, and for Open MPI on %s: install the same program on "+
			"every machine", o.Request.Args[0], by[launcher.MPICH], by[launcher.OpenMPI])
	case m.Family == "":
		return fmt.Errorf("which MPI %s is for is not known: say --mpi mpich or --mpi openmpi", o.Request.Args[0])
	}
	return nil
}

// mpiHere examines this machine's copy; empty: there is none, or its MPI is unknown.
func mpiHere(a *app.App, o launch.Options) launcher.MPIFamily {
	if !o.Standalone {
		if away, err := a.Away(); away != nil || err != nil {
			return ""
		}
	}
	prog := o.Request.Args[0]
	if !strings.Contains(prog, "/") {
		path, err := exec.LookPath(prog)
		if err != nil {
			return ""
		}
		prog = path
	}
	if dir := o.Request.Workdir; !filepath.IsAbs(prog) {
		cwd, err := a.Getwd()
		if err != nil {
			return ""
		}
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(cwd, dir)
		}
		prog = filepath.Join(dir, prog)
	}
	libraries, _ := a.Getenv("LD_LIBRARY_PATH")
	linked, err := mpi.FamilyOf(prog, libraries)
	if err != nil {
		return ""
	}
	return linked.Family
}
