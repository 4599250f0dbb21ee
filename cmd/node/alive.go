package node

import (
	"context"
	"os"
	"path/filepath"
)

// alive returns once everything that this node lives by has taken a turn: its own
// state, its agent's, raft's loop, and the disk below the state folder by a durable
// write. What hangs keeps it until ctx ends, which is its only error: a disk that
// refuses a write has answered, and who writes to it says so.
func (n *node) alive(ctx context.Context) error {
	turned := make(chan struct{})
	go func() { // ends with what it waits for, or with the process
		defer close(turned)
		n.view()
		n.agent.Ledger()
		n.raft.Turn(ctx)
		touch(filepath.Join(n.cfg.Paths.State, "alive"))
	}()
	select {
	case <-turned:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// touch writes a byte through to the disk.
func touch(path string) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	if _, err = f.WriteString("\n"); err == nil {
		_ = f.Sync()
	}
}
