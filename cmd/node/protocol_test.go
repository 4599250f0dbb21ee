package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// rebuilt starts a host's agent again as one of another build.
func (h *host) rebuilt(version string, protocol int) {
	h.t.Helper()
	h.halt()
	h.cfg.Version, h.cfg.protocol = version, new(protocol)
	h.start()
}

// knows asks the node that leads whether all that have the record know entries of this build's protocol.
func (c *cluster) knows() error {
	return c.hosts[0].leads(c).now().failover.EveryReplicaKnows(rendezvous.Protocol)
}

// A cluster is upgraded node by node under a running job: N-1 and N have one
// leader, one record and each other's jobs all the while. What would stop a node
// of N-1 is written once none is left.
func TestRollingUpgrade(t *testing.T) {
	c := newCluster(t, 3)
	for _, h := range c.hosts {
		h.rebuilt("old", rendezvous.Protocol-1)
		c.hosts[0].wait(3)
	}
	enough := filepath.Join(t.TempDir(), "enough")
	long := command(3, 1, "while [ ! -e "+enough+" ]; do sleep 0.1; done; exit 5")
	began := c.hosts[0].client()
	defer began.Close()
	if err := wire.Launch.Call(t.Context(), began, wire.LaunchRequest{Spec: long}, func(p rendezvous.Progress) error {
		if p.Step == rendezvous.StepRunning {
			return errRuns
		}
		return nil
	}); !errors.Is(err, errRuns) {
		t.Fatalf("launch: %v", err)
	}
	for i, h := range c.hosts {
		h.eventually(fmt.Sprintf("with %d of 3 upgraded, an entry that stops N-1 is refused", i), func() bool { return c.knows() != nil })
		h.rebuilt("new", rendezvous.Protocol)
		st := h.wait(3)
		for j, n := range st.Nodes { // by name
			if want := map[bool]string{true: "new", false: "old"}[j <= i]; n.Version != want {
				t.Errorf("after %d upgrades %s is shown as %q, want %q", i+1, n.Host, n.Version, want)
			}
		}
		for _, from := range []*host{c.hosts[0], c.hosts[2]} { // a new one; the last to be old
			from.runs(command(3, 1, "exit 0"))
		}
	}
	c.hosts[0].eventually("the record has it that all are upgraded", func() bool { return c.knows() == nil })
	if err := os.WriteFile(enough, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	c.hosts[1].eventually("the job that ran all the while has ended", func() bool {
		j, _ := c.hosts[1].now().record.Job(long.ID)
		return j.Outcome != nil
	})
	if j, _ := c.hosts[1].now().record.Job(long.ID); j.Outcome.ExitCode != 5 || j.Plan.Generation != 1 {
		t.Errorf("the job that ran all the while ended with %+v in generation %d, want exit code 5 in 1", j.Outcome, j.Plan.Generation)
	}
}

// A build two protocols away gets no control stream, and status says why; a
// newcomer of one is not let in.
func TestTooFarApart(t *testing.T) {
	c := newCluster(t, 3)
	for _, far := range []int{rendezvous.Protocol + 2, rendezvous.Protocol - 2} {
		c.hosts[2].rebuilt("far", far)
		why := ""
		for deadline := time.Now().Add(time.Minute); !strings.Contains(why, rendezvous.ErrApart.Error()); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("protocol %d: status says %q of spark3", far, why)
			}
			for _, n := range c.hosts[0].wait(2).Nodes {
				if n.Host == "spark3" && n.State == "away" {
					why = n.Why
				}
			}
		}
		c.hosts[0].runs(command(2, 1, "exit 0"))
		c.hosts[2].rebuilt("near", rendezvous.Protocol)
		for _, n := range c.hosts[0].wait(3).Nodes {
			if n.Why != "" {
				t.Errorf("back at our protocol, status says of %s: %s", n.Host, n.Why)
			}
		}
	}

	token, err := wire.Token.Call(t.Context(), c.hosts[0].client(), wire.TokenRequest{Uses: 1, TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cfg := c.hosts[0].cfg
	cfg.Paths = Paths{State: dir + "/state", Run: dir + "/run", Sysfs: "/sys", Socket: dir + "/agent.sock"}
	cfg.Host, cfg.Management, cfg.protocol = "spark4", strings.TrimSuffix(c.hosts[2].addr, "12")+"13", new(rendezvous.Protocol+2)
	if _, err := Join(t.Context(), cfg, c.hosts[0].addr, token.Token); !errors.Is(err, rendezvous.ErrApart) {
		t.Errorf("a newcomer two protocols away: %v", err)
	}
	cfg.protocol = new(rendezvous.Protocol + 1)
	if _, err := Join(t.Context(), cfg, c.hosts[0].addr, token.Token); err != nil {
		t.Errorf("a newcomer one protocol away, with the same token: %v", err)
	}
	st, err := wire.ShowStatus.Call(t.Context(), c.hosts[0].client(), wire.StatusRequest{})
	if i := slices.IndexFunc(st.Nodes, func(n wire.NodeStatus) bool { return n.Host == "spark4" }); err != nil || i < 0 ||
		st.Nodes[i].State != "joined" || !strings.Contains(st.Nodes[i].Why, "has not started yet") {
		t.Errorf("a newcomer without an agent: %+v, %v", st.Nodes, err)
	}
}

// errRuns ends a launch that has been followed far enough.
var errRuns = errors.New("it runs")
