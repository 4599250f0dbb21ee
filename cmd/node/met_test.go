package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Whom a boot has heard outlives the agent; a person's word does until the
// machine shows itself.
func TestMet(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "met.json")
	open := func() *met {
		m, err := openMet(path)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	m := open()
	if m.known("a") || len(m.Dead) != 0 {
		t.Error("it knows somebody from nowhere")
	}
	if err := m.buries("a", "b"); err != nil {
		t.Fatal(err)
	}
	m = open()
	if !m.known("a") || !m.known("b") {
		t.Errorf("after a restart: %+v", m)
	}
	if err := m.hears("a"); err != nil {
		t.Fatal(err)
	}
	m = open()
	if !m.known("a") || m.Dead["a"] || !m.Dead["b"] {
		t.Errorf("after a sign of life: %+v", m)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openMet(path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "remove the file") {
		t.Errorf("a broken file: %v", err)
	}
}

// Two voters of three that were off ask, where they can, whether the third has
// taken over meanwhile; where they cannot they do not wait for ever.
func TestVotersThatWereOff(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	one, two, three := c.hosts[0], c.hosts[1], c.hosts[2]
	one.waitVoters(3)
	unheard := func() string { return strings.Join(one.leads(c).now().unheard(), " ") }
	for _, h := range c.hosts {
		if !h.now().met.settled() {
			t.Errorf("%s, which has just joined, fears a take-over", h.cfg.Host)
		}
	}

	three.crash()
	m, err := loadMembership(three.cfg.Paths)
	must(t, err)
	was := m
	m.Epoch, m.EpochBy = 2, m.Node
	must(t, m.save(three.cfg.Paths))
	three.start() // as one that has taken over, and does not lead yet
	one.eventually("they hear by gossip of a later epoch", func() bool { return unheard() == "spark3" })
	must(t, one.leads(c).now().met.buries(m.Node))
	if hosts := unheard(); hosts != "" {
		t.Errorf("unheard after a person's word: %s", hosts)
	}

	for _, h := range c.hosts {
		h.crash()
	}
	must(t, was.save(three.cfg.Paths))
	began := time.Now()
	for _, h := range []*host{one, two} {
		must(t, os.Remove(h.cfg.Paths.met())) // a reboot
		h.start()
	}
	one.wait(2)
	if hosts := unheard(); hosts != "spark3" && time.Since(began) < settleAfter {
		t.Errorf("unheard after a reboot: %q", hosts)
	}
	one.eventually("they have waited for long enough", func() bool { return unheard() == "" })
	if waited := time.Since(began); waited < settleAfter {
		t.Errorf("they waited for %s", waited)
	}
}
