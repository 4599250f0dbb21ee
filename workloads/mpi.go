package workloads

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/mpi"
)

// MPI are the options of that workload.
type MPI struct {
	// Family is what the program is linked to; empty: the nodes are to be asked, by a
	// dry run of the spec, before there can be a job.
	Family launcher.MPIFamily
	// Forced: Family is the user's word, and no node looks.
	Forced bool
	// Mpirun is Open MPI's, a path on rank 0's node; empty: it is looked for there.
	Mpirun string
}

// perRank are variables that differ from rank to rank. Where mpirun starts the ranks
// they would be those of its daemon: wrong is worse than missing.
var perRank = []string{
	"RANK", "LOCAL_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "ROLE_WORLD_SIZE",
	"GROUP_RANK", "GROUP_WORLD_SIZE",
	"TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
}

// apart says to ranks of one machine that they have no memory in common: each is in a container, and thus in
// a PID namespace, of its own, where another's number means somebody else (process_vm_readv(2)).
// MPICH's own part of that is the process mapping; what it sends with, UCX, looks for itself
// whether machines are the same, and so does Intel MPI.
var apart = []launcher.Var{
	{Name: "UCX_TLS", Value: launcher.Lit("^shm"), Source: "mpi"},
	{Name: "I_MPI_FABRICS", Value: launcher.Lit("ofi"), Source: "mpi"},
}

// mpiSpec runs an MPI program. For the MPICH family each of its ranks is one of ours,
// with sparkrun as its process manager. For Open MPI a rank of ours on each node is
// mpirun, or a daemon of it.
func mpiSpec(r Request) (launcher.Spec, error) { return mpiProgram(r, "mpi") }

// mpiProgram does so for every workload that is an MPI program.
func mpiProgram(r Request, workload string, more ...launcher.Var) (launcher.Spec, error) {
	if len(r.Args) == 0 || r.Args[0] == "" {
		return launcher.Spec{}, fmt.Errorf("mpi: %w: no program: sparkrun launch mpi [flags] -- PROG [ARG...]",
			launcher.ErrInvalid)
	}
	m := &launcher.MPI{Family: cmp.Or(r.MPI.Family, launcher.AskMPI), Program: r.Args[0], Forced: r.MPI.Forced}
	st := launcher.Stage{
		Name: workload, RanksPerNode: r.ranksPerNode(), Argv: launcher.Lits(r.Args...), Workdir: r.Workdir,
		UsesPort: true, MPI: m,
	}
	own := MPIVariables(workload)
	if m.Family == launcher.OpenMPI {
		if err := r.UnderMpirun(&st, mpi.Options{}, st.Argv); err != nil {
			return launcher.Spec{}, err
		}
	} else {
		if r.MPI.Mpirun != "" && m.Family == launcher.MPICH {
			return launcher.Spec{}, fmt.Errorf("--mpirun: %w: of the family mpich sparkrun itself starts the ranks",
				launcher.ErrInvalid)
		}
		own = append(own, // as Hydra has them
			launcher.Var{Name: "MPI_LOCALRANKID", Value: launcher.Of(launcher.LocalRank), Source: workload},
			launcher.Var{Name: "MPI_LOCALNRANKS", Value: launcher.Of(launcher.LocalWorldSize), Source: workload})
		if r.Container != nil {
			own = append(own, apart...)
		}
	}
	stdin, bind := st.Stdin, st.BindTo
	var err error
	if st.Env, err = r.environment(workload, append(own, more...)...); err != nil {
		return launcher.Spec{}, err
	}
	if m.Family == launcher.OpenMPI {
		st.Env = slices.DeleteFunc(st.Env, func(v launcher.Var) bool {
			return v.Source == workload && slices.Contains(perRank, v.Name)
		})
		r.Stdin, r.BindTo = stdin, bind
	}
	return finish(r, workload, st)
}

// MPIVariables tell a rank of ours its place towards the shim, as its process manager.
func MPIVariables(workload string) []launcher.Var {
	return []launcher.Var{
		// An older sparkrun on a node does not know this reference, and refuses, where
		// it would start ranks that each think they are alone.
		{Name: "SPARKRUN_PROGRAM", Value: launcher.Of(launcher.Program), Source: workload},
		{Name: "PMI_RANK", Value: launcher.Of(launcher.Rank), Source: workload},
		{Name: "PMI_SIZE", Value: launcher.Of(launcher.WorldSize), Source: workload},
	}
}

// UnderMpirun has one rank of ours on each node, and the MPI ranks, which run argv, be mpirun's.
func (r Request) UnderMpirun(st *launcher.Stage, o mpi.Options, argv []launcher.Value) error {
	o.PerNode, o.BindTo, o.Stdin, o.Mpirun = st.RanksPerNode,
		string(cmp.Or(r.BindTo, launcher.BindNone)), string(launcher.StdinNone), r.MPI.Mpirun
	if r.Stdin.Any() {
		o.Stdin, st.Stdin = string(r.Stdin), "0" // mpirun hands it on
	}
	if r.TTY != nil && r.Stdin != "0" {
		return fmt.Errorf("--tty --stdin %s: %w: of an Open MPI job mpirun has the terminal, for rank 0", r.Stdin,
			launcher.ErrInvalid)
	}
	st.RanksPerNode = 1
	st.Argv = slices.Concat([]launcher.Value{launcher.Of(launcher.Program)}, launcher.Lits(o.Args()...), argv)
	return nil
}
