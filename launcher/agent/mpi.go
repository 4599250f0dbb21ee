package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/login"
	"github.com/sparkrun/sparkrun/launcher/mpi"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// program is this one's path.
var program = sync.OnceValues(os.Executable)

// programFor is where a stage's ranks find it.
func programFor(st launcher.Stage) (string, error) {
	if st.Container != nil {
		return container.InsideProgram, nil
	}
	return program()
}

// errAskMPI: a question of a dry run, in the place of a job.
var errAskMPI = errors.New("nobody has said which MPI the program is for: say --mpi mpich or --mpi openmpi")

// mayRunMPI looks which MPI a stage's program is linked to, with its user's eyes, and
// whether that is what the job was made for.
func mayRunMPI(u login.User, m launcher.MPI, workdir string, env []launcher.Setting) (launcher.MPIFamily, error) {
	path, err := findProgram(u, m.Program, workdir, env)
	if err != nil {
		return "", fmt.Errorf("program %q: %w", m.Program, err)
	}
	linked, err := mpi.FamilyOf(path, launcher.ValueOf(env, "LD_LIBRARY_PATH"))
	if err != nil && !m.Forced {
		return "", fmt.Errorf("find out which MPI %s is for: %w", path, err)
	}
	return isFor(m, path, linked)
}

// mayRunMpirun looks for what runs on rank 0's node alone: the mpirun that was named, and the program
// that rank 0 starts beside it.
func mayRunMpirun(u login.User, o mpi.Options, workdir string, env []launcher.Setting) error {
	if o.Mpirun != "" {
		if _, err := findProgram(u, o.Mpirun, workdir, env); err != nil {
			return fmt.Errorf("--mpirun %s: %w", o.Mpirun, err)
		}
	}
	if o.Task > 0 && o.Task < len(o.Argv) {
		if _, err := findProgram(u, o.Argv[o.Task], workdir, env); err != nil {
			return fmt.Errorf("program %q: %w", o.Argv[o.Task], err)
		}
	}
	return nil
}

// isFor tells whether a job that was made for one family may run a program.
func isFor(m launcher.MPI, path string, linked mpi.Linked) (launcher.MPIFamily, error) {
	switch {
	case m.Forced && linked.Family != "" && linked.Family != m.Family:
		return "", fmt.Errorf("--mpi %s: %s is linked to %s here, which is of the family %s: leave --mpi out", m.Family, path, linked.Library, linked.Family)
	case m.Forced:
		return m.Family, nil
	case linked.Family == "":
		return "", fmt.Errorf("which MPI %s is for cannot be told, as it is %s: say --mpi mpich or --mpi openmpi", path, linked.Why)
	case m.Family != launcher.AskMPI && linked.Family != m.Family:
		return "", fmt.Errorf("%s is linked to %s here, which is of the family %s, while the job is made for %s: install the same program on every node",
			path, linked.Library, linked.Family, m.Family)
	}
	return linked.Family, nil
}

// mayRunMPIBoxed looks which MPI a program in a container is for: by what it names itself,
// where it lies on a mount, else by the only MPI that the image's loader knows.
func (a *Agent) mayRunMPIBoxed(ctx context.Context, st launcher.Stage, p *prepared) (launcher.MPIFamily, error) {
	m, path := *st.MPI, st.MPI.Program
	if strings.Contains(path, "/") {
		if !filepath.IsAbs(path) {
			path = filepath.Join(p.container.Workdir, path)
		}
		if at := p.container.OnHost(path); at != "" {
			var linked mpi.Linked
			err := p.who.Do(func() (err error) {
				linked, err = mpi.FamilyNamed(at)
				return err
			})
			if err != nil && !m.Forced {
				return "", fmt.Errorf("find out which MPI %s is for: %w", at, err)
			}
			if linked.Family != "" {
				return isFor(m, path, linked)
			}
		}
	}
	if m.Forced {
		return m.Family, nil
	}
	names := []string{pmixLibrary}
	for _, l := range mpi.Libraries() {
		names = append(names, l.Library)
	}
	has, err := a.containers.Libraries(ctx, p.container.Image.ID, names...)
	if err != nil {
		return "", err
	}
	return isFor(m, path, inImage(has))
}

// pmixLibrary is what an MPICH that wants a PMIx server is linked to.
const pmixLibrary = "libpmix.so.2"

// inImage tells which MPI a program of an image is for, by the libraries that the image's loader knows. Whether its
// MPICH is one for PMIx alone cannot be seen there: where it may be, nobody guesses, for ranks that are started in
// the wrong way are 0 of 1 each, and say nothing of it.
func inImage(has map[string]bool) mpi.Linked {
	linked := mpi.Linked{Why: "in an image whose loader knows no MPI"}
	for _, l := range mpi.Libraries() {
		switch {
		case !has[l.Library] || linked.Family == l.Family:
		case linked.Family != "":
			return mpi.Linked{Why: "in an image with more than one MPI"}
		default:
			linked = l
		}
	}
	if linked.Family == launcher.MPICH && has[pmixLibrary] {
		return mpi.Linked{Why: "in an image whose MPICH may be built for PMIx alone, as Ubuntu 24.04's is, " +
			"which only Open MPI's mpirun starts"}
	}
	return linked
}

// pmi is what a stage's ranks have a process manager for; nil: they have none.
func pmi(as launcher.Assignment) *shim.PMI {
	if as.Spec.MainStage().MPI == nil {
		return nil
	}
	if as.Spec.MainStage().Container != nil { // to each other, the ranks of a node are on others
		return &shim.PMI{Size: as.World, Mapping: mpi.Mapping(as.World, 1)}
	}
	return &shim.PMI{Size: as.World, Mapping: mpi.Mapping(as.NodeCount, as.Ranks)}
}
