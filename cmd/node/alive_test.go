package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// A node whose state, disk or raft hangs is not called alive; one that is only
// slow is, and nothing is left waiting when the hanging ends.
func TestAlive(t *testing.T) {
	c := newCluster(t, 1)
	n := c.hosts[0].n
	if err := n.alive(t.Context()); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(n.cfg.Paths.State, "alive")
	for name, hang := range map[string]func() (over func()){
		"state": func() func() {
			n.mu.Lock()
			return n.mu.Unlock
		},
		"disk": func() func() { // opening it for writing waits for a reader
			if err := errors.Join(os.Remove(file), syscall.Mkfifo(file, 0o600)); err != nil {
				t.Fatal(err)
			}
			return func() {
				if _, err := os.ReadFile(file); err != nil {
					t.Error(err)
				}
				if err := os.Remove(file); err != nil {
					t.Error(err)
				}
			}
		},
	} {
		over := hang()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := n.alive(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s hangs: alive says %v", name, err)
		}
		cancel()
		over()
		if err := n.alive(t.Context()); err != nil {
			t.Errorf("%s hangs no more: alive says %v", name, err)
		}
	}
}

// A supervisor is called once the socket answers, and its end is the node's.
func TestSupervised(t *testing.T) {
	c := newCluster(t, 1)
	h := c.hosts[0]
	h.halt()
	var called atomic.Int32
	gone := errors.New("the supervisor is gone")
	end := make(chan struct{})
	h.cfg.Supervise = func(ctx context.Context, alive func(context.Context) error) error {
		called.Add(1)
		cl := h.client()
		defer cl.Close()
		if _, err := cl.Status(ctx, wire.StatusRequest{}); err != nil {
			t.Errorf("ready, and its socket says %v", err)
		}
		if err := alive(ctx); err != nil {
			t.Errorf("alive: %v", err)
		}
		<-end
		return gone
	}
	h.start()
	h.wait(1)
	close(end)
	if err := <-h.done; !errors.Is(err, gone) || called.Load() != 1 {
		t.Errorf("called %d times, the node ended with %v", called.Load(), err)
	}
	h.stop()
	h.stop = nil // it has ended
}
