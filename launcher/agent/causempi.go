package agent

import "strings"

// What Open MPI's mpirun says at its end of the MPI rank that failed first. 4.x says mpirun and
// [[62154,1],1], 5.x prterun and [prterun-spark1-123@1,1] (orte/tools/orterun/help-orterun.txt,
// prrte/src/docs/show-help-files; ompi/mpi/help/help-mpi-api.txt).
var (
	mpiAborted = compiled(`MPI_ABORT was invoked on rank (\d+) in communicator [^\n]*\n(?:[^\n]*\n)?\s*(?:with )?[Ee]rrorcode:? (-?\d+)`)
	mpiExited  = compiled(`Process name: \[[^\n]*,(\d+)\]\s+Exit code:\s+(\d+)`)
	mpiKilled  = compiled(`process rank (\d+) with PID \d+ on node (\S+) exited on\s+signal (\d+ \([^)\n]*\))`)
)

// mpirunSays names that rank and its end; empty: it does not say.
func mpirunSays(all string) string {
	if !strings.Contains(all, "MPI_ABORT was invoked") && !strings.Contains(all, "Process name:") && !strings.Contains(all, "process rank") {
		return ""
	}
	if m := mpiAborted().FindStringSubmatch(all); m != nil {
		return "MPI rank " + m[1] + " called MPI_Abort with code " + m[2]
	}
	if m := mpiKilled().FindStringSubmatch(all); m != nil {
		return "MPI rank " + m[1] + " on " + m[2] + ": signal " + m[3]
	}
	if m := mpiExited().FindStringSubmatch(all); m != nil {
		return "MPI rank " + m[1] + ": exit " + m[2]
	}
	return ""
}
