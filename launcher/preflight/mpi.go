package preflight

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/mpi"
)

// linkedMPI looks which MPI a stage's program is linked to, and whether that is what the job was made for.
func linkedMPI(ctx context.Context, c *Case) (err error) {
	switch {
	case c.Stage.MPI == nil:
	case c.Container == nil && !c.Yet:
		c.MPI, err = c.familyOnHost()
	case c.Container != nil && !c.Container.Unpulled():
		c.MPI, err = c.familyInContainer(ctx)
	}
	return err
}

func (c *Case) familyOnHost() (launcher.MPIFamily, error) {
	m := *c.Stage.MPI
	path, err := c.find(m.Program)
	if err != nil {
		return "", fmt.Errorf("program %q: %w", m.Program, err)
	}
	var linked mpi.Linked
	err = c.User.Do(func() (err error) {
		linked, err = mpi.FamilyOf(path, launcher.ValueOf(c.First.Env, "LD_LIBRARY_PATH"))
		return err
	})
	if err != nil && !m.Forced {
		return "", fmt.Errorf("find out which MPI %s is for: %w", path, err)
	}
	return isFor(m, path, linked)
}

// familyInContainer goes by what the program names itself, where it lies on a mount, else by the only MPI that the
// image's loader knows.
func (c *Case) familyInContainer(ctx context.Context) (launcher.MPIFamily, error) {
	m, path := *c.Stage.MPI, c.Stage.MPI.Program
	if strings.Contains(path, "/") {
		if !filepath.IsAbs(path) {
			path = filepath.Join(c.Container.Workdir, path)
		}
		if at := c.Container.OnHost(path); at != "" {
			var linked mpi.Linked
			err := c.User.Do(func() (err error) {
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
	linked, err := c.familyInImage(ctx)
	if err != nil {
		return "", err
	}
	return isFor(m, path, linked)
}

func (c *Case) familyInImage(ctx context.Context) (mpi.Linked, error) {
	names := []string{pmixLibrary}
	for _, l := range mpi.Libraries() {
		names = append(names, l.Library)
	}
	has, err := c.Containers.Libraries(ctx, c.Container.Image.ID, names...)
	if err != nil {
		return mpi.Linked{}, err
	}
	return inImage(has), nil
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

// isFor tells whether a job that was made for one family may run a program.
func isFor(m launcher.MPI, path string, linked mpi.Linked) (launcher.MPIFamily, error) {
	switch {
	case m.Forced && linked.Family != "" && linked.Family != m.Family:
		return "", fmt.Errorf("--mpi %s: %s is linked to %s here, which is of the family %s: leave --mpi out",
			m.Family, path, linked.Library, linked.Family)
	case m.Forced:
		return m.Family, nil
	case linked.Family == "":
		return "", fmt.Errorf("which MPI %s is for cannot be told, as it is %s: say --mpi mpich or --mpi openmpi",
			path, linked.Why)
	case m.Family != launcher.AskMPI && linked.Family != m.Family:
		return "", fmt.Errorf("%s is linked to %s here, which is of the family %s, while the job is made for %s: "+
			"install the same program on every node",
			path, linked.Library, linked.Family, m.Family)
	}
	return linked.Family, nil
}
