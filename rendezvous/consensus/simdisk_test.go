package consensus

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

var errPowerLost = errors.New("the power is off")

// simDisk is the product's own store with a disk under it that can be slow, can
// hang, and loses at a power cut what no fsync has put down. bbolt writes through
// the page cache and calls fsync in each transaction; here what fsync has made
// durable is a copy of the file, and a power cut puts the copy back.
type simDisk struct {
	diskStore
	path string
	// forgetful skips the fsync: the system writes the file back by itself every
	// few seconds. The seeded bug of that name.
	forgetful bool

	mu      sync.Mutex
	slow    time.Duration // before and after each write
	hang    chan struct{} // unless nil, writes wait for it
	dead    chan struct{} // closed when the power goes
	durable []byte
	flushed time.Time
}

func newSimDisk(inner diskStore, path string, forgetful bool) (*simDisk, error) {
	d := &simDisk{diskStore: inner, path: path, forgetful: forgetful, dead: make(chan struct{})}
	return d, d.flush()
}

func (d *simDisk) set(slow time.Duration, hang chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.slow, d.hang = slow, hang
}

func (d *simDisk) quick() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.slow == 0 && d.hang == nil
}

// wait is how long the disk takes.
func (d *simDisk) wait() error {
	d.mu.Lock()
	slow, hang := d.slow, d.hang
	d.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-d.dead:
		}
	}
	timer := time.NewTimer(slow)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-d.dead:
		return errPowerLost
	}
}

// write runs one transaction. The power can go before it, and after it with
// nobody told that it is durable.
func (d *simDisk) write(op func() error) error {
	if err := d.wait(); err != nil {
		return err
	}
	if err := d.fsynced(op); err != nil {
		return err
	}
	return d.wait()
}

func (d *simDisk) fsynced(op func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.dead:
		return errPowerLost
	default:
	}
	if err := op(); err != nil {
		return err
	}
	if d.forgetful && time.Since(d.flushed) < 5*time.Second {
		return nil
	}
	return d.flush()
}

func (d *simDisk) sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.flush()
}

// flush makes durable what the file holds.
func (d *simDisk) flush() error {
	f, err := os.Open(d.path)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	d.durable = slices.Grow(d.durable[:0], int(fi.Size()))[:fi.Size()]
	_, err = f.ReadAt(d.durable, 0)
	d.flushed = time.Now()
	return err
}

func (d *simDisk) StoreLog(l *raft.Log) error { return d.StoreLogs([]*raft.Log{l}) }

func (d *simDisk) StoreLogs(l []*raft.Log) error {
	return d.write(func() error { return d.diskStore.StoreLogs(l) })
}

func (d *simDisk) DeleteRange(lo, hi uint64) error {
	return d.write(func() error { return d.diskStore.DeleteRange(lo, hi) })
}

func (d *simDisk) Set(k, v []byte) error {
	return d.write(func() error { return d.diskStore.Set(k, v) })
}

func (d *simDisk) SetUint64(k []byte, v uint64) error {
	return d.write(func() error { return d.diskStore.SetUint64(k, v) })
}

// cutPower ends every write, now and later.
func (d *simDisk) cutPower() {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.dead:
	default:
		close(d.dead)
	}
}

// lose puts the file back to what was durable, once nobody has it open.
func (d *simDisk) lose() error { return os.WriteFile(d.path, d.durable, 0o600) }

// simFolder is where a simulation's nodes keep their files: in memory, so that
// the real fsync beneath costs nothing.
func simFolder(fallback func() string) (dir string, remove func()) {
	dir, err := os.MkdirTemp("/dev/shm", "consensus-sim-")
	if err != nil {
		return fallback(), func() {}
	}
	return dir, func() {
		if err := os.RemoveAll(dir); err != nil {
			panic(fmt.Sprintf("remove %s: %v", filepath.Base(dir), err))
		}
	}
}
