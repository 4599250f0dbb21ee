package node

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// Two voters of three that were off ask, where they can, whether the third has
// taken over meanwhile; where they cannot they do not wait for ever.
func TestVotersThatWereOff(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	one, two, three := c.hosts[0], c.hosts[1], c.hosts[2]
	one.waitVoters(3)
	unheard := func() string { return strings.Join(one.leads(c).now().failover.Unheard(), " ") }
	for _, h := range c.hosts {
		if len(h.now().failover.Unheard()) != 0 {
			t.Errorf("%s, which has just joined, fears a take-over", h.cfg.Host)
		}
	}

	three.crash()
	was, id := three.kept(), three.now().self.ID
	three.enters(launcher.Epoch{N: 2, By: id}, "")
	three.start() // as one that has taken over, and does not lead yet
	one.eventually("they hear by gossip of a later epoch", func() bool { return unheard() == "spark3" })
	must(t, one.leads(c).now().failover.Dead(id))
	if hosts := unheard(); hosts != "" {
		t.Errorf("unheard after a person's word: %s", hosts)
	}

	for _, h := range c.hosts {
		h.crash()
	}
	three.enters(launcher.Epoch{N: was.Epoch, By: was.EpochBy}, "")
	began := time.Now()
	for _, h := range []*host{one, two} {
		must(t, os.Remove(h.heardFile())) // a reboot
		h.start()
	}
	one.wait(2)
	if hosts := unheard(); hosts != "spark3" && time.Since(began) < 30*time.Second {
		t.Errorf("unheard after a reboot: %q", hosts)
	}
	one.eventually("they have waited for long enough", func() bool { return unheard() == "" })
	if waited := time.Since(began); waited < 30*time.Second {
		t.Errorf("they waited for %s", waited)
	}
}
