package agent

import (
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/mpi"
)

// A server that rank 0 starts beside itself under mpirun is refused before the start where it is not
// there, like any program, and nobody else needs it.
func TestServerBesideMpirunIsThere(t *testing.T) {
	n := newNode(t)
	of := func(id launcher.JobID, server string, nodeRank int) launcher.Assignment {
		return n.as("", named(id), func(a *launcher.Assignment) {
			o := mpi.Options{PerNode: 1, BindTo: "none", Stdin: "none", Task: 1, Argv: []string{"sh", server}}
			a.Spec.Stages[0].Argv = append([]launcher.Value{launcher.Of(launcher.Program)}, launcher.Lits(o.Args()...)...)
			a.NodeRank, a.NodeCount, a.FirstRank, a.World, a.Spec.Nodes = nodeRank, 2, nodeRank, 2, 2
		})
	}
	n.prepare(of("missing", "no-such-server", 0))
	if text := n.hear(launcher.Refused).Text; !strings.Contains(text, `program "no-such-server": not found in PATH (`) {
		t.Errorf("refused with %q", text)
	}
	n.prepare(of("pathless", "/opt/no/such-server", 0))
	if text := n.hear(launcher.Refused).Text; !strings.Contains(text, `program "/opt/no/such-server": not found here`) {
		t.Errorf("refused with %q", text)
	}
	for id, a := range map[launcher.JobID]launcher.Assignment{"there": of("there", "cat", 0),
		"worker": of("worker", "no-such-server", 1)} {
		n.prepare(a)
		if ev := n.hear(launcher.Prepared); ev.Job != id {
			t.Errorf("prepared %s, want %s", ev.Job, id)
		}
	}
}
