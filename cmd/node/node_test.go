package node

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// Three nodes: every one of them can launch, the ranks get their places, and
// any node can read the output.
func TestLaunchOnThreeNodes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	for _, h := range c.hosts {
		spec := command(3, 2, `echo "$RANK $HOST $MASTER"`)
		out := h.run(spec)
		if out.End != rendezvous.Completed || out.ExitCode != 0 {
			t.Fatalf("from %s: %+v", h.cfg.Host, out)
		}
		for _, reader := range c.hosts {
			masters := map[string]bool{}
			got := reader.output(spec.ID)
			for r := range 6 {
				want := fmt.Sprintf("%d spark%d ", r, r/2+1)
				if !strings.HasPrefix(got[r], want) {
					t.Errorf("launched on %s, read on %s: rank %d printed %q, want %q...", h.cfg.Host, reader.cfg.Host, r, got[r], want)
				}
				masters[strings.TrimPrefix(got[r], want)] = true
			}
			if len(masters) != 1 {
				t.Errorf("ranks disagree on the rendezvous: %v", masters)
			}
		}
	}
}
