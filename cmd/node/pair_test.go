package node

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// roles are the members' parts as a host sees them, by host.
func (h *host) roles() map[string]string {
	h.t.Helper()
	c := h.client()
	defer c.Close()
	st, err := wire.ShowStatus.Call(h.t.Context(), c, wire.StatusRequest{})
	if err != nil {
		h.t.Fatalf("status on %s: %v", h.cfg.Host, err)
	}
	roles := map[string]string{}
	for _, n := range st.Nodes {
		roles[n.Host] = n.Role
	}
	return roles
}

// hasRoles waits until a host sees the members in these parts.
func (h *host) hasRoles(want map[string]string) {
	h.t.Helper()
	h.eventually("the roles are as they should be", func() bool { return maps.Equal(h.roles(), want) })
}

// eventually waits for what nothing in the test is told of.
func (h *host) eventually(what string, ok func() bool) {
	h.t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			h.t.Fatalf("%s: not within a minute: %s; roles %v", h.cfg.Host, what, h.roles())
		}
	}
}

// Either machine of a pair is stopped and started, in turn: the other one leads
// and launches, and who comes back stands by.
func TestPairStopsOneByOne(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	one, two := c.hosts[0], c.hosts[1]
	one.hasRoles(map[string]string{"spark1": "leader", "spark2": "standby"})
	for range 2 {
		for _, goes := range []*host{one, two} {
			stays := one
			if goes == one {
				stays = two
			}
			goes.halt()
			if out := stays.run(command(1, 1, "true")); out.End != rendezvous.Completed {
				t.Fatalf("a launch on %s while %s is stopped: %+v", stays.cfg.Host, goes.cfg.Host, out)
			}
			goes.start()
			goes.wait(2)
			stays.hasRoles(map[string]string{stays.cfg.Host: "leader", goes.cfg.Host: "standby"})
		}
	}
}

// Both are stopped at once, again and again: neither waits for the other, and
// whatever they have come to, one vote decides when they are back.
func TestPairStopsAtOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	one, two := c.hosts[0], c.hosts[1]
	for round := range 6 {
		one.eventually("one leads, one stands by", func() bool {
			r := one.roles()
			return r["spark1"] == "leader" && r["spark2"] == "standby" || r["spark1"] == "standby" && r["spark2"] == "leader"
		})
		began := time.Now()
		var stopped sync.WaitGroup
		stopped.Go(one.halt)
		time.Sleep(time.Duration(round*5) * time.Millisecond) // from "at the same time" to "in the middle of it"
		stopped.Go(two.halt)
		stopped.Wait()
		t.Logf("both stopped within %s", time.Since(began))
		two.start()
		one.start()
		one.wait(2)
		if out := two.run(command(2, 1, "true")); out.End != rendezvous.Completed {
			t.Fatalf("round %d: %+v", round, out)
		}
	}
}

// A standby that is being stopped takes nothing over.
func TestWhoStopsSucceedsNobody(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	one, two := c.hosts[0], c.hosts[1]
	two.n.failover.StepAside(t.Context())
	if err := wire.Succeed.Call(t.Context(), one.n.dial.Client(two.n.self.ID), wire.Empty{}); !errors.Is(err, wire.ErrDenied) {
		t.Errorf("got %v, want a refusal", err)
	}
	one.halt()
	if two.n.failover.Raft().Votes() {
		t.Error("the standby got the vote all the same")
	}
	one.start()
	one.wait(2)
	if err := wire.Succeed.Call(t.Context(), two.n.dial.Client(one.n.self.ID), wire.Empty{}); !errors.Is(err, wire.ErrDenied) {
		t.Errorf("who does not lead has nothing to hand over: got %v", err)
	}
}

// Who has been taken over gives way when the newer leader reaches it, with all
// that it has recorded and all that it runs; from then on it is of that epoch.
func TestOlderEpochGivesWay(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	one, two := c.hosts[0], c.hosts[1]
	one.hasRoles(map[string]string{"spark1": "leader", "spark2": "standby"})
	both := command(1, 1, "true")
	one.run(both)
	two.eventually("the copy is whole", func() bool { _, known := two.now().record.Job(both.ID); return known })
	one.crash()

	// A person's word, past the checks: on one machine the dead one's address
	// always answers.
	n := two.now()
	two.halt()
	two.enters(launcher.Epoch{N: 2, By: n.self.ID}, "take-over", one.now().self.ID)
	two.start()
	two.wait(1)
	if out := two.run(command(1, 1, "true")); out.End != rendezvous.Completed {
		t.Fatalf("a launch after the take-over: %+v", out)
	}
	if hosts := two.now().failover.Unheard(); len(hosts) != 0 {
		t.Errorf("unheard after a person's word: %v", hosts)
	}
	two.crash()

	// The old voter, alone: it leads its own epoch. What it has heard is of an
	// earlier life of the machine.
	if err := os.Remove(one.heardFile()); err != nil {
		t.Fatal(err)
	}
	one.start()
	one.wait(1)
	if hosts := one.now().failover.Unheard(); len(hosts) != 1 || hosts[0] != "spark2" {
		t.Errorf("unheard on the old voter: %v", hosts)
	}
	old := command(1, 1, "sleep 600")
	lone := make(chan struct{})
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		defer close(lone)
		cl := one.client()
		defer cl.Close()
		wire.Launch.Call(ctx, cl, wire.LaunchRequest{Spec: old}, func(rendezvous.Progress) error { return nil })
	}()
	one.eventually("its own job runs", func() bool {
		return slices.ContainsFunc(one.led(), func(j rendezvous.JobStatus) bool {
			return j.Spec.ID == old.ID && j.State == rendezvous.StateRuns
		})
	})
	leave()
	<-lone

	two.start()
	two.wait(2)
	two.hasRoles(map[string]string{"spark1": "standby", "spark2": "leader"})
	for _, h := range c.hosts {
		if e := h.now().failover.Epoch(); e.N != 2 || e.By != two.now().self.ID {
			t.Errorf("%s is in epoch %+v", h.cfg.Host, e)
		}
		h.eventually("all jobs are known", func() bool {
			_, a := h.now().record.Job(both.ID)
			_, b := h.now().record.Job(old.ID)
			return a && b
		})
	}
	two.eventually("the older side's job goes on", func() bool {
		return slices.ContainsFunc(two.led(), func(j rendezvous.JobStatus) bool {
			return j.Spec.ID == old.ID && j.State == rendezvous.StateRuns
		})
	})
	cl := one.client()
	defer cl.Close()
	if _, err := wire.Stop.Call(t.Context(), cl, wire.StopRequest{Job: string(old.ID), Grace: new(time.Duration)}); err != nil {
		t.Errorf("stop it through the standby: %v", err)
	}
	two.eventually("it has ended", func() bool { j, _ := two.now().record.Job(old.ID); return j.Outcome != nil })
}

// The last thing that a sole voter acknowledged before its power went is handed
// over, though the later epoch's leader reaches it before it has elected itself.
func TestLastWordIsHandedOver(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	one, two := c.hosts[0], c.hosts[1]
	one.hasRoles(map[string]string{"spark1": "leader", "spark2": "standby"})
	two.eventually("it has a copy of the record", two.now().failover.HasRecord)
	two.crash()
	last := command(1, 1, "exec sleep 1000")
	cl := one.client()
	defer cl.Close()
	if err := wire.Launch.Call(t.Context(), cl, wire.LaunchRequest{Spec: last}, func(rendezvous.Progress) error { return errRuns }); !errors.Is(err, errRuns) {
		t.Fatal(err)
	}
	one.crash()
	n := two.now()
	two.enters(launcher.Epoch{N: 2, By: n.self.ID}, "take-over", one.now().self.ID)
	two.start()
	two.wait(1)
	one.start()
	if !one.now().failover.Raft().Unapplied() && one.now().failover.Epoch().N == 1 && !one.leadsNow() {
		t.Log("its record was whole at once: this run shows less than others")
	}
	two.hasRoles(map[string]string{"spark1": "standby", "spark2": "leader"})
	if _, known := two.now().record.Job(last.ID); !known {
		t.Error("a job that was acknowledged is lost")
	}
	if _, err := wire.Stop.Call(t.Context(), two.client(), wire.StopRequest{Job: string(last.ID), Grace: new(time.Duration)}); err != nil {
		t.Error(err)
	}
}

// Whoever is asked about a take-over says what it knows against it.
func TestObjections(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	one, two := c.hosts[0], c.hosts[1]
	one.hasRoles(map[string]string{"spark1": "leader", "spark2": "standby"})
	n := two.n
	two.eventually("it has a copy of the record", n.failover.HasRecord)
	objects := func(change func(*wire.ObjectionRequest)) string {
		r := wire.ObjectionRequest{Dead: []launcher.NodeID{one.n.self.ID}, Epoch: n.failover.Epoch()}
		r.Term, r.Index = n.failover.Raft().Last()
		change(&r)
		res, err := wire.Objection.Call(t.Context(), n.server.As(wire.Caller{Host: "spark3", Node: "c"}), r)
		must(t, err)
		return res.Why
	}
	asIs := func(*wire.ObjectionRequest) {}
	if why := objects(asIs); !strings.Contains(why, "hears spark1, which leads") {
		t.Errorf("the leader is there: %q", why)
	}
	one.crash()
	two.eventually("the leader is missed", func() bool { return n.failover.Leader() == "" })
	for name, tt := range map[string]struct {
		change func(*wire.ObjectionRequest)
		want   string
	}{
		"an older copy": {func(r *wire.ObjectionRequest) { r.Index-- }, "has a newer copy of the record than spark3"},
		"an older term": {func(r *wire.ObjectionRequest) { r.Term--; r.Index += 10 }, "has a newer copy of the record than spark3"},
		// On one machine the dead one's address always answers.
		"a machine that answers": {asIs, "finds that spark1 is not dead: "},
		"nobody is dead":         {func(r *wire.ObjectionRequest) { r.Dead = nil }, ""},
		"another epoch's copy":   {func(r *wire.ObjectionRequest) { r.Epoch.N++; r.Index, r.Dead = 0, nil }, ""},
	} {
		if why := objects(tt.change); (why == "") != (tt.want == "") || !strings.Contains(why, tt.want) {
			t.Errorf("%s: got %q, want %q", name, why, tt.want)
		}
	}
	two.crash()
	two.enters(launcher.Epoch{N: 5, By: one.n.self.ID}, "")
	two.start()
	n = two.now()
	if why := objects(func(r *wire.ObjectionRequest) { r.Epoch.N, r.Dead = 1, nil }); !strings.Contains(why, "is in epoch 5, which spark1 has led") {
		t.Errorf("a later epoch: %q", why)
	}
}
