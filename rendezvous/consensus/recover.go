package consensus

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// Recover makes this node's copy of the log the only valid one, with this node as the
// only voter: every entry in it counts as committed. The caller has made sure that no
// other voter goes on, or that nobody obeys one that does. The node must not be open;
// call Open next. Recover is idempotent.
//
// cfg.Machine must be empty and is of no use afterwards.
func Recover(cfg Config) (err error) {
	n, err := prepare(cfg)
	if err != nil {
		return fmt.Errorf("recover raft in %s: %w", cfg.Dir, err)
	}
	defer func() { err = errors.Join(err, n.store.disk.Close()) }()
	snaps, newest, err := openSnapshots(n.cfg, n.store)
	if err != nil {
		return fmt.Errorf("recover raft in %s: %w", cfg.Dir, err)
	}
	if err := n.reconcile(newest); err != nil {
		return fmt.Errorf("recover raft in %s: %w", cfg.Dir, err)
	}
	self := raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(n.cfg.ID), Address: raft.ServerAddress(n.cfg.ID)}
	_, idle := raft.NewInmemTransport(self.Address) // asked for a name, never for a connection
	err = raft.RecoverCluster(n.cfg.raftConfig(nil), n.fsm, n.store, n.store, snaps, idle,
		raft.Configuration{Servers: []raft.Server{self}})
	if err = errors.Join(err, n.fsm.halted); err != nil {
		return fmt.Errorf("recover raft in %s: %w", cfg.Dir, err)
	}
	return nil
}

// Seed makes the folder of a new log that begins with a given state: a snapshot of it at
// index, in term 1, with this node as the only voter. The folder must be empty. The
// caller has made sure that no log of another history of the cluster ever meets this one.
//
// cfg.Machine is used to check that the state can be read.
func Seed(cfg Config, index uint64, state []byte) (err error) {
	n, err := prepare(cfg)
	if err != nil {
		return fmt.Errorf("begin raft in %s: %w", cfg.Dir, err)
	}
	defer func() { err = errors.Join(err, n.store.disk.Close()) }()
	snaps, newest, err := openSnapshots(n.cfg, n.store)
	if err != nil {
		return fmt.Errorf("begin raft in %s: %w", cfg.Dir, err)
	}
	if last, err := n.store.LastIndex(); err != nil || last > 0 || newest != nil {
		return fmt.Errorf("begin raft in %s: %w", cfg.Dir, errors.Join(err, errors.New("the folder has a log already")))
	}
	if index == 0 || len(state) > maxSnapshot {
		return fmt.Errorf("begin raft in %s: a state of %d bytes at index %d", cfg.Dir, len(state), index)
	}
	if err := n.cfg.Machine.Restore(state); err != nil {
		return fmt.Errorf("begin raft in %s: %w", cfg.Dir, err)
	}
	if err := n.store.SetUint64([]byte("CurrentTerm"), 1); err != nil {
		return fmt.Errorf("begin raft in %s: %w", cfg.Dir, err)
	}
	self := raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(n.cfg.ID), Address: raft.ServerAddress(n.cfg.ID)}
	_, idle := raft.NewInmemTransport(self.Address) // asked for a name, never for a connection
	sink, err := snaps.Create(raft.SnapshotVersionMax, index, 1, raft.Configuration{Servers: []raft.Server{self}},
		index, idle)
	if err != nil {
		return fmt.Errorf("begin raft in %s: %w", cfg.Dir, err)
	}
	head := binary.BigEndian.AppendUint64([]byte(stateMagic), index)
	if err := (&fsmSnapshot{head: head, data: state}).Persist(sink); err != nil {
		return fmt.Errorf("begin raft in %s: %w", cfg.Dir, err)
	}
	return nil
}
