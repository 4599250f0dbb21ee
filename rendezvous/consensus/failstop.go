package consensus

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

// DiskError: the log's folder does not take a write, or not in time. The node has stopped
// for good; open it again once TryDisk succeeds.
type DiskError struct {
	What string // the operation that failed
	Dir  string
	Err  error // *HungError if the disk did not answer
}

func (e *DiskError) Error() string {
	hint := ""
	if e.full() {
		hint = "; free some space there, then the node takes part again"
	}
	return fmt.Sprintf("%s in %s: %v%s", e.What, e.Dir, e.Err, hint)
}

func (e *DiskError) Unwrap() error { return e.Err }

// full looks at the text as well: bbolt returns only a text when its file cannot grow.
func (e *DiskError) full() bool {
	return slices.ContainsFunc([]syscall.Errno{syscall.ENOSPC, syscall.EDQUOT}, func(no syscall.Errno) bool {
		return errors.Is(e.Err, no) || e.Err != nil && strings.Contains(e.Err.Error(), no.Error())
	})
}

// HungError: the disk did not answer a write in time.
type HungError struct{ Limit time.Duration }

func (e *HungError) Error() string {
	return fmt.Sprintf("the disk has not answered for %v", e.Limit)
}

// tryRoom is how many bytes TryDisk writes: with less free space a node would soon have
// to stop again.
const tryRoom = 1 << 20

// TryDisk writes and removes a file in a log's folder; the log may be open. It waits for
// the disk as long as that takes.
func TryDisk(dir string) error { return tryDisk(dir, tryRoom) }

func tryDisk(dir string, size int) error {
	path := filepath.Join(dir, "try")
	err := func() error {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		_, err = f.Write(make([]byte, size))
		return errors.Join(err, f.Sync(), f.Close())
	}()
	if rmErr := os.Remove(path); err == nil {
		err = rmErr
	}
	if err != nil {
		return fmt.Errorf("try the disk of %s: %w", dir, err)
	}
	return nil
}

// failStop puts a deadline on every write and stops the node for good at the first that
// fails. raft by itself only steps down after a failed write and is elected again; it
// goes on sending heartbeats while a write hangs, so that nobody else is elected (raft
// #503, #612); and it panics when it cannot write its term.
type failStop struct {
	disk  diskStore
	dir   string // of the disk, for errors
	limit time.Duration
	fatal func(error)
	// live is set once raft runs in goroutines of its own; see stop.
	live atomic.Bool
	// commitIndex is raft's, once it runs.
	commitIndex atomic.Pointer[func() uint64]

	mu     sync.Mutex
	failed error
	shut   bool          // no operation begins any more; see close
	busy   int           // operations under way
	idle   chan struct{} // closed once shut and not busy
	closed chan struct{} // closed once the disk is closed; nil before close
	// closeErr is the disk's answer, written before closed is closed.
	closeErr error
	// recent caches the last entries, because replication reads them at once.
	recent [cacheSize]*raft.Log
}

const cacheSize = 128

var (
	_ raft.LogStore          = (*failStop)(nil)
	_ raft.MonotonicLogStore = (*failStop)(nil)
	_ raft.StableStore       = (*failStop)(nil)
)

// fail records the first failure and tells the node, once.
func (f *failStop) fail(err error) error {
	f.mu.Lock()
	first := f.failed == nil
	if first {
		f.failed = err
	}
	err = f.failed
	f.mu.Unlock()
	if first {
		f.fatal(err)
	}
	return err
}

func (f *failStop) failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

// begin announces an operation, end its end. An operation that has not begun when close
// is called never touches the folder: another process may have the lock by then.
func (f *failStop) begin() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shut {
		return ErrStopped
	}
	f.busy++
	return nil
}

func (f *failStop) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.busy--
	if f.shut && f.busy == 0 {
		close(f.idle)
	}
}

// do runs one disk operation but waits no longer than limit. The goroutine of a hung
// operation cannot be ended; it ends when the disk answers, see close.
func (f *failStop) do(what string, limit time.Duration, op func() error) error {
	if err := f.failure(); err != nil {
		return err
	}
	if err := f.begin(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { // ends when the disk answers; close counts on end
		err := op()
		f.end()
		done <- err
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return f.fail(&DiskError{what, f.dir, &HungError{limit}})
	}
}

// write is do for writes without which the node cannot go on: a failure stops it.
func (f *failStop) write(what string, op func() error) error {
	err := f.do(what, f.limit, op)
	if err == nil || errors.Is(err, ErrStopped) {
		return err
	}
	if f.failure() == nil {
		err = f.fail(&DiskError{what, f.dir, err})
	}
	return err
}

// stop ends the calling goroutine of raft where raft would panic on err. Its deferred
// calls run, so replication ends and futures are answered.
func (f *failStop) stop(err error) error {
	if f.live.Load() {
		runtime.Goexit()
	}
	return err
}

// close closes the disk, and so releases the folder's lock, once the last operation has
// ended; no other begins. It waits no longer than limit and tells whether the disk is
// closed. If the disk answers later, it is closed then.
func (f *failStop) close(limit time.Duration) (done bool, err error) {
	f.mu.Lock()
	if f.closed == nil {
		f.shut, f.idle, f.closed = true, make(chan struct{}), make(chan struct{})
		if f.busy == 0 {
			close(f.idle)
		}
		go func() { // ends when the disk answers
			<-f.idle
			f.closeErr = f.disk.Close()
			close(f.closed)
		}()
	}
	f.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-f.closed:
		return true, f.closeErr
	case <-timer.C:
		return false, nil
	}
}

func (f *failStop) IsMonotonic() bool              { return true }
func (f *failStop) FirstIndex() (uint64, error)    { return f.disk.FirstIndex() }
func (f *failStop) LastIndex() (uint64, error)     { return f.disk.LastIndex() }
func (f *failStop) Get(key []byte) ([]byte, error) { return f.disk.Get(key) }
func (f *failStop) GetUint64(key []byte) (uint64, error) {
	return f.disk.GetUint64(key)
}

func (f *failStop) GetLog(index uint64, l *raft.Log) error {
	f.mu.Lock()
	c := f.recent[index%cacheSize]
	f.mu.Unlock()
	if c != nil && c.Index == index {
		*l = *c
		return nil
	}
	if err := f.begin(); err != nil {
		return f.stop(err)
	}
	err := f.disk.GetLog(index, l)
	f.end()
	if err != nil && !errors.Is(err, raft.ErrLogNotFound) {
		return f.stop(f.fail(err))
	}
	return err
}

func (f *failStop) StoreLog(l *raft.Log) error { return f.StoreLogs([]*raft.Log{l}) }

func (f *failStop) StoreLogs(logs []*raft.Log) error {
	if ci := f.commitIndex.Load(); ci != nil {
		f.disk.commit((*ci)())
	}
	err := f.write("write raft log", func() error { return f.disk.StoreLogs(logs) })
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range logs {
		f.recent[l.Index%cacheSize] = l
	}
	return nil
}

func (f *failStop) DeleteRange(lo, hi uint64) error {
	// Before the deletion, so that no reader finds what is being deleted.
	f.mu.Lock()
	for i, c := range f.recent {
		if c != nil && c.Index >= lo && c.Index <= hi {
			f.recent[i] = nil
		}
	}
	f.mu.Unlock()
	return f.write("shorten raft log", func() error { return f.disk.DeleteRange(lo, hi) })
}

func (f *failStop) Set(key, val []byte) error {
	return f.write("write raft vote", func() error { return f.disk.Set(key, val) })
}

// SetUint64 writes the term or the term of a vote. If it cannot, raft panics in whichever
// goroutine called it.
func (f *failStop) SetUint64(key []byte, val uint64) error {
	if err := f.write("write raft term", func() error { return f.disk.SetUint64(key, val) }); err != nil {
		return f.stop(err)
	}
	return nil
}
