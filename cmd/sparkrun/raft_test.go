package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// fakeRaft gives a snapshot in pieces, and takes one.
type fakeRaft struct {
	status   wire.RaftStatus
	snapshot []byte
	restore  func(wire.RaftRestoreRequest) (wire.RaftRestoreResponse, error)

	brought  []byte
	requests []wire.RaftRestoreRequest
}

func (f *fakeRaft) Calls() []wire.Call {
	return []wire.Call{
		wire.ShowRaft.Serve(func(context.Context, wire.Caller, wire.Empty) (wire.RaftStatus, error) {
			return f.status, nil
		}),
		wire.SaveRaft.Serve(f.save), wire.RaftBring.Serve(f.bring), wire.RaftRestore.Serve(f.restored),
	}
}

func (f *fakeRaft) save(_ context.Context, _ wire.Caller, _ wire.Empty, fn func(wire.RaftPiece) error) error {
	half := len(f.snapshot) / 2
	return errors.Join(fn(wire.RaftPiece{Data: f.snapshot[:half]}),
		fn(wire.RaftPiece{Offset: int64(half), Data: f.snapshot[half:]}))
}

func (f *fakeRaft) bring(_ context.Context, _ wire.Caller, p wire.RaftPiece) (wire.Empty, error) {
	f.brought = append(f.brought[:p.Offset], p.Data...)
	return wire.Empty{}, nil
}

func (f *fakeRaft) restored(_ context.Context, _ wire.Caller, r wire.RaftRestoreRequest) (wire.RaftRestoreResponse,
	error) {
	f.requests = append(f.requests, r)
	return f.restore(r)
}

// snapshotOf is a record of one machine and one job, in a file.
func snapshotOf(t *testing.T) []byte {
	t.Helper()
	r := rendezvous.NewRecord()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	add := func(index uint64, e rendezvous.Entry) {
		e.At = at
		b, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if answer := r.Apply(index, b); answer != nil {
			t.Fatal(answer)
		}
	}
	add(1, rendezvous.Entry{Kind: rendezvous.KindFound, Found: &rendezvous.Found{Cluster: "3f2a", Epoch: 1,
		First: rendezvous.Node{ID: "id1", Host: "spark1", Addr: netip.MustParseAddrPort("10.0.0.1:7940")}}})
	job := apptest.SomeJobs().Jobs[1].Job
	job.Plan.Generation = 1
	add(2, job.Entry())
	b, err := r.Backup(rendezvous.BackupHead{Taken: at, Host: "spark1", Version: "1.2.3"})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRaftSnapshot(t *testing.T) {
	f := &fakeRaft{snapshot: snapshotOf(t)}
	b := apptest.Agent(f, &apptest.FakeCluster{})
	name := filepath.Join(t.TempDir(), "a.snap")
	code, out, errs := cli(t, b, "raft", "snapshot", name)
	if code != 0 || !strings.Contains(out, "entry 2 of epoch 1") || errs != "" {
		t.Fatalf("exit %d, %q, %q", code, out, errs)
	}
	got, err := os.ReadFile(name)
	if err != nil || !bytes.Equal(got, f.snapshot) {
		t.Errorf("the file: %v", err)
	}
	if fi, err := os.Stat(name); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("its mode: %v, %v", fi.Mode(), err)
	}
	if code, _, errs = cli(t, b, "raft", "snapshot", name); code != app.ExitFailure ||
		!strings.Contains(errs, "--force overwrites it") {
		t.Errorf("over another: exit %d, %s", code, errs)
	}
	if code, _, errs = cli(t, b, "raft", "snapshot", "--force", name); code != 0 {
		t.Errorf("by force: exit %d, %s", code, errs)
	}
	f.snapshot = f.snapshot[:len(f.snapshot)-9]
	if code, _, errs = cli(t, b, "raft", "snapshot", "--force", name); code != app.ExitFailure ||
		!strings.Contains(errs, "cut short") {
		t.Errorf("cut on its way: exit %d, %s", code, errs)
	}
	if after, err := os.ReadFile(name); err != nil || !bytes.Equal(got, after) {
		t.Error("it has spoilt the one that was there")
	}
	if left, _ := os.ReadDir(filepath.Dir(name)); len(left) != 1 {
		t.Errorf("files left: %v", left)
	}

	_, out, _ = cli(t, b, "raft", "inspect", name)
	apptest.Golden(t, "raft-inspect.txt", out)
	if code, out, _ = cli(t, b, "raft", "inspect", "--json", name); code != 0 ||
		!strings.Contains(out, `"jobs_not_ended": 1`) {
		t.Errorf("exit %d: %s", code, out)
	}
}

// A restore is checked before anybody is asked, asked before it is done, and
// over when this machine leads in the new epoch.
func TestRaftRestore(t *testing.T) {
	content := snapshotOf(t)
	name := filepath.Join(t.TempDir(), "a.snap")
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := rendezvous.ReadBackup(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	f := &fakeRaft{restore: func(wire.RaftRestoreRequest) (wire.RaftRestoreResponse, error) {
		if asked++; asked == 1 {
			return wire.RaftRestoreResponse{}, fmt.Errorf("it has just been started: %w", wire.ErrRetry)
		}
		return wire.RaftRestoreResponse{Host: "spark1", Epoch: 2, Kept: "/var/lib/sparkrun/raft.old"}, nil
	}}
	looks := 0
	c := &apptest.FakeCluster{OnStatus: func(wire.StatusRequest) (wire.Status, error) {
		if looks++; looks == 1 {
			return wire.Status{}, fmt.Errorf("it opens anew: %w", wire.ErrRetry)
		}
		return wire.Status{Epoch: 2, Leader: "spark1"}, nil
	}}
	b := apptest.Agent(f, c)
	code, out, errs := cli(t, b, "raft", "restore", "--yes", name)
	want := "spark1 leads, in epoch 2, with the record of 2026-01-02T03:04:05Z\nthe record that was here is kept in /var/lib/sparkrun/raft.old\n"
	if code != 0 || out != want || !strings.Contains(errs, "1 machines (spark1), 1 jobs, of which 1 had not ended") {
		t.Errorf("exit %d, %q, %q", code, out, errs)
	}
	check, do := wire.RaftRestoreRequest{Sum: s.Sum, Check: true}, wire.RaftRestoreRequest{Sum: s.Sum}
	if d := cmp.Diff([]wire.RaftRestoreRequest{check, check, do}, f.requests); d != "" {
		t.Error(d)
	}
	if !bytes.Equal(f.brought, content) {
		t.Error("another file was brought")
	}

	f.requests = nil
	if code, _, errs = cli(t, b, "raft", "restore", name); code != app.ExitUsage || !strings.Contains(errs, "--yes") ||
		len(f.requests) != 1 || !f.requests[0].Check {
		t.Errorf("nobody agreed: exit %d, %s, %+v", code, errs, f.requests)
	}
	f.restore = func(wire.RaftRestoreRequest) (wire.RaftRestoreResponse, error) {
		return wire.RaftRestoreResponse{}, fmt.Errorf("%w: spark2 leads", wire.ErrConflict)
	}
	if code, _, errs = cli(t, b, "raft", "restore", "--yes", name); code != app.ExitFailure ||
		!strings.Contains(errs, "spark2 leads") {
		t.Errorf("refused: exit %d, %s", code, errs)
	}
	f.requests = nil
	if err := os.WriteFile(name, content[:len(content)-3], 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs = cli(t, b, "raft", "restore", "--yes", name); code != app.ExitFailure ||
		!strings.Contains(errs, "cut short") || f.requests != nil {
		t.Errorf("a damaged file: exit %d, %s", code, errs)
	}
}

func TestRaftStatus(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f := &fakeRaft{status: wire.RaftStatus{Cluster: "3f2a", Epoch: 2, Term: 7, Self: "spark2", Role: "voter",
		Leader: "spark1", Nodes: []wire.NodeRaft{
			{Host: "spark1", Role: "leader", State: "leader", Epoch: 2, Term: 7, Commit: 300, Applied: 300, First: 130,
				Last: 300, LogBytes: 65536,
				Snapshot: &wire.RaftSnapshot{Index: 257, Bytes: 12000, Time: at}},
			{Host: "spark2", Role: "voter", State: "follower", Epoch: 2, Term: 7, Commit: 299, Applied: 299, First: 200,
				Last: 300, LogBytes: 32768, Contact: new(41 * time.Millisecond)},
			{Host: "spark3", Role: "voter", Error: "it does not answer", Silent: 5 * time.Minute},
			{Host: "spark4", State: "follower", Blank: true, LogBytes: 16384},
		}}}
	b := apptest.Agent(f)
	code, out, errs := cli(t, b, "raft", "status")
	if code != 0 || errs != "sparkrun: spark3: it does not answer, for 5m\nsparkrun: spark4 has lost its copy of the record, and votes again once a leader has taken it in anew\n" {
		t.Errorf("exit %d, %s", code, errs)
	}
	apptest.Golden(t, "raft-status.txt", out)
	f.status.Leader, f.status.Problem = "", "no leader: spark1 and spark3 do not answer"
	if code, out, errs = cli(t, b, "raft", "status"); code != 0 || !strings.Contains(out, "term 7, no leader") ||
		!strings.Contains(errs, "spark1 and spark3 do not answer") {
		t.Errorf("exit %d, %s%s", code, out, errs)
	}
	if _, out, _ = cli(t, b, "raft", "status", "--json"); !strings.Contains(out, `"applied": 299`) {
		t.Error(out)
	}
}

// What runs beside the record is ended, and nobody waits for an end that is not
// told.
func TestStopAStray(t *testing.T) {
	strays := apptest.Calls{wire.Stop.Serve(
		func(context.Context, wire.Caller, wire.StopRequest) (wire.StopResponse, error) {
			return wire.StopResponse{Job: "zzzz", Strays: []string{"spark2"}}, nil
		})}
	b := apptest.Agent(strays, &apptest.FakeCluster{})
	if code, out, errs := cli(t, b, "stop", "zzzz"); code != 0 ||
		!strings.Contains(out, "job zzzz is being ended on spark2") {
		t.Errorf("exit %d, %s%s", code, out, errs)
	}
}
