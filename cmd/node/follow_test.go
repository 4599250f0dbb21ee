package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/fabric"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// following is somebody who follows on a host.
type following struct {
	t    testing.TB
	told chan wire.Status
	last wire.Status
}

func (h *host) follow() *following {
	f := &following{t: h.t, told: make(chan wire.Status, 1000)}
	ctx, stop := context.WithCancel(h.t.Context())
	ended := make(chan error, 1)
	c := h.client()
	go func() {
		ended <- wire.Follow.Call(ctx, c, wire.Empty{}, func(st wire.Status) error {
			f.told <- st
			return nil
		})
	}()
	h.t.Cleanup(func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			h.t.Errorf("following on %s ended with %v", h.cfg.Host, err)
		}
		c.Close()
	})
	return f
}

// until reads what is told until it is so.
func (f *following) until(what string, ok func(wire.Status) bool) {
	f.t.Helper()
	deadline := time.After(40 * time.Second)
	for {
		select {
		case st := <-f.told:
			if reflect.DeepEqual(st, f.last) {
				f.t.Errorf("told twice: %+v", st)
			}
			f.last = st
			if ok(st) {
				return
			}
		case <-deadline:
			f.t.Fatalf("never told: %s; last %+v", what, f.last)
		}
	}
}

// hears has the node's inventory say what its probe would.
func (h *host) hears(c envgen.Cabling) {
	inventory := &h.now().survey.Inventory
	inventory.Store(inventory.Load().WithCabling(c))
}

// Whoever follows is told of every change on any node, through a change of
// leaders, and hears nothing while nothing changes.
func TestFollow(t *testing.T) {
	c := newCluster(t, 3)
	first := c.hosts[0].wait(3)
	var leader, follower, other *host
	for _, h := range c.hosts {
		switch {
		case h.cfg.Host == first.Leader:
			leader = h
		case follower == nil:
			follower = h
		default:
			other = h
		}
	}
	f := follower.follow()
	f.until("all are ready", func(st wire.Status) bool {
		return st.Self == follower.cfg.Host && st.Leader == leader.cfg.Host && ready(st) == 3
	})
	leader.waitVoters(3) // of two, the state on the way, neither can do without the other

	// A cable that another node's probe hears.
	hears := func(host, nic string) func(wire.Status) bool {
		return func(st wire.Status) bool {
			for _, n := range st.Nodes {
				if n.Host == host && n.Inventory.Cabling != nil {
					return n.Inventory.Cabling.Trouble == nic
				}
			}
			return false
		}
	}
	other.hears(envgen.Cabling{Trouble: "one"})
	f.until("one", hears(other.cfg.Host, "one"))
	for i := range 50 {
		other.hears(envgen.Cabling{Trouble: fmt.Sprint(i)})
	}
	f.until("the newest of many", hears(other.cfg.Host, "49"))

	leader.halt()
	f.until("another leads", func(st wire.Status) bool { return st.Leader != leader.cfg.Host && st.Leader != "" && ready(st) == 2 })
	other.hears(envgen.Cabling{Trouble: "under the next"})
	f.until("a change under the next leader", hears(other.cfg.Host, "under the next"))
	leader.start()
	f.until("the old leader is back", func(st wire.Status) bool { return ready(st) == 3 })
}

// Without a leader it is the node's own view, and says why.
func TestFollowAlone(t *testing.T) {
	c := newCluster(t, 2)
	st := c.hosts[0].wait(2)
	standby := c.hosts[1]
	if st.Leader == standby.cfg.Host {
		t.Fatal("the standby leads")
	}
	f := standby.follow()
	f.until("the leader's view", func(st wire.Status) bool { return ready(st) == 2 })
	for deadline := time.After(40 * time.Second); len(standby.n.record.Nodes()) < 2 || len(standby.n.failover.Raft().Members().Servers) < 2; {
		recordChanged, raftChanged := standby.n.record.Changed(), standby.n.failover.Raft().LeaderChanged()
		select {
		case <-recordChanged:
		case <-raftChanged:
		case <-time.After(50 * time.Millisecond): // raft tells of no new member
		case <-deadline:
			t.Fatal("the standby gets no record")
		}
	}
	c.hosts[0].crash()
	f.until("no leader", func(st wire.Status) bool {
		return st.Leader == "" && strings.Contains(st.Problem, "the only voter") && len(st.Nodes) == 2
	})
	standby.hears(envgen.Cabling{Trouble: "x"})
	f.until("the own view changes", func(st wire.Status) bool {
		return st.Nodes[1].Inventory.Cabling != nil && st.Nodes[1].Inventory.Cabling.Trouble == "x"
	})
	c.hosts[0].start()
	f.until("a leader again", func(st wire.Status) bool { return ready(st) == 2 })
}

// Every node gives its part; one that is away is named.
func TestReportOfAllNodes(t *testing.T) {
	c := newCluster(t, 2)
	c.hosts[1].hears(envgen.Cabling{Trouble: "what the probe says"})
	collect := func() (files map[string]map[string][]byte, missing map[string]string) {
		files, missing = map[string]map[string][]byte{}, map[string]string{}
		client := c.hosts[0].client()
		defer client.Close()
		err := wire.Report.Call(t.Context(), client, wire.Empty{}, func(e wire.Evidence) error {
			if e.Missing != "" {
				missing[e.Host] = e.Missing
				return nil
			}
			if files[e.Host] == nil {
				files[e.Host] = map[string][]byte{}
			}
			files[e.Host][e.Path] = e.Data
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return files, missing
	}
	files, missing := collect()
	if len(missing) > 0 || len(files) != 2 {
		t.Fatalf("missing %v, got %d", missing, len(files))
	}
	for host, part := range files {
		taken, err := fabric.OpenCapture(part)
		if err != nil {
			t.Fatalf("%s: %v", host, err)
		}
		if len(taken.Inventory.NICs) == 0 || !bytes.Contains(part["versions.json"], []byte(`"sparkrun": "test"`)) || !bytes.Contains(part["agent.log"], []byte("level=INFO")) {
			t.Errorf("%s: %+v, %s, %s", host, taken.Inventory, part["versions.json"], part["agent.log"])
		}
	}
	if taken, _ := fabric.OpenCapture(files["spark2"]); taken.Inventory.Cabling == nil || taken.Inventory.Cabling.Trouble != "what the probe says" {
		t.Errorf("the cabling is not in %+v", taken.Inventory)
	}
	c.hosts[1].halt()
	files, missing = collect()
	if len(files) != 1 || missing["spark2"] == "" {
		t.Errorf("without spark2: missing %v, got %d", missing, len(files))
	}
	client := c.hosts[0].client()
	defer client.Close()
	counters, err := wire.Counters.Call(t.Context(), client, wire.Empty{})
	if err != nil || len(counters.Nodes) != 2 || counters.Nodes[0].Error != "" || counters.Nodes[1].Error == "" {
		t.Errorf("counters without spark2: %+v, %v", counters, err)
	}
}

// ready counts the nodes that are.
func ready(st wire.Status) (n int) {
	for _, m := range st.Nodes {
		if m.State == "ready" {
			n++
		}
	}
	return n
}
