package preflight

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/mpi"
)

// linkedMPI checks which MPI a stage's program is linked with, and whether that is the
// job's.
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

// familyInContainer goes by the program's own DT_NEEDED if it is on a mount, else by the
// only MPI that the image's loader knows.
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

// pmixLibrary is linked into an MPICH that needs a PMIx server.
const pmixLibrary = "libpmix.so.2"

// inImage gives the MPI of a program in an image, by the libraries that the image's loader
// knows. Whether its MPICH is built for PMIx alone cannot be seen there. If it may be, that
// is an error: ranks that are started in the wrong way would each be 0 of 1, without a
// message.
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

// isFor reports whether a job that was made for one family may run a program.
func isFor(m launcher.MPI, path string, linked mpi.Linked) (launcher.MPIFamily, error) {
	switch {
	case m.Forced && linked.Family != "" && linked.Family != m.Family:
		return "", fmt.Errorf("--mpi %s: %s is linked to %s here, of the family %s: leave --mpi out",
			m.Family, path, linked.Library, linked.Family)
	case m.Forced:
		return m.Family, nil
	case linked.Family == "":
		return "", fmt.Errorf("which MPI %s is for is not known, as it is %s: say --mpi mpich or --mpi openmpi",
			path, linked.Why)
	case m.Family != launcher.AskMPI && linked.Family != m.Family:
		return "", fmt.Errorf("%s is linked to %s here, of the family %s, while the job is made for %s: "+
			"install the same program on every node",
			path, linked.Library, linked.Family, m.Family)
	}
	return linked.Family, nil
}
