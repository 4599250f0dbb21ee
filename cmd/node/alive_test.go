package node

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// A node whose state hangs is not called alive; one that is only slow is, and
// nothing is left waiting when the hanging ends.
func TestAlive(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	n := c.hosts[0].n
	if err := alive(t.Context(), n.turns()...); err != nil {
		t.Fatal(err)
	}
	hangs := make(chan struct{})
	turns := append(n.turns(), func(context.Context) { <-hangs })
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := alive(ctx, turns...); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("its state hangs: alive says %v", err)
	}
	close(hangs)
	if err := alive(t.Context(), turns...); err != nil {
		t.Errorf("it hangs no more: alive says %v", err)
	}
}

// The disk of an idle node hangs: nothing is written there but what asks whether it
// lives. It does, says that it has no vote, and votes again once the disk answers.
func TestAliveWithoutItsDisk(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	h := c.hosts[0]
	n := h.now()
	try := filepath.Join(filepath.Join(n.cfg.Paths.State, "raft"), "try")
	if err := syscall.Mkfifo(try, 0o600); err != nil { // opening it for writing waits for a reader
		t.Fatal(err)
	}
	if err := alive(t.Context(), n.turns()...); err != nil {
		t.Errorf("its disk hangs: alive says %v", err)
	}
	if line, _ := n.status.Line(); !strings.Contains(line, "takes no part in the vote: ") || !strings.Contains(line, "the disk has not answered for ") {
		t.Errorf("its state is %q", line)
	}
	if err := alive(t.Context(), n.turns()...); err != nil {
		t.Errorf("it has given its vote up: alive says %v", err)
	}
	past := try + ".past" // nobody else begins to wait there
	if err := os.Rename(try, past); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(past); err != nil {
		t.Fatal(err)
	}
	h.eventually("it lives anew", func() bool { return h.now() != n })
	h.wait(1)
	if out := h.run(command(1, 1, "true")); out.End != rendezvous.Completed {
		t.Errorf("a launch after that: %+v", out)
	}
}

// Whoever supervises a node is told what it does, when it is ready, when it is
// asked to end; the end of the one is the other's.
func TestSupervised(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	h := c.hosts[0]
	inv := h.now().survey.Inventory.Load()
	h.halt()
	watched, gone := make(chan Supervised, 1), errors.New("the supervisor is gone")
	end := make(chan struct{})
	h.cfg.Supervise = func(ctx context.Context, s Supervised) error {
		watched <- s
		select {
		case <-end:
			return gone
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	h.cfg.Management = "late0"
	h.start()
	s := <-watched
	h.eventually("it says what it waits for", func() bool {
		line, _ := s.State()
		return strings.HasPrefix(line, "waits for a management address: ")
	})
	if err := s.Alive(t.Context()); err != nil {
		t.Errorf("it waits: alive says %v", err)
	}
	if _, err := wire.ShowStatus.Call(t.Context(), h.client(), wire.StatusRequest{}); err != nil {
		t.Errorf("it waits: its socket says %v", err)
	}
	select {
	case <-s.Ready:
		t.Error("ready without an address")
	default:
	}
	up := true
	inv.NICs = append(inv.NICs, envgen.NIC{Name: "late0", Up: up, Carrier: &up, Addresses: []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr(h.addr), 32)}})
	h.now().survey.Inventory.Store(inv) // its own reader finds no such NIC, but looks at changes only
	<-s.Ready
	h.wait(1)
	h.eventually("it says that it leads", func() bool { line, _ := s.State(); return line == "leads the cluster" })
	h.stop()
	<-s.Stopping
	if err := <-h.done; err != nil {
		t.Errorf("asked to end: %v", err)
	}
	h.stop = nil

	h.start()
	<-watched
	close(end)
	if err := <-h.done; !errors.Is(err, gone) {
		t.Errorf("the node ended with %v", err)
	}
	h.stop()
	h.stop = nil // it has ended
}
