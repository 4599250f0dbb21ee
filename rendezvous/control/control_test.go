package control

import (
	"testing"
	"testing/synctest"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Whose stream came last is listened to; the end of one that was replaced says nothing.
func TestOneStreamAtATime(t *testing.T) {
	var leads rendezvous.Latest[launcher.NodeID]
	c := New(Config{Leads: &leads})
	var ended []error
	of := func(id launcher.NodeID) *stream {
		return &stream{end: func(why error) { ended = append(ended, why) }, leader: wire.Caller{Node: id}}
	}
	a, b := of("a"), of("b")
	c.attached(a)
	c.attached(b)
	if len(ended) != 1 || ended[0] != errReplaced || leads.Load() != "b" {
		t.Errorf("ended with %v, %q leads", ended, leads.Load())
	}
	c.detached(a)
	if leads.Load() != "b" {
		t.Errorf("the end of a stream that was replaced: %q leads", leads.Load())
	}
	c.detached(b)
	if leads.Load() != "" || len(ended) != 1 {
		t.Errorf("then %q leads, ended %v", leads.Load(), ended)
	}
}

// A turn waits for what hangs here.
func TestTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, turned := New(Config{}), make(chan struct{})
		c.mu.Lock()
		go func() { defer close(turned); c.Turn() }()
		select {
		case <-turned:
			t.Error("it took a turn")
		default:
		}
		c.mu.Unlock()
		<-turned
	})
}
