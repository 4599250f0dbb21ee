package node

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// A voter that has lost its raft folder does not vote: two that would be a
// majority by number elect nobody. Once somebody leads it is taken in anew.
func TestWipedVoterDoesNotVote(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	one := c.hosts[0]
	one.waitVoters(3)
	kept := command(1, 1, "true")
	one.run(kept)
	for _, h := range c.hosts {
		h.crash()
	}
	wiped, stays, back := c.hosts[0], c.hosts[1], c.hosts[2]
	wiped.wipe()
	wiped.start()
	stays.start()
	if !wiped.now().failover.Blank() {
		t.Fatal("it takes an empty folder for its own")
	}
	// For several election time-outs of the one that asks for votes.
	term := func() uint64 { _, term := stays.now().failover.Raft().Leader(); return term }
	began := term()
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if stays.leadsNow() || wiped.leadsNow() {
			t.Fatal("one voter and one that has forgotten have elected a leader")
		}
	}
	if x := wiped.now().failover.Raft().Members(); len(x.Servers) != 0 || term() > began+1 {
		t.Errorf("the blank one has %+v; term %d after %d", x, term(), began)
	}
	back.start()
	stays.wait(3)
	stays.waitVoters(3)
	wiped.eventually("it has all again", func() bool { _, known := wiped.now().record.Job(kept.ID); return known })
	if wiped.now().failover.Blank() {
		t.Error("it is still blank")
	}
}

// A standby that has lost its folder gets another.
func TestWipedStandby(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	one, two := c.hosts[0], c.hosts[1]
	one.hasRoles(map[string]string{"spark1": "leader", "spark2": "standby"})
	kept := command(1, 1, "true")
	one.run(kept)
	two.crash()
	two.wipe()
	two.start()
	one.hasRoles(map[string]string{"spark1": "leader", "spark2": "standby"})
	two.eventually("it has all again", func() bool { _, known := two.now().record.Job(kept.ID); return known })
}

// A pair whose voter has lost its folder: it says so, and the standby takes over
// while it is there. What runs on it goes on.
func TestTakeoverOfABlankVoter(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	one, two := c.hosts[0], c.hosts[1]
	one.hasRoles(map[string]string{"spark1": "leader", "spark2": "standby"})
	runs := command(2, 1, "sleep 600")
	go wire.Launch.Call(t.Context(), one.client(), wire.LaunchRequest{Spec: runs}, func(rendezvous.Progress) error { return nil })
	one.eventually("the job runs", func() bool { return one.stateOf(runs.ID) == rendezvous.StateRuns })
	two.eventually("the copy is whole", func() bool { _, known := two.now().record.Job(runs.ID); return known })
	one.crash()
	one.wipe()
	one.start()
	two.eventually("it says so", func() bool {
		res, err := wire.Seen.Call(t.Context(), two.now().dial.Client(one.now().self.ID), wire.SeenRequest{})
		return err == nil && res.Blank
	})
	two.eventually("the take-over is made", func() bool {
		res, err := wire.Takeover.Call(t.Context(), two.now().server.As(asRoot), wire.TakeoverRequest{Dead: []string{"spark1"}})
		return err == nil && res.Epoch == 2
	})
	two.eventually("it leads", func() bool { return two.leadsNow() && two.now().failover.Epoch().N == 2 })
	two.hasRoles(map[string]string{"spark1": "standby", "spark2": "leader"})
	if d := two.now().record.Deaths(); len(d) != 0 {
		t.Errorf("called dead: %+v", d)
	}
	two.eventually("the job goes on", func() bool { return two.stateOf(runs.ID) == rendezvous.StateRuns })
	cl := two.client()
	defer cl.Close()
	if _, err := wire.Stop.Call(t.Context(), cl, wire.StopRequest{Job: string(runs.ID), Grace: new(time.Duration)}); err != nil {
		t.Error(err)
	}
	two.eventually("it has ended", func() bool { j, _ := two.now().record.Job(runs.ID); return j.Outcome != nil })
}

// A machine's whole state is put back to a backup: the others know of a later
// life, so its old vote does not count; it is taken in anew.
func TestStatePutBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	one, old := c.hosts[0], c.hosts[2]
	one.waitVoters(3)
	old.crash()
	backup := filepath.Join(t.TempDir(), "backup")
	if out, err := exec.Command("cp", "-a", old.cfg.Paths.State, backup).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for range 2 { // lives that the backup knows nothing of
		old.start()
		old.eventually("it has told them", func() bool {
			id, life := old.now().self.ID, old.kept().Life
			return c.hosts[0].kept().Lives[id] == life && c.hosts[1].kept().Lives[id] == life
		})
		one.runs(command(1, 1, "true"))
		old.crash()
	}
	must(t, os.RemoveAll(old.cfg.Paths.State))
	if out, err := exec.Command("cp", "-a", backup, old.cfg.Paths.State).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	old.start()
	one.eventually("it was found out", func() bool {
		_, err := os.Stat(filepath.Join(old.state("raft.old"), "raft.db"))
		return err == nil
	})
	one.wait(3)
	one.waitVoters(3)
	old.eventually("it has all again", func() bool { return len(old.now().record.Jobs()) == 2 && !old.now().failover.Blank() })
}

// The raft folder alone is put back: that the machine knows itself.
func TestRaftFolderPutBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	h := c.hosts[0]
	h.crash()
	backup := filepath.Join(t.TempDir(), "backup")
	if out, err := exec.Command("cp", "-a", h.state("raft"), backup).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	h.start()
	h.wait(1)
	h.crash()
	h.wipe()
	if out, err := exec.Command("cp", "-a", backup, h.state("raft")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	h.start()
	if n := h.now(); !n.failover.Blank() || n.failover.Raft().Votes() {
		t.Error("it votes with a folder that has forgotten")
	}
}

// A damaged file: the agent does not start, and says what to do, and that works.
func TestDamagedRecord(t *testing.T) {
	t.Parallel()
	followsTheWayOut(t, newCluster(t, 1).hosts[0])
}

func followsTheWayOut(t *testing.T, h *host) {
	t.Helper()
	h.crash()
	dir := h.state("raft")
	file := filepath.Join(dir, "raft.db")
	b, err := os.ReadFile(file)
	must(t, err)
	for i := 2 * 4096; i < len(b); i += 64 { // all but the two pages that say where the rest is: of that any page may be a free one
		b[i] ^= 0xff
	}
	must(t, os.WriteFile(file, b, 0o600))
	h.start()
	select {
	case err = <-h.done:
	case <-time.After(time.Minute):
		h.stop()
		err = <-h.done
	}
	h.stop = nil
	for _, want := range []string{file, "damaged", "mv " + dir, "sparkrun takeover", "sparkrun raft restore FILE"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("it says %v, and not %q", err, want)
		}
	}
	_, way, _ := strings.Cut(err.Error(), "`sudo ")
	way, _, _ = strings.Cut(way, "`")
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", way).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", way, err, out)
	}
	if kept, err := os.ReadFile(filepath.Join(dir+".damaged", "raft.db")); err != nil || !bytes.Equal(kept, b) {
		t.Errorf("the damaged file is not kept: %v", err)
	}
	h.start()
	if n := h.now(); !n.failover.Blank() || n.failover.Raft().Votes() {
		t.Error("it does not wait to be taken in anew")
	}
}

// The word that a machine is dead is recorded; its end too, when it is heard.
func TestDeathOnRecord(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	one, three := c.hosts[0], c.hosts[2]
	one.waitVoters(3)
	id := three.now().self.ID
	runs := command(3, 1, "sleep 600")
	runs.NodeTimeout = launcher.Never
	go wire.Launch.Call(t.Context(), one.client(), wire.LaunchRequest{Spec: runs}, func(rendezvous.Progress) error { return nil })
	one.eventually("the job runs", func() bool { return one.stateOf(runs.ID) == rendezvous.StateRuns })
	boot := three.now().self.Boot
	three.crash()
	lead := one.leads(c)
	lead.eventually("its stream is down", func() bool {
		st, err := wire.ShowStatus.Call(t.Context(), lead.client(), wire.StatusRequest{})
		return err == nil && slices.ContainsFunc(st.Nodes, func(m wire.NodeStatus) bool { return m.ID == id && m.State == "away" })
	})
	// Past the checks: on one machine the dead one's address always answers.
	n := lead.now()
	dead := rendezvous.Death{Node: id, Boots: n.record.Boots(id)}
	must(t, n.failover.Recorder(0).Apply(t.Context(), dead.Entry(), func() bool { return false }))
	for _, h := range c.hosts[:2] {
		h.eventually("both copies have it", func() bool {
			d := h.now().record.Deaths()
			return len(d) == 1 && d[0].Node == id && slices.Equal(d[0].Boots, []string{boot})
		})
	}
	three.start()
	one.wait(3)
	for _, h := range c.hosts {
		h.eventually("it was heard", func() bool { return len(h.now().record.Deaths()) == 0 })
	}
	one.eventually("the job is stopped", func() bool {
		_, err := wire.Stop.Call(t.Context(), one.client(), wire.StopRequest{Job: string(runs.ID)})
		return err == nil
	})
	one.eventually("the job has ended", func() bool { j, _ := one.now().record.Job(runs.ID); return j.Outcome != nil })
}

// runs launches once there is a leader, however long an election takes here.
func (h *host) runs(spec launcher.Spec) {
	h.t.Helper()
	c := h.client()
	defer c.Close()
	h.eventually("it is launched and ends", func() bool {
		err := wire.Launch.Call(h.t.Context(), c, wire.LaunchRequest{Spec: spec}, func(rendezvous.Progress) error { return nil })
		if err != nil && !errors.Is(err, wire.ErrRetry) && !errors.Is(err, wire.ErrNoLeader) {
			h.t.Fatalf("launch on %s: %v", h.cfg.Host, err)
		}
		j, _ := h.now().record.Job(spec.ID)
		return err == nil && j.Outcome != nil && j.Outcome.End == rendezvous.Completed
	})
}

// leads finds the host that leads.
func (h *host) leads(c *cluster) (leader *host) {
	h.t.Helper()
	h.eventually("somebody leads", func() bool {
		for _, x := range c.hosts {
			if x.stop != nil && x.leadsNow() {
				leader = x
			}
		}
		return leader != nil
	})
	return leader
}
