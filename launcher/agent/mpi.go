package agent

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/mpi"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// program is this one's path.
var program = sync.OnceValues(os.Executable)

// errAskMPI: a question of a dry run, in the place of a job.
var errAskMPI = errors.New("nobody has said which MPI the program is for: say --mpi mpich or --mpi openmpi")

// mayRunMPI looks which MPI a stage's program is linked to, with its user's eyes, and
// whether that is what the job was made for.
func (u login) mayRunMPI(m launcher.MPI, workdir string, env []launcher.Setting) (launcher.MPIFamily, error) {
	path, err := u.findProgram(m.Program, workdir, env)
	if err != nil {
		return "", fmt.Errorf("program %q: %w", m.Program, err)
	}
	if m.Forced {
		return m.Family, nil
	}
	linked, err := mpi.FamilyOf(path, valueOf(env, "LD_LIBRARY_PATH"))
	switch {
	case err != nil:
		return "", fmt.Errorf("find out which MPI %s is for: %w", path, err)
	case linked.Family == "":
		return "", fmt.Errorf("which MPI %s is for cannot be told, as it is %s: say --mpi mpich or --mpi openmpi", path, linked.Why)
	case m.Family != launcher.AskMPI && linked.Family != m.Family:
		return "", fmt.Errorf("%s is linked to %s here, which is of the family %s, while the job is made for %s: install the same program on every node, or say --mpi %s",
			path, linked.Library, linked.Family, m.Family, m.Family)
	}
	return linked.Family, nil
}

func valueOf(env []launcher.Setting, name string) string {
	for _, s := range env {
		if s.Name == name {
			return s.Value
		}
	}
	return ""
}

// pmi is what a stage's ranks have a process manager for; nil: they have none.
func pmi(as launcher.Assignment) *shim.PMI {
	if as.Spec.MainStage().MPI == nil {
		return nil
	}
	return &shim.PMI{Size: as.World, Mapping: mpi.Mapping(as.NodeCount, as.Ranks)}
}
