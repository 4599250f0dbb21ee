package consensus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"
)

// Run is called only by leaders, after everything recorded is applied, one
// call at a time, and its ctx ends with the leadership.
func TestRun(t *testing.T) {
	c, lead := start(t, 3, false, nil)
	type call struct {
		n       *node
		term    uint64
		entries int
		ctx     context.Context
	}
	calls, ends := make(chan call, 16), make(chan *node, 16)
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 3)
	for _, n := range c.nodes {
		go func() { // joined by errs
			errs <- n.Run(ctx, func(ctx context.Context, term uint64) error {
				calls <- call{n, term, len(n.machine.all()), ctx}
				<-ctx.Done()
				ends <- n
				return nil
			})
		}()
	}
	first := <-calls
	if first.n != lead {
		t.Fatalf("%s was called to lead, %s leads", first.n.id, lead.id)
	}
	for i := range 10 {
		c.apply(lead, fmt.Sprint(i))
	}
	c.isolate(lead, true)
	if got := <-ends; got != lead {
		t.Fatalf("%s stopped leading", got.id)
	}
	if !errors.Is(context.Cause(first.ctx), errLost) {
		t.Errorf("cause %v", context.Cause(first.ctx))
	}
	second := <-calls
	if second.n == lead || second.term <= first.term || second.entries != 10 {
		t.Errorf("then %s was called in term %d with %d entries", second.n.id, second.term, second.entries)
	}
	c.isolate(lead, false)
	cancel()
	for range 3 {
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	}
	if n := <-ends; n != second.n {
		t.Errorf("%s ended last", n.id)
	}
}

// A lead function that gives up passes the leadership on.
func TestRunGivesUp(t *testing.T) {
	c, lead := start(t, 3, false, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { // joined by done
		done <- lead.Run(ctx, func(context.Context, uint64) error { return io.ErrUnexpectedEOF })
	}()
	next := c.leader(30*time.Second, lead)
	c.apply(next, "x")
	cancel()
	<-done
}

// Close hands over at once, without waiting for an election's timeout.
func TestCloseHandsOver(t *testing.T) {
	c, lead := start(t, 3, true, func(c *Config) { c.Heartbeat = 4 * time.Second })
	c.apply(lead, "x")
	c.same([]string{"x"})
	_, term := lead.Leader()
	begin := time.Now()
	lead.Close()
	next := c.leader(3*time.Second, lead)
	if _, t2 := next.Leader(); t2 <= term {
		t.Errorf("term %d after %d", t2, term)
	}
	t.Logf("handed over in %v", time.Since(begin))
	lead.up = false
	c.unplug(lead)
	if _, err := lead.Apply(t.Context(), []byte("x")); !errors.Is(err, ErrStopped) {
		t.Errorf("apply after Close: %v", err)
	}
	c.apply(next, "y")
}

func TestLeaderChangedWakes(t *testing.T) {
	c, lead := start(t, 3, false, nil)
	var follower *node
	for _, n := range c.nodes {
		if n != lead {
			follower = n
		}
	}
	eventually(t, 30*time.Second, "the follower knows the leader", func() bool {
		id, _ := follower.Leader()
		return id == lead.id
	})
	changed := follower.LeaderChanged()
	c.crash(lead)
	select {
	case <-changed:
	case <-time.After(30 * time.Second):
		t.Fatal("nobody was woken")
	}
	if time.Since(follower.LastContact()) > 10*time.Second {
		t.Errorf("last contact %v", follower.LastContact())
	}
}

// Members tell raft's own evidence of a silence.
func TestSilence(t *testing.T) {
	c, lead := start(t, 3, false, nil)
	var gone *node
	for _, n := range c.nodes {
		if n != lead {
			gone = n
		}
	}
	silent := func() time.Duration {
		for _, s := range lead.Members().Servers {
			if s.ID == gone.id {
				return s.Silent
			}
		}
		return -1
	}
	c.crash(gone)
	eventually(t, 30*time.Second, "a silence of 1 s", func() bool { return silent() > time.Second })
	if err := c.open(gone, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "the silence has ended", func() bool { return silent() == 0 })
}
