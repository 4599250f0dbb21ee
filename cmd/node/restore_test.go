package node

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// asRoot is a call by root on this machine, whoever runs the test.
var asRoot = wire.Caller{User: &wire.User{Name: "root"}}

// snapshot takes a copy of the record, through any host.
func (h *host) snapshot() ([]byte, rendezvous.Backup) {
	h.t.Helper()
	var b bytes.Buffer
	if err := wire.SaveRaft.Call(h.t.Context(), h.now().server.As(asRoot), wire.Empty{}, func(p wire.RaftPiece) error {
		b.Write(p.Data)
		return nil
	}); err != nil {
		h.t.Fatalf("snapshot on %s: %v", h.cfg.Host, err)
	}
	s, err := rendezvous.ReadBackup(bytes.NewReader(b.Bytes()))
	if err != nil {
		h.t.Fatal(err)
	}
	return b.Bytes(), s
}

// restores brings a snapshot and has the host restore it.
func (h *host) restores(content []byte, sum string, force bool) (wire.RaftRestoreResponse, error) {
	h.t.Helper()
	n := h.now()
	for at := 0; at < len(content); at += 1000 {
		if err := wire.RaftBring.Call(h.t.Context(), n.server.As(asRoot), wire.RaftPiece{Offset: int64(at), Data: content[at:min(at+1000, len(content))]}); err != nil {
			h.t.Fatal(err)
		}
	}
	return wire.RaftRestore.Call(h.t.Context(), n.server.As(asRoot), wire.RaftRestoreRequest{Sum: sum, Force: force})
}

// wipe removes a stopped host's raft folder, as a dead disk would.
func (h *host) wipe() {
	h.t.Helper()
	if err := os.RemoveAll(h.state("raft")); err != nil {
		h.t.Fatal(err)
	}
}

// All voters lose their raft folders. The snapshot brings members and history
// back under a new epoch, what ran goes on, what had ended is not started again,
// and neither is a launch of before the loss.
func TestRestore(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	one, two := c.hosts[0], c.hosts[1]
	one.waitVoters(3)
	done, runs := command(1, 1, "true"), command(3, 1, "sleep 600")
	one.run(done)
	go wire.Launch.Call(t.Context(), one.client(), wire.LaunchRequest{Spec: runs}, func(rendezvous.Progress) error { return nil })
	one.eventually("the job runs", func() bool { return one.stateOf(runs.ID) == rendezvous.StateRuns })
	content, s := two.snapshot() // by whoever leads
	if _, err := one.restores(content, s.Sum, false); !errors.Is(err, wire.ErrConflict) || !strings.Contains(err.Error(), "leads") {
		t.Errorf("beside a leader: %v", err)
	}
	later := command(1, 1, "true") // and is not in it
	one.run(later)

	for _, h := range c.hosts {
		h.crash()
		h.wipe()
	}
	for _, h := range c.hosts {
		h.start()
	}
	one.eventually("nobody can lead", func() bool { return errors.Is(one.now().members.NoLeader(), wire.ErrNoLeader) })
	if st, err := wire.ShowRaft.Call(t.Context(), one.now().server.As(asRoot), wire.Empty{}); err != nil || st.Leader != "" || !strings.Contains(st.Problem, "has lost its copy") || len(st.Nodes) == 0 || !st.Nodes[0].Blank {
		t.Errorf("status without a record: %+v, %v", st, err)
	}
	bad := bytes.Clone(content)
	bad[len(bad)/2] ^= 1
	if _, err := one.restores(bad, s.Sum, true); !errors.Is(err, rendezvous.ErrBackup) || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("a damaged file: %v", err)
	}
	res, err := one.restores(content, s.Sum, false)
	if err != nil || res.Epoch != 2 || res.Host != "spark1" {
		t.Fatalf("restore: %+v, %v", res, err)
	}
	one.eventually("it leads in the new epoch", func() bool { return one.leadsNow() && one.now().failover.Epoch().N == 2 })
	one.wait(3)
	one.waitVoters(3)
	for _, h := range c.hosts {
		h.eventually("all copies know the history", func() bool { _, a := h.now().record.Job(done.ID); return a && h.now().failover.Epoch().N == 2 })
	}
	one.eventually("what ran goes on", func() bool { return one.stateOf(runs.ID) == rendezvous.StateRuns })
	cl := one.client()
	defer cl.Close()
	late := later
	late.Epoch = 1
	if err := wire.Launch.Call(t.Context(), cl, wire.LaunchRequest{Spec: late}, func(rendezvous.Progress) error { return nil }); !errors.Is(err, wire.ErrUnknownRetry) {
		t.Errorf("a retry of before the loss: %v", err)
	}
	two.runs(command(3, 1, "true"))
	if _, err := wire.Stop.Call(t.Context(), cl, wire.StopRequest{Job: string(runs.ID), Grace: new(time.Duration)}); err != nil {
		t.Errorf("stop what ran: %v", err)
	}
	one.eventually("it has ended", func() bool { j, _ := one.now().record.Job(runs.ID); return j.Outcome != nil })
}

func (h *host) stateOf(id launcher.JobID) rendezvous.State {
	for _, j := range h.led() {
		if j.Spec.ID == id {
			return j.State
		}
	}
	return ""
}

// A restore that dies at any step is finished by the next start, and what was
// there before is kept, once.
func TestRestoreCrashes(t *testing.T) {
	t.Parallel()
	for name, crash := range map[string]func(t *testing.T, p Paths){
		"before anything": func(*testing.T, Paths) {},
		"the new folder is half": func(t *testing.T, p Paths) {
			must(t, os.MkdirAll(filepath.Join(p.State, "raft.new", "snapshots"), 0o700))
		},
		"the old one is aside": func(t *testing.T, p Paths) {
			must(t, os.Rename(filepath.Join(p.State, "raft"), filepath.Join(p.State, "raft.old")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			restoresAfter(t, newCluster(t, 1).hosts[0], crash)
		})
	}
}

// restoresAfter has a host restore a snapshot, and die in between.
func restoresAfter(t *testing.T, h *host, crash func(t *testing.T, p Paths)) {
	t.Helper()
	before := command(1, 1, "true")
	h.run(before)
	content, s := h.snapshot()
	after := command(1, 1, "true")
	h.run(after)
	n := h.now()
	h.crash()
	must(t, os.WriteFile(h.state("restore.snap"), content, 0o600))
	h.enters(launcher.Epoch{N: s.Epoch.N + 1, By: n.self.ID}, "restore")
	crash(t, h.cfg.Paths)
	h.start()
	h.wait(1)
	r := h.now().record
	if _, known := r.Job(before.ID); !known {
		t.Error("the history is lost")
	}
	if _, known := r.Job(after.ID); known {
		t.Error("it is not the snapshot's record")
	}
	if _, err := os.Stat(filepath.Join(h.state("raft.old"), "raft.db")); err != nil {
		t.Errorf("the old record: %v", err)
	}
	for _, path := range []string{h.state("restore.snap"), h.state("raft.new"), filepath.Join(h.state("raft"), "moving")} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s lies about: %v", path, err)
		}
	}
	// Done, and the note of it lost: it is not done again.
	n = h.now()
	h.crash()
	must(t, os.WriteFile(h.state("restore.snap"), content, 0o600))
	h.enters(n.failover.Epoch(), "restore")
	h.start()
	h.wait(1)
	if e := h.now().record.Epoch(); e.N != s.Epoch.N+1 {
		t.Errorf("epoch %+v", e)
	}
	if _, err := os.Stat(filepath.Join(h.state("raft.old"), "restored")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the restored record has taken the place of the old one: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Who may restore what.
func TestRestoreRefuses(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	h := c.hosts[0]
	content, s := h.snapshot()
	user := wire.Caller{User: &wire.User{Name: "ada", UID: 1000}}
	n := h.now()
	if err := wire.SaveRaft.Call(t.Context(), n.server.As(user), wire.Empty{}, nil); !errors.Is(err, wire.ErrDenied) {
		t.Errorf("a snapshot for a user: %v", err)
	}
	if err := wire.RaftBring.Call(t.Context(), n.server.As(user), wire.RaftPiece{}); !errors.Is(err, wire.ErrDenied) {
		t.Errorf("brought by a user: %v", err)
	}
	other := asRoot
	other.Node = "node-9"
	if _, err := wire.RaftRestore.Call(t.Context(), n.server.As(other), wire.RaftRestoreRequest{Sum: s.Sum}); !errors.Is(err, wire.ErrDenied) {
		t.Errorf("from another machine: %v", err)
	}
	if _, err := h.restores(content, "another", true); !errors.Is(err, wire.ErrDenied) {
		t.Errorf("another sum: %v", err)
	}
	if err := wire.RaftBring.Call(t.Context(), n.server.As(asRoot), wire.RaftPiece{Offset: 7, Data: []byte("x")}); !errors.Is(err, launcher.ErrInvalid) {
		t.Errorf("a piece from nowhere: %v", err)
	}
	foreign := newCluster(t, 1).hosts[0]
	theirs, sum := foreign.snapshot()
	if _, err := h.restores(theirs, sum.Sum, true); !errors.Is(err, wire.ErrDenied) || !strings.Contains(err.Error(), "is of cluster") {
		t.Errorf("another cluster's: %v", err)
	}
	if h.now() != n || n.failover.Epoch().N != 1 {
		t.Error("something was changed")
	}
}
