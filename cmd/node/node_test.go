package node

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
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

// A member's certificate is renewed by the leader, over the member's own key,
// and is in use at once: by the leader, too.
func TestCertificateIsRenewed(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	for _, h := range c.hosts {
		before := h.n.members.List.Gate.Identity()
		if err := h.n.members.Renew(t.Context()); err != nil {
			t.Fatalf("%s: %v", h.cfg.Host, err)
		}
		used := h.n.members.List.Gate.Identity()
		kept, err := trust.LoadIdentity(h.cfg.Paths.trust())
		if err != nil {
			t.Fatal(err)
		}
		if used.Cert.Equal(before.Cert) || !used.Cert.Equal(kept.Cert) || used.Peer != before.Peer {
			t.Errorf("%s: before %v, used %v, kept %v", h.cfg.Host, before, used, kept)
		}
	}
	c.hosts[1].halt()
	c.hosts[1].start()
	c.hosts[1].wait(2)
	if out := c.hosts[1].run(command(2, 1, "true")); out.End != rendezvous.Completed {
		t.Errorf("a launch under new certificates: %+v", out)
	}
}
