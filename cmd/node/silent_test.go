package node

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// The voter of a pair has lost its power: its control stream is missed only 10 s
// later. Until gossip misses it as well it is asked again; from then on every answer
// says what a person can do, and since when nobody leads.
func TestLeaderWithoutPower(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	began := time.Now()
	one, two := c.hosts[0], c.hosts[1]
	two.hasRoles(map[string]string{"spark1": "leader", "spark2": "standby"})
	id, n := one.now().self.ID, two.now()
	two.eventually("its copy is whole, and it has long been started", func() bool {
		return len(n.record.Nodes()) == 2 && len(n.failover.Raft().Members().Servers) == 2 && time.Since(began) > 6*time.Second
	})
	one.crash()
	two.eventually("raft misses its leader", func() bool { return n.failover.Leader() == "" })
	stands := func() {
		n.leads.Store(id)
	}

	stands()
	if err := n.status.Why(errors.New("it does something else")); err.Error() != "it does something else" {
		t.Errorf("a leader that may answer: %v", err)
	}
	client := two.client()
	defer client.Close()
	two.eventually("status says what to type", func() bool {
		stands()
		st, err := wire.ShowStatus.Call(t.Context(), client, wire.StatusRequest{})
		if err != nil || st.Leader != "" {
			t.Fatalf("%+v, %v", st, err)
		}
		said := strings.Contains(st.Problem, "sudo sparkrun takeover --confirm-dead spark1")
		if !said && !strings.Contains(st.Problem, "the leader spark1 does not answer: try again") {
			t.Fatalf("before: %s", st.Problem)
		}
		return said
	})
	stands()
	st, err := wire.ShowStatus.Call(t.Context(), client, wire.StatusRequest{})
	if err != nil || st.Nodes[0].State != "away" || st.Nodes[0].Since.IsZero() || st.Heard.IsZero() || time.Since(st.Heard) > time.Hour {
		t.Errorf("status: %+v, %v", st, err)
	}
	brief, err := wire.ShowStatus.Call(t.Context(), client, wire.StatusRequest{Brief: true})
	if err != nil || brief.Nodes != nil || brief.Problem == "" || brief.Epoch != st.Epoch {
		t.Errorf("brief: %+v, %v", brief, err)
	}
	stands()
	if jobs, err := wire.Jobs.Call(t.Context(), client, wire.JobsRequest{}); err != nil || !strings.Contains(jobs.Problem, "takeover --confirm-dead spark1") || !jobs.Heard.Equal(st.Heard) {
		t.Errorf("jobs: %+v, %v", jobs, err)
	}
	n.leads.Store("")
}
