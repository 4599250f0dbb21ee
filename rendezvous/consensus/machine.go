package consensus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// Machine is what the log drives. Its methods are never called concurrently; readers need
// the machine's own lock.
type Machine interface {
	// Apply applies one committed entry and returns the result for the node that proposed
	// it. It must depend only on the state, the index and the entry. For an entry of an
	// unknown kind it returns a *FatalError: the node then stops before the entry until a
	// program that knows it runs. A panic has the same effect.
	Apply(index uint64, entry []byte) any
	// Snapshot returns the whole state in bytes that no later Apply changes. Entries wait
	// for it, so it must be cheap.
	Snapshot() ([]byte, error)
	// Restore replaces the whole state with a snapshot.
	Restore(snapshot []byte) error
}

// FatalError stops the node: the state machine cannot go on past Index.
type FatalError struct {
	Index uint64
	Err   error
}

func (e *FatalError) Error() string {
	return fmt.Sprintf("apply entry %d: %v: this node stops here; run a version of sparkrun that knows the entry",
		e.Index, e.Err)
}

func (e *FatalError) Unwrap() error { return e.Err }

const (
	stateMagic = "SPKS\x01"
	// maxSnapshot bounds what a peer can make this node read into memory.
	maxSnapshot = 1 << 30
)

// configAt is a committed membership and the index of its entry. raft's own
// GetConfiguration always gives index 0, which raft understands as "do not check".
type configAt struct {
	index   uint64
	servers []raft.Server
}

// fsm connects raft and the Machine.
type fsm struct {
	machine Machine
	fatal   func(error)
	// lastLog gives the index of the last entry on disk; set before raft starts.
	lastLog func() uint64
	// live is set once raft runs: from then on a restore comes from a leader.
	live atomic.Bool

	mu      sync.Mutex
	halted  error
	applied atomic.Uint64
	conf    atomic.Pointer[configAt]
}

var _ raft.ConfigurationStore = (*fsm)(nil)

// Apply passes one entry to the machine, unless the node has halted or replay has applied
// it already.
func (f *fsm) Apply(l *raft.Log) any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.applyLocked(l.Index, l.Data)
}

func (f *fsm) applyLocked(index uint64, entry []byte) any {
	if f.halted != nil {
		return f.halted
	}
	if index <= f.applied.Load() {
		return nil
	}
	res := f.guarded(index, entry)
	if err, ok := res.(error); ok {
		if fe, ok := errors.AsType[*FatalError](err); ok {
			if fe.Index == 0 {
				fe = &FatalError{Index: index, Err: fe.Err}
			}
			f.halted = fe
			f.fatal(fe)
			return fe
		}
	}
	f.applied.Store(index)
	return res
}

// guarded turns a panic into a FatalError: the agent and its ranks go on, instead of a
// crash loop at a bad entry.
func (f *fsm) guarded(index uint64, entry []byte) (res any) {
	defer func() {
		if p := recover(); p != nil {
			res = &FatalError{Index: index, Err: fmt.Errorf("panic: %v\n%s", p, debug.Stack())}
		}
	}()
	return f.machine.Apply(index, entry)
}

// StoreConfiguration makes raft count configuration entries as applied, too;
// without it no snapshot can be taken after a membership change until an
// ordinary entry follows.
func (f *fsm) StoreConfiguration(index uint64, c raft.Configuration) {
	f.conf.Store(&configAt{index, c.Servers})
}

func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.halted != nil {
		return nil, f.halted
	}
	data, err := f.machine.Snapshot()
	if err != nil {
		return nil, fmt.Errorf("snapshot state at %d: %w", f.applied.Load(), err)
	}
	// The index is stored with the state: replay may have taken the machine further than
	// raft knows, and no entry may be applied twice.
	head := binary.BigEndian.AppendUint64([]byte(stateMagic), f.applied.Load())
	return &fsmSnapshot{head: head, data: data}, nil
}

// Restore replaces the machine's state. If that fails the state is undefined
// and the node stops.
func (f *fsm) Restore(rc io.ReadCloser) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.halted != nil {
		return f.halted
	}
	err := f.restoreLocked(rc)
	if err != nil {
		f.halted = fmt.Errorf("restore snapshot: %w", err)
		if f.live.Load() {
			f.fatal(f.halted)
		}
	}
	return err
}

func (f *fsm) restoreLocked(rc io.ReadCloser) error {
	b, err := io.ReadAll(io.LimitReader(rc, maxSnapshot+1))
	if err != nil {
		return err
	}
	n := len(stateMagic)
	if len(b) > maxSnapshot || len(b) < n+8 || string(b[:n]) != stateMagic {
		return fmt.Errorf("%d bytes are not a state of this program", len(b))
	}
	if err := f.machine.Restore(b[n+8:]); err != nil {
		return err
	}
	f.applied.Store(binary.BigEndian.Uint64(b[n:]))

	// raft wraps the snapshot store's reader to count bytes.
	var inner io.ReadCloser = rc
	if w, ok := rc.(raft.ReadCloserWrapper); ok {
		inner = w.WrappedReadCloser()
	}
	if s, ok := inner.(*snapshotReader); ok {
		f.conf.Store(&configAt{s.meta.ConfigurationIndex, s.meta.Configuration.Servers})
		// raft #697: it does not forget entries beyond the end of an installed snapshot
		// and refuses the leader's entries ever after. Opening again reads the true state
		// from the disk.
		if f.live.Load() && f.lastLog() > s.meta.Index {
			f.fatal(fmt.Errorf("install snapshot %d over a log that reaches %d: %w", s.meta.Index, f.lastLog(), ErrReopen))
		}
	}
	return nil
}

type fsmSnapshot struct{ head, data []byte }

func (s *fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	for _, b := range [][]byte{s.head, s.data} {
		if _, err := sink.Write(b); err != nil {
			return errors.Join(fmt.Errorf("write snapshot %s: %w", sink.ID(), err), sink.Cancel())
		}
	}
	return sink.Close()
}

func (*fsmSnapshot) Release() {}
