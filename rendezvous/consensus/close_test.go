package consensus

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// lateDisk tells of what touches the folder after it was closed.
type lateDisk struct {
	diskStore
	closed atomic.Bool
	late   atomic.Bool
	hang   chan struct{} // unless nil, entries wait for it
}

func (d *lateDisk) StoreLogs(l []*raft.Log) error {
	if d.hang != nil {
		<-d.hang
	}
	d.late.CompareAndSwap(false, d.closed.Load())
	return d.diskStore.StoreLogs(l)
}

// Close waits for the write that hangs, as bbolt's does.
func (d *lateDisk) Close() error {
	if d.hang != nil {
		<-d.hang
	}
	d.closed.Store(true)
	return d.diskStore.Close()
}

// alone is the only voter of its cluster, in a bubble of its own time.
func alone(t *testing.T, dir string, m Machine, wrap func(diskStore) diskStore, bootstrap bool) (*Raft, error) {
	_, tr := raft.NewInmemTransport(me)
	r, err := Open(Config{ID: me, Dir: dir, Machine: m, Bootstrap: bootstrap, Transport: tr, wrapStore: wrap})
	if err != nil {
		return nil, err
	}
	for r.State() != Leader {
		time.Sleep(50 * time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return r, r.Verify(ctx)
}

// A disk hangs for longer than Close waits: Close returns all the same, the
// folder stays locked until the disk answers, and is free from then on.
func TestCloseOnHungDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		var disk *lateDisk
		r, err := alone(t, dir, &list{}, func(d diskStore) diskStore {
			disk = &lateDisk{diskStore: d}
			return disk
		}, true)
		if err != nil {
			t.Fatal(err)
		}
		hang := make(chan struct{})
		disk.hang = hang
		if _, err := r.Apply(t.Context(), []byte("hung")); !errors.Is(err, ErrUnknownOutcome) {
			t.Errorf("apply on a hung disk: %v", err)
		}
		if err := r.store.Set([]byte("k"), nil); err == nil {
			t.Error("a write after the failure") // it must not count as under way
		}
		begin := time.Now()
		r.Close()
		if d := time.Since(begin); d > 2*r.cfg.StoreDeadline {
			t.Errorf("Close took %v", d)
		}
		if disk.closed.Load() {
			t.Error("the folder was given up with a write under way")
		}
		if _, err := alone(t, dir, &list{}, nil, false); err == nil || !strings.Contains(err.Error(), "still hang?") {
			t.Fatalf("opened while the disk hangs: %v", err)
		}
		close(hang)
		synctest.Wait()
		if disk.late.Load() {
			t.Error("a write reached the folder after its lock was gone")
		}
		m := &list{}
		again, err := alone(t, dir, m, nil, false)
		if err != nil {
			t.Fatalf("open once the disk has answered: %v", err)
		}
		// The write that hung has reached the disk, whole.
		if got := m.all(); len(got) != 1 || got[0] != "hung" {
			t.Errorf("entries %q", got)
		}
		again.Close()
	})
}

// The first write of a folder hangs: Open says so instead of hanging, too.
func TestOpenOnHungDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		_, err := alone(t, t.TempDir(), &list{},
			func(d diskStore) diskStore { return &lateDisk{diskStore: d, hang: hang} }, true)
		if err == nil || !strings.Contains(err.Error(), "the disk has not answered") {
			t.Errorf("open: %v", err) // raft keeps of the error only its text
		}
		close(hang)
		synctest.Wait()
	})
}

// A peer that stops in the middle of a snapshot holds raft for longer than Close
// waits. What raft goes on to do with the rest must not touch a folder that
// another agent may have open by now.
func TestNothingIsWrittenAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		_, tr := raft.NewInmemTransport(me)
		r, err := Open(Config{ID: me, Dir: dir, Machine: &list{}, Bootstrap: true, Transport: tr})
		if err != nil {
			t.Fatal(err)
		}
		_, peer := raft.NewInmemTransportWithTimeout("peer", time.Hour)
		peer.Connect(me, tr)
		body, rest := io.Pipe()
		sent := make(chan struct{})
		go func() { // joined by sent
			defer close(sent)
			req := &raft.InstallSnapshotRequest{
				RPCHeader:       raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("peer"), Addr: []byte("peer")},
				SnapshotVersion: raft.SnapshotVersionMax, Term: 99, LastLogIndex: 50, LastLogTerm: 98, Size: 8,
				ConfigurationIndex: 1,
				Configuration:      raft.EncodeConfiguration(raft.Configuration{Servers: []raft.Server{{ID: me, Address: me}}}),
			}
			_ = peer.InstallSnapshot(me, me, req, &raft.InstallSnapshotResponse{}, body)
		}()
		rest.Write([]byte("half"))
		r.Close()
		next := mustStore(t, dir) // the lock is free
		defer next.Close()
		rest.Write([]byte("rest"))
		rest.Close()
		<-sent
		synctest.Wait()
		found, err := filepath.Glob(filepath.Join(dir, snapshotsDir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			if b, _ := os.ReadFile(filepath.Join(path, "state.bin")); !strings.HasSuffix(path, ".tmp") ||
				strings.Contains(string(b), "rest") {
				t.Errorf("%s was written into a folder that had been given up", path)
			}
		}
	})
}

// What an agent writes as its last is seen by the one that waits for its lock:
// its vote above all, which must not be cast twice.
func TestOpenReadsWhatItWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		first := mustStore(t, dir)
		if err := first.StoreLog(entry(1, 1, "one")); err != nil {
			t.Fatal(err)
		}
		type opened struct {
			s   *boltStore
			err error
		}
		got := make(chan opened, 1)
		go func() { // joined by got
			s, err := openStore(dir, me)
			got <- opened{s, err}
		}()
		synctest.Wait() // it waits for the lock now
		if err := errors.Join(first.StoreLog(entry(2, 1, "two")), first.SetUint64([]byte("LastVoteTerm"), 9),
			first.Close()); err != nil {
			t.Fatal(err)
		}
		second := <-got
		if second.err != nil {
			t.Fatal(second.err)
		}
		defer second.s.Close()
		if c := contentOf(t, second.s); len(c.Entries) != 2 {
			t.Errorf("%d entries, want the last one, too", len(c.Entries))
		}
		if v, err := second.s.GetUint64([]byte("LastVoteTerm")); err != nil || v != 9 {
			t.Errorf("vote in term %d, %v, want 9", v, err)
		}
	})
}

// A file that takes another's place while its opener waits is not written under
// a name that it no longer has.
func TestOpenRefusesAReplacedFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		first := mustStore(t, dir)
		got := make(chan error, 1)
		go func() { // joined by got
			s, err := openStore(dir, me)
			if err == nil {
				s.Close()
			}
			got <- err
		}()
		synctest.Wait()
		path := filepath.Join(dir, logFile)
		if err := os.Rename(path, path+".away"); err != nil {
			t.Fatal(err)
		}
		first.Close()
		if err := <-got; err == nil || !strings.Contains(err.Error(), "replaced") {
			t.Errorf("open: %v", err)
		}
		mustStore(t, dir).Close()
	})
}

// Two that find an empty folder at once: one makes the file, the other waits
// for it and finds it, and neither takes it away from under the other.
func TestTwoFindAnEmptyFolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		type opened struct {
			s   *boltStore
			err error
		}
		got := make(chan opened, 2)
		for range 2 {
			go func() { // joined by got
				s, err := openStore(dir, me)
				got <- opened{s, err}
			}()
		}
		a := <-got
		if a.err != nil {
			t.Fatal(a.err)
		}
		if err := a.s.StoreLog(entry(1, 1, "one")); err != nil {
			t.Fatal(err)
		}
		a.s.Close()
		b := <-got
		if b.err != nil {
			t.Fatal(b.err)
		}
		if c := contentOf(t, b.s); len(c.Entries) != 1 {
			t.Errorf("%d entries, want the other's", len(c.Entries))
		}
		b.s.Close()
	})
}
