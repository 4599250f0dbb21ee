package preflight

import (
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/mpi"
)

// --mpi is for programs that do not say which MPI they are for: against one that does it would
// start ranks that each think they are alone.
func TestIsForMPI(t *testing.T) {
	open := mpi.Linked{Family: launcher.OpenMPI, Library: "libmpi.so.40"}
	mpich := mpi.Linked{Family: launcher.MPICH, Library: "libmpi.so.12"}
	script := mpi.Linked{Why: "a script"}
	for name, tc := range map[string]struct {
		m      launcher.MPI
		linked mpi.Linked
		want   launcher.MPIFamily
		says   string
	}{
		"--mpi mpich, a script": {launcher.MPI{Family: launcher.MPICH, Forced: true}, script, launcher.MPICH, ""},
		"--mpi mpich, MPICH":    {launcher.MPI{Family: launcher.MPICH, Forced: true}, mpich, launcher.MPICH, ""},
		"--mpi mpich, Open MPI": {launcher.MPI{Family: launcher.MPICH, Forced: true}, open, "",
			"--mpi mpich: /ring is linked to libmpi.so.40 here, of the family openmpi: leave --mpi out"},
		"--mpi openmpi, MPICH": {launcher.MPI{Family: launcher.OpenMPI, Forced: true}, mpich, "",
			"--mpi openmpi: /ring is linked to libmpi.so.12 here, of the family mpich"},
		"a question":              {launcher.MPI{Family: launcher.AskMPI}, open, launcher.OpenMPI, ""},
		"a script, and no --mpi":  {launcher.MPI{Family: launcher.AskMPI}, script, "", "say --mpi mpich or --mpi openmpi"},
		"another than on spark1":  {launcher.MPI{Family: launcher.MPICH}, open, "", "install the same program on every node"},
		"the same as on spark1's": {launcher.MPI{Family: launcher.MPICH}, mpich, launcher.MPICH, ""},
	} {
		got, err := isFor(tc.m, "/ring", tc.linked)
		if got != tc.want || (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestMPIInImage(t *testing.T) {
	for known, want := range map[string]mpi.Linked{
		"":                            {Why: "in an image whose loader knows no MPI"},
		"libpmix.so.2":                {Why: "in an image whose loader knows no MPI"},
		"libmpich.so.12":              {Family: launcher.MPICH, Library: "libmpich.so.12"},
		"libmpich.so.12 libmpi.so.12": {Family: launcher.MPICH, Library: "libmpi.so.12"},
		"libmpi.so.40 libpmix.so.2":   {Family: launcher.OpenMPI, Library: "libmpi.so.40"},
		"libmpich.so.12 libmpi.so.40": {Why: "in an image with more than one MPI"},
		"libmpich.so.12 libpmix.so.2": {Why: "in an image whose MPICH may be built for PMIx alone, as Ubuntu 24.04's is, " +
			"which only Open MPI's mpirun starts"},
	} {
		has := map[string]bool{}
		for _, lib := range strings.Fields(known) {
			has[lib] = true
		}
		if got := inImage(has); got != want {
			t.Errorf("%q: %+v, want %+v", known, got, want)
		}
	}
}
