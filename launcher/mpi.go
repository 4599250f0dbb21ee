package launcher

import (
	"encoding/json"
	"errors"
	"fmt"
)

// ErrNoBarrier: an MPI barrier can never be passed, so the job that waits in it cannot go
// on.
var ErrNoBarrier = errors.New("this barrier cannot be passed")

// MPIFamily is a kind of MPI libraries that start in the same way.
type MPIFamily string

const (
	MPICH   MPIFamily = "mpich"   // MPICH, Intel MPI, MVAPICH: PMI-1, with sparkrun as their process manager
	OpenMPI MPIFamily = "openmpi" // Open MPI: its mpirun on rank 0's node, its daemons as ranks of ours
	// AskMPI: each node is to find out. Only for a dry run; no such job starts.
	AskMPI MPIFamily = "ask"
)

// MPI is what a stage's ranks need of their launcher as an MPI program.
type MPI struct {
	Family MPIFamily `json:"family"`
	// Program is the MPI program as the user named it. Each node checks what it is linked
	// with; with Forced that may be unknown, but if it is known it must be Family.
	Program string `json:"program"`
	Forced  bool   `json:"forced,omitempty"`
}

func (m *MPI) validate() error {
	if m == nil {
		return nil
	}
	switch m.Family {
	case MPICH, OpenMPI, AskMPI:
	default:
		return fmt.Errorf("--mpi %s: %w: want %s or %s", m.Family, ErrInvalid, MPICH, OpenMPI)
	}
	if err := validText(m.Program); err != nil {
		return fmt.Errorf("program %q: %w", m.Program, err)
	}
	return nil
}

// Daemon reports whether a rank of the job's main stage is a daemon of Open MPI, which
// exits with 0 when mpirun has told it to: mpirun reports what happened.
func (s Spec) Daemon(rank int) bool {
	st := s.MainStage()
	return st != nil && st.MPI != nil && st.MPI.Family == OpenMPI && rank > 0
}

// Process names a rank of the job's main stage for people: "rank 3"; of an Open MPI job,
// whose MPI ranks are mpirun's, mpirun itself and its daemons; of torchrun's agents, whose
// workers are the ranks, the agent.
func (s Spec) Process(rank int) string {
	switch st := s.MainStage(); {
	case st != nil && st.Agents:
		return fmt.Sprintf("torchrun's agent %d", rank)
	case st == nil || st.MPI == nil || st.MPI.Family != OpenMPI:
		return fmt.Sprintf("rank %d", rank)
	case s.Daemon(rank):
		return "Open MPI's daemon"
	}
	return "mpirun"
}

// Pair is one entry of the key-value space in which the ranks of an MPI program exchange
// their addresses.
type Pair struct {
	Key   string `json:"k"`
	Value string `json:"v"`
}

// Size is how many bytes a pair takes in a message, at most.
func (p Pair) Size() int {
	b, err := json.Marshal(p) // encodes "<" as \u003c; some encoders do not
	if err != nil {
		panic(err) // two strings
	}
	return len(b) + 1
}
