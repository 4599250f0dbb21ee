package consensus

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// Recover makes this node's copy of the log the whole truth, with this node as
// the only voter: every entry in it counts as committed. Whoever calls it has
// made sure that no other voter goes on, or that nobody obeys one that does. The
// node must not be open; Open comes next. Done twice it does no harm.
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
	err = raft.RecoverCluster(n.cfg.raftConfig(nil), n.fsm, n.store, n.store, snaps, idle, raft.Configuration{Servers: []raft.Server{self}})
	if err = errors.Join(err, n.fsm.halted); err != nil {
		return fmt.Errorf("recover raft in %s: %w", cfg.Dir, err)
	}
	return nil
}
