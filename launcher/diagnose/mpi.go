package diagnose

import (
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
)

// What Open MPI's mpirun prints at its end about the MPI rank that failed first. 4.x says
// mpirun and [[62154,1],1], 5.x prterun and [prterun-spark1-123@1,1]
// (orte/tools/orterun/help-orterun.txt, prrte/src/docs/show-help-files;
// ompi/mpi/help/help-mpi-api.txt).
var (
	mpiAborted = plain.Pattern(`MPI_ABORT was invoked on rank (\d+) in communicator [^\n]*\n(?:[^\n]*\n)?\s*(?:with )?[Ee]rrorcode:? (-?\d+)`)
	mpiExited  = plain.Pattern(`Process name: \[[^\n]*,(\d+)\]\s+Exit code:\s+(\d+)`)
	// MPICH's error stack and Open MPI's, 4 and 5; each names the call.
	mpiSpawned = plain.Pattern(`internal_Comm_spawn\(|An error occurred in MPI_Comm_spawn|PMI_Spawn_multiple returned -1`)
	mpiKilled  = plain.Pattern(`process rank (\d+) with PID \d+ on node (\S+) exited on\s+signal (\d+ \([^)\n]*\))`)
)

// mpirunSays names that rank and its exit; empty: it does not say.
func mpirunSays(all string) string {
	if mpiSpawned().MatchString(all) {
		return launcher.NoSpawn
	}
	if !strings.Contains(all, "MPI_ABORT was invoked") && !strings.Contains(all, "Process name:") &&
		!strings.Contains(all, "process rank") {
		return ""
	}
	if m := mpiAborted().FindStringSubmatch(all); m != nil {
		return "MPI rank " + m[1] + onHost(all, m[1], "") + " called MPI_Abort with code " + m[2]
	}
	if m := mpiKilled().FindStringSubmatch(all); m != nil {
		return "MPI rank " + m[1] + onHost(all, m[1], m[2]) + ": signal " + m[3]
	}
	if m := mpiExited().FindStringSubmatch(all); m != nil {
		return "MPI rank " + m[1] + onHost(all, m[1], "") + ": exit " + m[2]
	}
	return ""
}

// mpiPlaces is what `sparkrun mpi-node` prints after it (launcher/mpi, tellPlaces).
var mpiPlaces = plain.Pattern(`(?m)^sparkrun: MPI ranks, (\d+) a machine, were on (.+)$`)

// taskKilled is what `sparkrun mpi-node` prints about a server that mpirun does not know
// (launcher/mpi, task.go).
var taskKilled = plain.Pattern(`(?m)^sparkrun: (?:\S*/)?(\S+ (?:was killed by signal|cannot be started:|ended without a word:|was told to end, and not by) .*)$`)

// onHost names the machine of an MPI rank; else the node, in mpirun's words.
func onHost(all, rank, node string) string {
	if m := mpiPlaces().FindStringSubmatch(all); m != nil {
		hosts := strings.Fields(m[2])
		n, err := strconv.Atoi(rank)
		perHost, err1 := strconv.Atoi(m[1])
		if err == nil && err1 == nil && perHost > 0 && n/perHost < len(hosts) {
			node = hosts[n/perHost]
		}
	}
	if node == "" {
		return ""
	}
	return " on " + node
}
